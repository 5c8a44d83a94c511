"""From an evaluation to the decision that is recorded, and back: does it still come out so?

Owns what is stored of an answer. It reads no clock, draws no numbers and writes to no log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.decision import CITED_CHAIN_BYTES, Decision

from .types import PPM, AnyEvaluator, Evaluation, alternatives_digest

_ENCODER = msgspec.msgpack.Encoder()
_NIL = msgspec.Raw(b"\xc0")
_SAMPLE_DOMAIN = b"pagetrail/sample/1\n"


@dataclass(frozen=True, slots=True)
class RecordMode:
    """How many decisions keep all their alternatives: 0 none (reference), 1,000,000 all (full).

    Between the two a decision belongs to the sample by its own digest, so that it is the same
    decision in every run.
    """

    sample_ppm: int

    def __post_init__(self) -> None:
        if not 0 <= self.sample_ppm <= PPM:
            raise BadInputError(
                f"sample_ppm must be from 0 (reference) to {PPM} (full), not {self.sample_ppm}"
            )


REFERENCE = RecordMode(0)
FULL = RecordMode(PPM)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first field in which a decision differs from what its evaluator now answers."""

    field: str  # such as ``choice.worker``, ``reason`` or ``alternatives.ttft_ns[3]``
    recorded: object
    derived: object

    def __str__(self) -> str:
        return f"{self.field}: recorded {self.recorded!r}, derived {self.derived!r}"


def record(
    bound_index: int,
    evaluator: AnyEvaluator,
    weights: msgspec.Struct,
    inputs: msgspec.Struct,
    *,
    subject: int,
    as_of: int,
    chain: bytes,
    recorded: msgspec.Struct,
    mode: RecordMode,
) -> tuple[Evaluation[Any], Decision]:
    """Evaluate, and build the decision fact.

    ``bound_index`` is the evaluator's place in the epoch's table; ``chain`` the command chain of
    the view that the inputs were read from, of which the first bytes are cited; ``recorded`` what
    of the inputs no fact implies.
    """
    evaluation = evaluator.evaluate(weights, inputs)
    encode = _ENCODER.encode
    alternatives = evaluation.encoded_alternatives()
    digest = alternatives_digest(alternatives)
    keep_all = mode.sample_ppm == PPM or (
        mode.sample_ppm > 0 and _in_sample(mode.sample_ppm, digest, chain, subject)
    )
    decision = Decision(
        subject=subject,
        evaluator=bound_index,
        as_of=as_of,
        chain=chain[:CITED_CHAIN_BYTES],
        recorded=msgspec.Raw(encode(recorded)),
        choice=msgspec.Raw(encode(evaluation.choice)),
        reason=evaluation.reason,
        tie_break=evaluation.tie_break,
        digest=digest,
        alternatives=msgspec.Raw(alternatives) if keep_all else _NIL,
    )
    return evaluation, decision


def rederive(
    decision: Decision, evaluator: AnyEvaluator, weights: msgspec.Struct, inputs: msgspec.Struct
) -> Mismatch | None:
    """Evaluate again and compare with what was recorded, byte for byte.

    The order is choice, reason, tie-break, alternatives (when they were recorded in full), their
    digest.
    """
    evaluation = evaluator.evaluate(weights, inputs)
    choice = _ENCODER.encode(evaluation.choice)
    if bytes(decision.choice) != choice:
        return _choice_mismatch(bytes(decision.choice), evaluation.choice)
    if decision.reason != evaluation.reason:
        return Mismatch("reason", decision.reason, evaluation.reason)
    if decision.tie_break != evaluation.tie_break:
        return Mismatch("tie_break", decision.tie_break, evaluation.tie_break)
    alternatives = evaluation.encoded_alternatives()
    stored = bytes(decision.alternatives)
    if stored not in (b"\xc0", alternatives):
        return _alternatives_mismatch(stored, evaluation.columns, evaluator)
    digest = alternatives_digest(alternatives)
    if decision.digest != digest:
        return Mismatch("digest", decision.digest.hex(), digest.hex())
    return None


def _in_sample(sample_ppm: int, digest: bytes, chain: bytes, subject: int) -> bool:
    own = hashlib.sha256(_SAMPLE_DOMAIN + digest + chain + b"%d" % subject).digest()
    return int.from_bytes(own[:8], "big") * PPM >> 64 < sample_ppm


def _choice_mismatch(stored: bytes, derived: msgspec.Struct) -> Mismatch:
    try:
        recorded = msgspec.msgpack.decode(stored, type=type(derived))
    except msgspec.MsgspecError:
        return Mismatch("choice", stored.hex(), derived)
    for field in derived.__struct_fields__:
        old, new = getattr(recorded, field), getattr(derived, field)
        if old != new:
            return Mismatch(f"choice.{field}", old, new)
    return Mismatch("choice", stored.hex(), _ENCODER.encode(derived).hex())


def _alternatives_mismatch(
    stored: bytes, derived: Sequence[Sequence[int]], evaluator: AnyEvaluator
) -> Mismatch:
    try:
        recorded = msgspec.msgpack.decode(stored, type=tuple[tuple[int, ...], ...])
    except msgspec.MsgspecError:
        return Mismatch("alternatives", stored.hex(), tuple(derived))
    if len(recorded) != len(derived):
        return Mismatch("alternatives", recorded, tuple(derived))
    for term, old, new in zip(evaluator.terms, recorded, derived, strict=True):
        if len(old) != len(new):
            return Mismatch(f"alternatives.{term.name}", old, tuple(new))
        for row, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after:
                return Mismatch(f"alternatives.{term.name}[{row}]", before, after)
    return Mismatch("alternatives", stored.hex(), _ENCODER.encode(derived).hex())
