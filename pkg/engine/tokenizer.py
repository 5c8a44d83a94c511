"""Text to tokens and back: the model's own tokenizer, its chat template, incremental text.

Owns the reading of tokenizer.json and the chat template (rendered in a sandbox, because a template
is code that came with the model). Incremental text never splits a character: bytes that do not yet
make one are held back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from pagetrail.catalog.errors import BadInputError, CorruptionError

from .checkpoint import MissingModelError, read_json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEMPLATE_BYTES_MAX = 1 << 20
UNFINISHED_TOKENS_MAX = 16  # tokens that may go by before held-back bytes are given up as invalid
EOS_TOKENS_MAX = 64
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name of a byte
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # and its character for a space


class ModelTokenizer:
    """A model's tokenizer. Stateless between calls; a ``Detokenizer`` keeps a stream's state."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str | None,
        special: Mapping[str, str],
        eos_token_ids: tuple[int, ...],
        add_bos: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = None if chat_template is None else _compile(chat_template)
        self._special = dict(special)
        self.eos_token_ids = eos_token_ids
        bos = special.get("bos_token")
        self.bos_token_id: int | None = tokenizer.token_to_id(bos) if bos else None
        self._lead = [self.bos_token_id] if add_bos and self.bos_token_id is not None else []
        self._bytes_of_char = {char: byte for byte, char in enumerate(_byte_level_alphabet())}
        written = json.loads(tokenizer.to_str())
        self._byte_level = '"ByteLevel"' in json.dumps(
            [written.get("pre_tokenizer"), written.get("decoder")]
        )
        self._byte_pieces = '"ByteFallback"' in json.dumps(written.get("decoder"))

    @classmethod
    def open(cls, directory: Path, config: Mapping[str, Any]) -> ModelTokenizer:
        """Read a directory's tokenizer. Raises MissingModelError or CorruptionError."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise MissingModelError(
                f"{directory} has no tokenizer.json; save the model with its fast tokenizer"
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises the bare class
            raise CorruptionError(f"{path} is not a tokenizer: {error}") from error
        # A tokenizer file may carry truncation or padding from training; serving wants neither.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        settings = read_json(directory / "tokenizer_config.json", required=False)
        special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _token_text(settings.get(name))) is not None
        }
        generation = read_json(directory / "generation_config.json", required=False)
        return cls(
            tokenizer,
            _chat_template(directory, settings),
            special,
            _eos_ids(tokenizer, special, config, generation),
            bool(settings.get("add_bos_token", False)),
        )

    @property
    def vocabulary(self) -> int:
        """Tokens with a text, added ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of plain text. ``special`` adds what the model expects around a text (BOS)."""
        tokens = list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        return self._lead + tokens if special and tokens[:1] != self._lead else tokens

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Tokens of a conversation, through the chat template.

        Raises BadInputError when the model has none or the template refuses the messages.
        """
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation as the model expects it."""
        if self._template is None:
            raise BadInputError(
                "this model has no chat template; use the completions endpoint, or a model with one"
            )
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadInputError(f"the chat template refuses these messages: {error}") from error

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of tokens; bytes that make no character become U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, alone. Raises BadInputError for an unknown id."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            raise BadInputError(f"token {token} is not in the vocabulary")
        if self._byte_level and all(char in self._bytes_of_char for char in text):
            return bytes(self._bytes_of_char[char] for char in text)
        if self._byte_pieces:
            piece = _BYTE_PIECE.fullmatch(text)
            return bytes([int(piece[1], 16)]) if piece else text.replace(_SPACE, " ").encode()
        return self.decode([token], skip_special=False).encode("utf-8")

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """A fresh stream of text."""
        return Detokenizer(self, skip_special)


@dataclass(slots=True)
class Detokenizer:
    """Tokens in, text out, one token at a time.

    Text is decoded from a few tokens back, because a token's text may depend on its neighbours,
    and is given out only up to the last whole character.
    """

    tokenizer: ModelTokenizer
    skip_special: bool = True
    _tokens: list[int] = field(default_factory=list)
    _context: int = 0  # tokens before it are settled and need no decoding again
    _given: int = 0  # tokens before it are given out as text

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        self._tokens.append(token)
        before, now = self._texts()
        waiting = len(self._tokens) - self._given
        if len(now) <= len(before) or (
            now.endswith(REPLACEMENT) and waiting < UNFINISHED_TOKENS_MAX
        ):
            return ""
        self._context, self._given = self._given, len(self._tokens)
        return now[len(before) :]

    def finish(self) -> str:
        """What is still held back; bytes that make no character become U+FFFD."""
        before, now = self._texts()
        self._context = self._given = len(self._tokens)
        return now[len(before) :]

    def _texts(self) -> tuple[str, str]:
        decode = self.tokenizer.decode
        before = decode(self._tokens[self._context : self._given], skip_special=self.skip_special)
        now = decode(self._tokens[self._context :], skip_special=self.skip_special)
        return before, now


def _compile(template: str) -> jinja2.Template:
    if len(template) > TEMPLATE_BYTES_MAX:
        raise BadInputError(f"a chat template has at most {TEMPLATE_BYTES_MAX} characters")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise CorruptionError(f"the model's chat template cannot be compiled: {error}") from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    separate = directory / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _token_text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_ids(
    tokenizer: Tokenizer,
    special: Mapping[str, str],
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> tuple[int, ...]:
    found: set[int] = set()
    for source in (generation, config):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    if (text := special.get("eos_token")) is not None:
        token = tokenizer.token_to_id(text)
        found.update([] if token is None else [token])
    if len(found) > EOS_TOKENS_MAX:
        raise BadInputError(f"the model names {len(found)} end tokens, at most {EOS_TOKENS_MAX}")
    return tuple(sorted(found))


def _byte_level_alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte: printable ones stand for themselves,
    the others follow from U+0100 on in order (as GPT-2 defined it)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
