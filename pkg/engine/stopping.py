"""When a generation ends: end tokens, stop strings, the length. Text is held back only as needed.

A stop string may begin in one token and end in another, so text that could still become one is
kept until it cannot. The stop text itself is never given out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pagetrail.catalog.errors import BadInputError

from .tokenizer import Detokenizer

STOP_STRINGS_MAX = 16
STOP_CHARS_MAX = 1_024


class FinishReason(StrEnum):
    """Why a generation ended, as it stands on the wire."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends a generation. ``reason`` of an end is the string or the token id that did it."""

    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    max_tokens: int = 1
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if len(self.strings) > STOP_STRINGS_MAX:
            raise BadInputError(f"at most {STOP_STRINGS_MAX} stop strings, not {len(self.strings)}")
        if not all(0 < len(text) <= STOP_CHARS_MAX for text in self.strings):
            raise BadInputError(f"a stop string has 1 to {STOP_CHARS_MAX} characters")
        if self.max_tokens < 1 or self.min_tokens < 0:
            raise BadInputError("max_tokens must be at least 1 and min_tokens not negative")


@dataclass(frozen=True, slots=True)
class Emitted:
    """Text that may be sent now, and the end if this token brought it."""

    text: str
    finish: FinishReason | None = None
    stop: str | int | None = None


@dataclass(slots=True)
class OutputStream:
    """A generation's tokens in, its text out. Raises BadInputError on a token after the end."""

    detokenizer: Detokenizer
    rules: StopRules
    tokens: int = 0
    _held: str = ""
    _ended: bool = field(default=False)

    def push(self, token: int) -> Emitted:
        """Take the next token."""
        if self._ended:
            raise BadInputError("this generation has ended; no token can follow")
        self.tokens += 1
        may_stop = self.tokens > self.rules.min_tokens
        if may_stop and token in self.rules.token_ids:
            # An end token has no text of its own.
            return self._end(self._held + self.detokenizer.finish(), FinishReason.STOP, token)
        text = self._held + self.detokenizer.push(token)
        last = self.tokens >= self.rules.max_tokens
        if last:
            text += self.detokenizer.finish()
        found = _first_stop(text, self.rules.strings) if may_stop else None
        if found is not None:
            at, string = found
            return self._end(text[:at], FinishReason.STOP, string)
        if last:
            return self._end(text, FinishReason.LENGTH, None)
        keep = _could_begin(text, self.rules.strings)
        self._held = text[len(text) - keep :]
        return Emitted(text[: len(text) - keep])

    def _end(self, text: str, finish: FinishReason, stop: str | int | None) -> Emitted:
        self._ended, self._held = True, ""
        return Emitted(text, finish, stop)


def _first_stop(text: str, strings: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string begins; the longest of those that begin there."""
    found = [(at, -len(string), string) for string in strings if (at := text.find(string)) >= 0]
    if not found:
        return None
    at, _, string = min(found)
    return at, string


def _could_begin(text: str, strings: Sequence[str]) -> int:
    """Length of the longest end of ``text`` with which some stop string begins."""
    longest = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
