"""All evaluators by name, and how one is put in force with its weights.

Owns the names. A name carries a version and stands for one behaviour for ever; changing what an
evaluator does adds a name. Nothing registers itself and nothing can be replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import msgspec

from pagetrail.catalog.errors import BadInputError, CorruptionError, PagetrailError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.identity import canonical
from pagetrail.catalog.kinds.worker import Bound

from .admission import Reserve
from .checkpoint import ExpectedValue
from .keep import WithinLimits
from .preemption import MinCost
from .residency_frequency import Gdsf, LfuAging
from .residency_recency import LeafLru, Lru2, SeedOrder
from .residency_value import ValueDensity
from .restore import MinCompletion
from .routing import MinTtft
from .types import AnyEvaluator

_DOMAIN = b"pagetrail/evaluator/1\n"
_ENCODER = msgspec.msgpack.Encoder()


class UnknownEvaluatorError(PagetrailError):
    """A name, or a version, that this build does not have."""


def _by_name(evaluators: Sequence[AnyEvaluator]) -> Mapping[str, AnyEvaluator]:
    return MappingProxyType({evaluator.name: evaluator for evaluator in evaluators})


EVALUATORS: Mapping[str, AnyEvaluator] = _by_name(
    (
        MinTtft(),
        Reserve("admission/reserve@1", shares=False),
        Reserve("admission/reserve@2", shares=True),
        LeafLru(),
        Lru2(),
        SeedOrder(),
        LfuAging(),
        Gdsf(),
        ValueDensity("residency/value-density@1", durable_only=True),
        ValueDensity("residency/value-density-untiered@1", durable_only=False),
        MinCompletion("restore/min-completion@1", KindId.RESTORE),
        MinCompletion("resume/min-completion@1", KindId.RESUME),
        ExpectedValue(),
        WithinLimits("keep/within-limits@1", ram=False),
        WithinLimits("keep/within-limits@2", ram=True),
        MinCost("preempt/min-cost@1", shares=False),
        MinCost("preempt/min-cost@2", shares=True),
    )
)


def evaluator(name: str) -> AnyEvaluator:
    """The evaluator of that name. Raises UnknownEvaluatorError, naming the nearest ones."""
    found = EVALUATORS.get(name)
    if found is not None:
        return found
    family = name.partition("@")[0]
    versions = [known for known in EVALUATORS if known.partition("@")[0] == family]
    if versions:
        raise UnknownEvaluatorError(
            f"this build has no {name}; of that evaluator it has {', '.join(sorted(versions))}; "
            "use the build that made the decision, or name one of these"
        )
    near = get_close_matches(name, EVALUATORS) or sorted(EVALUATORS)
    raise UnknownEvaluatorError(
        f"there is no evaluator {name!r}; names have the form family/policy@version; "
        f"did you mean {' or '.join(near)}?"
    )


def weights_from(name: str, values: Mapping[str, int] | None = None) -> msgspec.Struct:
    """An evaluator's weights: its defaults, with ``values`` by field name in their place.

    Raises BadInputError for a name the evaluator does not weigh, or a value outside its bounds.
    """
    weights_type = evaluator(name).weights_type
    fields = weights_type.__struct_fields__
    for key in values or {}:
        if key not in fields:
            near = get_close_matches(key, fields, n=1) or fields
            hint = f"did you mean {' or '.join(near)}?" if near else "it has no weights at all"
            raise BadInputError(f"{name} has no weight {key!r}; {hint}")
    made = weights_type(**(values or {}))
    _decode(name, _ENCODER.encode(made))
    return made


def bind(name: str, weights: msgspec.Struct | None = None, *, rules: Sequence[bytes] = ()) -> Bound:
    """An evaluator in force with its weights (default: its defaults).

    ``rules`` are the digests of the rule texts that its inputs are looked up by, in a stated
    order. Raises BadInputError for weights that are not the evaluator's or outside their bounds.
    """
    found = evaluator(name)
    if weights is None:
        weights = found.weights_type()
    if type(weights) is not found.weights_type:
        raise BadInputError(
            f"{name} takes {found.weights_type.__name__}, not {type(weights).__name__}"
        )
    encoded = _ENCODER.encode(weights)
    _decode(name, encoded)
    return Bound(int(found.kind), name, encoded, _digest(name, encoded, rules))


def unbind(bound: Bound, *, rules: Sequence[bytes] = ()) -> tuple[AnyEvaluator, msgspec.Struct]:
    """The evaluator and weights that a recorded ``Bound`` names; the inverse of ``bind``.

    Raises UnknownEvaluatorError when this build lacks it, CorruptionError when the record's parts
    do not belong together.
    """
    found = evaluator(bound.evaluator)
    if bound.decision_kind != found.kind:
        raise CorruptionError(
            f"{bound.evaluator} is bound to decisions of kind {bound.decision_kind}; it makes "
            f"those of kind {int(found.kind)}"
        )
    if bound.digest != _digest(bound.evaluator, bound.weights, rules):
        raise CorruptionError(
            f"the digest of {bound.evaluator} is not that of its recorded weights and these rules"
        )
    try:
        return found, _decode(bound.evaluator, bound.weights)
    except BadInputError as error:
        raise CorruptionError(str(error)) from error


def _digest(name: str, encoded_weights: bytes, rules: Sequence[bytes]) -> bytes:
    parts = canonical([name, encoded_weights, list(rules)])
    return hashlib.sha256(_DOMAIN + parts).digest()


def _decode(name: str, encoded: bytes) -> msgspec.Struct:
    weights_type: type[Any] = evaluator(name).weights_type
    try:
        decoded: msgspec.Struct = msgspec.msgpack.decode(encoded, type=weights_type)
    except msgspec.MsgspecError as error:
        raise BadInputError(f"these are no weights of {name}: {error}") from error
    if _ENCODER.encode(decoded) != encoded:
        raise BadInputError(
            f"these are no weights of {name}: not in their canonical form, every field in order"
        )
    return decoded
