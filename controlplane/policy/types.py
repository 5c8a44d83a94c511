"""What an evaluator is: a named, versioned pure function from complete inputs to an evaluation.

An evaluator reads nothing but its arguments, holds no state, and uses integers only. Changing what
it does means a new version under a new name; old versions stay in the registry so that old
decisions can be re-derived.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from pagetrail.catalog.facts import KindId

PPM = 1_000_000

_ENCODER = msgspec.msgpack.Encoder()

W = TypeVar("W", bound=msgspec.Struct, contravariant=True)
I = TypeVar("I", bound=msgspec.Struct, contravariant=True)  # noqa: E741 - W, I, C: weights, inputs, choice
C = TypeVar("C", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True)
class Term:
    """One column of the alternatives: what it is and in which unit."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class Evaluation(Generic[C]):
    """What an evaluator answers.

    ``columns`` holds every alternative, column by column in the order of the evaluator's
    ``terms``; rows stand in the order of the inputs, so no order of evaluation shows.
    """

    choice: C
    reason: int  # the kind's Reason
    tie_break: int  # 0: the first criterion settled it; n: the n-th tie-break did
    columns: tuple[tuple[int, ...], ...]

    def encoded_alternatives(self) -> bytes:
        """The canonical bytes of all alternatives; what a decision's digest is taken over."""
        return _ENCODER.encode(self.columns)


def alternatives_digest(encoded: bytes) -> bytes:
    """SHA-256 of ``Evaluation.encoded_alternatives()``."""
    return hashlib.sha256(encoded).digest()


class Evaluator(Protocol[W, I, C]):
    """A policy. Implementations are stateless objects in the registry."""

    @property
    def name(self) -> str:
        """``family/policy@version``."""

    @property
    def kind(self) -> KindId:
        """The kind of decision it makes."""

    @property
    def weights_type(self) -> type[msgspec.Struct]:
        """Its weights; the struct's defaults are the default weights."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The columns of its alternatives."""

    def evaluate(self, weights: W, inputs: I) -> Evaluation[C]:
        """Decide. Never raises for inputs that the kind's builder can produce."""


AnyEvaluator = Evaluator[Any, Any, Any]
