"""Measured costs, smoothed: what a worker believes its work to take.

Owns the fold over ``Measured`` facts. It measures nothing; a configured cost stands until the
first sample.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.catalog.kinds.worker import Metric

SMOOTHING = 5  # a new sample moves the value by a fifth of its distance
VALUE_MAX = 2**62

_ENCODER = msgspec.msgpack.Encoder()


class Cost(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One metric, in its unit. Without samples ``least``, ``most`` and ``last`` are 0."""

    value: int  # the configured cost until there is a sample, then the smoothed one
    samples: int
    least: int
    most: int
    last: int


class Calibration(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Every metric's cost, in order of ``Metric``."""

    costs: tuple[Cost, ...]

    def values(self) -> tuple[int, ...]:
        """Costs by metric, as observations carry them."""
        return tuple(cost.value for cost in self.costs)

    def samples(self) -> tuple[int, ...]:
        """How many samples stand behind each of them."""
        return tuple(cost.samples for cost in self.costs)


def configured(costs: Iterable[tuple[int, int]]) -> Calibration:
    """The state before any sample. Raises BadInputError unless every metric has one cost."""
    pairs = list(costs)
    given = dict(pairs)
    missing = [metric.name.lower() for metric in Metric if metric not in given]
    unknown = sorted(set(given) - set(Metric))
    if missing or unknown or len(given) != len(pairs):
        raise BadInputError(
            "costs must name every metric once; "
            f"missing: {', '.join(missing) or 'none'}; unknown numbers: {unknown or 'none'}; "
            f"named twice: {len(pairs) - len(given)}"
        )
    for metric in Metric:
        _check(metric, given[metric])
    return Calibration(tuple(Cost(given[metric], 0, 0, 0, 0) for metric in Metric))


def observe(state: Calibration, metric: int, value: int) -> Calibration:
    """Fold one sample in: the first sets the value, each later one moves it by a fifth.

    ``new = old + (value - old) // 5``, floored. Raises BadInputError for an unknown metric or a
    value outside ``[0, 2**62]``.
    """
    if not 0 <= metric < len(state.costs):
        raise BadInputError(f"there is no metric {metric}; known are 0 to {len(state.costs) - 1}")
    _check(Metric(metric), value)
    old = state.costs[metric]
    if old.samples == 0:
        new = Cost(value, 1, value, value, value)
    else:
        new = Cost(
            value=old.value + (value - old.value) // SMOOTHING,
            samples=old.samples + 1,
            least=min(old.least, value),
            most=max(old.most, value),
            last=value,
        )
    return Calibration((*state.costs[:metric], new, *state.costs[metric + 1 :]))


def encode(state: Calibration) -> bytes:
    """Canonical bytes, as keyframes carry them."""
    return _ENCODER.encode(state)


def decode(encoded: bytes) -> Calibration:
    """The inverse of ``encode``. Raises CorruptionError for anything that it did not write."""
    try:
        state = msgspec.msgpack.decode(encoded, type=Calibration)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"this is no calibration state: {error}") from error
    if len(state.costs) != len(Metric) or _ENCODER.encode(state) != encoded:
        raise CorruptionError(
            f"this is no calibration state: expected {len(Metric)} costs in canonical form"
        )
    return state


def _check(metric: Metric, value: int) -> None:
    if not 0 <= value <= VALUE_MAX:
        raise BadInputError(f"{metric.name.lower()} must be from 0 to {VALUE_MAX}, not {value}")
