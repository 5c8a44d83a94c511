"""From logits to a token: greedy or seeded, with penalties and filters, and log-probabilities.

A draw is a function of (seed, position) only: no state is kept between tokens, so a request that
is preempted, moved to another worker or batched otherwise draws what it would have drawn. The
sampler belongs to a request and is no part of any state's identity.

Order of the steps: penalties and bias, temperature, top-k, top-p, min-p, draw. Everything is
computed in float64 over one row at a time, sums from left to right.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagetrail.catalog.errors import BadInputError
from pagetrail.kernels.abi import Floats

Doubles = npt.NDArray[np.float64]

TOP_LOGPROBS_MAX = 20
LOGIT_BIAS_MAX = 1_024
SEED_MAX = 2**64 - 1
PENALTY_MAX = 2.0
REPETITION_MAX = 100.0
TEMPERATURE_MAX = 2.0
_DRAW_DOMAIN = b"pagetrail/draw/1\n"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Temperature 0 is greedy; top_k 0 keeps every token."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None  # None: none; 0: of the chosen token; n: and of the best n

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, TEMPERATURE_MAX),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -PENALTY_MAX, PENALTY_MAX),
            ("frequency_penalty", self.frequency_penalty, -PENALTY_MAX, PENALTY_MAX),
            ("repetition_penalty", self.repetition_penalty, 0.0, REPETITION_MAX),
            ("top_k", self.top_k, 0, 2**31 - 1),
            ("seed", self.seed, 0, SEED_MAX),
            ("logprobs", self.logprobs or 0, 0, TOP_LOGPROBS_MAX),
        ):
            if not low <= value <= high:
                raise BadInputError(f"{name} must lie in [{low}, {high}], not {value}")
        if self.top_p == 0.0 or self.repetition_penalty == 0.0:
            raise BadInputError("top_p and repetition_penalty must be greater than 0")
        if len(self.logit_bias) > LOGIT_BIAS_MAX:
            raise BadInputError(f"logit_bias names at most {LOGIT_BIAS_MAX} tokens")
        if not all(math.isfinite(bias) and token >= 0 for token, bias in self.logit_bias):
            raise BadInputError("logit_bias needs token ids and finite numbers")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(slots=True)
class TokenCounts:
    """Which tokens a request has seen, for the penalties; rebuilt from its tokens at any time."""

    prompt: frozenset[int]
    generated: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, prompt: Iterable[int], generated: Iterable[int] = ()) -> TokenCounts:
        return cls(frozenset(prompt), Counter(generated))

    def add(self, token: int) -> None:
        self.generated[token] += 1


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token. Log-probabilities are of the model's own logits, before any step above."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: Floats, params: SamplingParams, position: int, counts: TokenCounts) -> Sampled:
    """Choose the token of ``position`` from ``logits[vocabulary]``.

    Among equal logits the lowest id comes first. Raises BadInputError when a logit is NaN or none
    is finite: the row that gave them was read from pages that hold no valid state.
    """
    if np.isnan(logits).any() or not np.isfinite(logits.max()):
        raise BadInputError(
            f"the logits at position {position} are not finite; the model's state is not valid"
        )
    shaped = _penalised(logits, params, counts)
    token = int(np.argmax(shaped)) if params.greedy else _draw(shaped, params, position)
    if params.logprobs is None:
        return Sampled(token)
    return Sampled(token, *logprobs_of(logits, token, params.logprobs))


def logprobs_of(
    logits: Floats, token: int, best: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of ``token``, and the ``best`` tokens with theirs, best first."""
    values = logits.astype(np.float64)
    top = float(values.max())
    total = top + math.log(float(np.cumsum(np.exp(values - top))[-1]))
    order = _best(values, best)
    return float(values[token]) - total, tuple((int(i), float(values[i]) - total) for i in order)


def uniform(seed: int, position: int) -> float:
    """The draw at a position, in [0, 1): the first 53 bits of a digest of both numbers."""
    body = seed.to_bytes(8, "big") + position.to_bytes(8, "big")
    digest = hashlib.sha256(_DRAW_DOMAIN + body).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def parse_logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """The wire form (token ids as text) as sorted pairs. Raises BadInputError for other keys."""
    try:
        return tuple(sorted((int(token), float(value)) for token, value in bias.items()))
    except (TypeError, ValueError) as error:
        raise BadInputError("logit_bias maps token ids to numbers") from error


def _penalised(logits: Floats, params: SamplingParams, counts: TokenCounts) -> Doubles:
    shaped = logits.astype(np.float64)
    if params.repetition_penalty != 1.0 and (seen := counts.prompt | counts.generated.keys()):
        at = np.fromiter(sorted(seen), np.int64)
        values = shaped[at]
        shaped[at] = np.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if counts.generated and (params.presence_penalty or params.frequency_penalty):
        at = np.fromiter(counts.generated, np.int64)
        times = np.fromiter(counts.generated.values(), np.float64)
        shaped[at] -= params.presence_penalty + params.frequency_penalty * times
    for token, bias in params.logit_bias:
        if token >= len(shaped):
            raise BadInputError(f"logit_bias names token {token}, the vocabulary has {len(shaped)}")
        shaped[token] += bias
    return shaped


def _draw(shaped: Doubles, params: SamplingParams, position: int) -> int:
    scaled = (shaped - shaped.max()) / params.temperature
    kept = params.top_k if 0 < params.top_k < len(scaled) else len(scaled)
    order = _best(scaled, kept)
    weights = np.exp(scaled[order])
    cumulative = np.cumsum(weights)
    if params.top_p < 1.0:
        # The smallest leading set whose share reaches top_p; the first token always stays.
        count = int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
        order, weights, cumulative = order[:count], weights[:count], cumulative[:count]
    if params.min_p > 0.0:
        count = int(np.count_nonzero(weights >= params.min_p * weights[0]))
        order, cumulative = order[:count], cumulative[:count]
    target = uniform(params.seed, position) * cumulative[-1]
    return int(order[min(int(np.searchsorted(cumulative, target, "right")), len(order) - 1)])


def _best(values: Doubles, count: int) -> npt.NDArray[np.int64]:
    """Indices of the ``count`` largest values, largest first, lower index first among equals."""
    if count == 0:
        return np.zeros(0, np.int64)
    if count < len(values):
        # Everything at least as large as the count-th value, so that ties are cut by index.
        limit = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= limit)
    else:
        candidates = np.arange(len(values))
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
