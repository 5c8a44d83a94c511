"""Which running streams give their pages up so that another can grow.

Owns ``preempt/min-cost``, with and without tenants' shares. It never moves rows or touches a page
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pagetrail.catalog.facts import KindId

from .inputs import PreemptCandidate, PreemptChoice, PreemptInputs, PreemptReason
from .ratios import comparable
from .types import Evaluation, Term


class MinCostWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none: every term is a measured or configured time."""


class MinCost:
    """The streams whose pages cost least to give up, one after the other until the need is met.

    Formula, renewed after every victim: ``useful`` is the sum over groups of ``min(pages, still
    needed)``; ``cost = swap`` when swapping costs no more than recomputing and the stream's bytes
    fit what is left of the swap room, else ``recompute``. The next victim has the lowest ``cost /
    useful``, compared by cross-multiplication: with one page needed that is the lowest cost.

    Constraints, first that applies: the stream has a higher priority than the one that asks; with
    ``shares``, it is charged to another account that is within its quota; it frees nothing that is
    needed.

    Order: with ``shares``, streams of accounts beyond their quota first; then cost per useful page,
    then the youngest (latest arrival), then the higher stream number. A victim that later ones
    made superfluous is left out. A plan that cannot reach the need preempts nothing; with
    ``shares`` the stream that asks gives way itself, and stands as the last alternative.
    ``tie_break`` tells what settled the last victim.
    """

    kind = KindId.PREEMPT
    weights_type = MinCostWeights
    terms = (
        Term("stream", "stream number"),
        Term("reason", "PreemptReason; 0 chosen"),
        Term("swap", "1 swap out, 0 recompute"),
        Term("cost_ns", "ns"),
        Term("freed_pages", "pages, all groups"),
        Term("arrival_us", "us, worker clock"),
    )

    def __init__(self, name: str, *, shares: bool) -> None:
        self.name = name
        self._shares = shares

    def evaluate(self, weights: MinCostWeights, inputs: PreemptInputs) -> Evaluation[PreemptChoice]:
        candidates = list(inputs.candidates)
        barred = [self._barred(inputs, candidate) for candidate in candidates]
        left = [index for index, reason in enumerate(barred) if not reason]
        victims: list[_Offer] = []
        tie_break = 0
        remaining = list(inputs.need)
        swap_bytes_free = inputs.swap_bytes_free
        while any(remaining):
            best, tie_break = self._best_of(inputs, left, remaining, swap_bytes_free)
            if best is None:
                break
            victims.append(best)
            left.remove(best.index)
            swap_bytes_free -= best.swap_bytes
            remaining = [
                max(0, wanted - pages)
                for wanted, pages in zip(remaining, candidates[best.index].pages, strict=True)
            ]
        reached = not any(remaining)
        reasons = [int(reason or PreemptReason.NOT_NEEDED) for reason in barred]
        if inputs.asker is not None and self._shares:
            candidates.append(inputs.asker)
            reasons.append(int(PreemptReason.NOT_NEEDED))
        offers = [
            self._offer(inputs, candidate, index, inputs.swap_bytes_free)
            for index, candidate in enumerate(candidates)
        ]
        for victim in victims:
            offers[victim.index] = victim
            reasons[victim.index] = int(
                PreemptReason.NOT_NEEDED if reached else PreemptReason.SHORTFALL
            )
        chosen = _pruned(inputs, victims) if reached else []
        reason = PreemptReason.CHEAPEST if reached else PreemptReason.SHORTFALL
        if not reached and len(candidates) > len(inputs.candidates):
            chosen = offers[-1:]
            reason = PreemptReason.GIVES_WAY
        for victim in chosen:
            reasons[victim.index] = int(PreemptReason.ELIGIBLE)
        choice = PreemptChoice(tuple((candidates[v.index].stream, v.swap) for v in chosen))
        columns = (
            tuple(candidate.stream for candidate in candidates),
            tuple(reasons),
            tuple(int(offer.swap) for offer in offers),
            tuple(offer.cost_ns for offer in offers),
            tuple(sum(candidate.pages) for candidate in candidates),
            tuple(candidate.arrival_us for candidate in candidates),
        )
        return Evaluation(choice, int(reason), tie_break if reached else 0, columns)

    def _barred(self, inputs: PreemptInputs, candidate: PreemptCandidate) -> PreemptReason | None:
        asker = inputs.asker
        if candidate.priority > inputs.priority:
            return PreemptReason.HIGHER_PRIORITY
        if self._shares and asker is not None:
            own = candidate.account == asker.account
            return None if own or candidate.borrows else PreemptReason.WITHIN_QUOTA
        return None

    def _offer(
        self, inputs: PreemptInputs, candidate: PreemptCandidate, index: int, swap_bytes_free: int
    ) -> _Offer:
        size_bytes = candidate.swap_bytes
        if not self._shares:
            size_bytes = sum(
                pages * page_bytes
                for pages, page_bytes in zip(candidate.pages, inputs.page_bytes, strict=True)
            )
        if candidate.swap_ns <= candidate.recompute_ns and size_bytes <= swap_bytes_free:
            return _Offer(index, candidate.swap_ns, True, size_bytes)
        return _Offer(index, candidate.recompute_ns, False, 0)

    def _best_of(
        self,
        inputs: PreemptInputs,
        left: Sequence[int],
        remaining: Sequence[int],
        swap_bytes_free: int,
    ) -> tuple[_Offer | None, int]:
        """The next victim, and which criterion set it apart from the one after it."""
        candidates = inputs.candidates
        useful = {index: _useful_pages(candidates[index], remaining) for index in left}
        offers = [
            self._offer(inputs, candidates[index], index, swap_bytes_free)
            for index in left
            if useful[index]
        ]
        if not offers:
            return None, 0
        costs = comparable([offer.cost_ns for offer in offers], [useful[o.index] for o in offers])
        keys = []
        for place, (cost, offer) in enumerate(zip(costs, offers, strict=True)):
            one = candidates[offer.index]
            key = (cost, -one.arrival_us, -offer.index, place)
            keys.append((int(not one.borrows), *key) if self._shares else key)
        keys.sort()
        best = offers[keys[0][-1]]
        if len(keys) == 1:
            return best, 0
        pairs = enumerate(zip(keys[0], keys[1], strict=True))
        return best, next(place for place, (a, b) in pairs if a != b)


@dataclass(frozen=True, slots=True)
class _Offer:
    """How one stream would be preempted, with the swap room there is at that point."""

    index: int
    cost_ns: int
    swap: bool
    swap_bytes: int  # 0 when recomputed


def _useful_pages(candidate: PreemptCandidate, remaining: Sequence[int]) -> int:
    return sum(min(pages, wanted) for pages, wanted in zip(candidate.pages, remaining, strict=True))


def _pruned(inputs: PreemptInputs, victims: Sequence[_Offer]) -> list[_Offer]:
    """The victims without those that the others can do without, looked at from the last on."""
    pages = [inputs.candidates[victim.index].pages for victim in victims]
    slack = [-need for need in inputs.need]
    for freed in pages:
        slack = [spare + count for spare, count in zip(slack, freed, strict=True)]
    kept: list[_Offer] = []
    for victim, freed in zip(reversed(victims), reversed(pages), strict=True):
        if all(count <= spare for count, spare in zip(freed, slack, strict=True)):
            slack = [spare - count for count, spare in zip(freed, slack, strict=True)]
        else:
            kept.append(victim)
    kept.reverse()
    return kept
