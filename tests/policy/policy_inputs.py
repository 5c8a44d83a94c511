"""Inputs for policy tests: short builders, and a page-level model of what an eviction frees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from pagetrail.controlplane.policy.inputs import (
    AdmitInputs,
    CheckpointInputs,
    EvictInputs,
    KeepInputs,
    PreemptCandidate,
    PreemptInputs,
    RestoreInputs,
    RestoreOption,
    RouteInputs,
)
from pagetrail.controlplane.policy.registry import evaluator
from pagetrail.controlplane.policy.types import Evaluation

MS = 1_000_000


def evaluate(name: str, inputs: msgspec.Struct | EvictRows, **weights: int) -> Evaluation[Any]:
    found = evaluator(name)
    complete = inputs.columns() if isinstance(inputs, EvictRows) else inputs
    return found.evaluate(found.weights_type(**weights), complete)


def column(name: str, evaluation: Evaluation[Any], term: str) -> tuple[int, ...]:
    """One named column of the alternatives."""
    return evaluation.columns[[t.name for t in evaluator(name).terms].index(term)]


class Boundary(msgspec.Struct, frozen=True):
    """One way for a worker to start."""

    tier: int
    tokens: int
    load_ns: int
    restore_ns: int


class RouteCandidate(msgspec.Struct, frozen=True):
    """A worker and its ways to start, as a row; the inputs hold columns."""

    worker: str
    worker_epoch: int
    online: bool
    model_loaded: bool
    context_tokens: int
    verify_rows: int
    free_pages: int
    reclaimable_pages: int
    queue_ns: int
    prefill_ns_per_token: int
    first_token_ns: int
    boundaries: tuple[Boundary, ...]


def route_inputs(
    prompt: int, new: int, excluded: tuple[str, ...], candidates: Sequence[RouteCandidate]
) -> RouteInputs:
    """Inputs with the candidates in the order that the contract asks for; pages of 16."""
    rows = sorted(candidates, key=lambda one: one.worker.encode())
    ways = [(place, way) for place, row in enumerate(rows) for way in row.boundaries]
    return RouteInputs(
        prompt_tokens=prompt,
        max_new_tokens=new,
        page_tokens=16,
        excluded=excluded,
        workers=tuple(row.worker for row in rows),
        worker_epochs=tuple(row.worker_epoch for row in rows),
        online=tuple(row.online for row in rows),
        model_loaded=tuple(row.model_loaded for row in rows),
        context_tokens=tuple(row.context_tokens for row in rows),
        verify_rows=tuple(row.verify_rows for row in rows),
        available_pages=tuple(row.free_pages + row.reclaimable_pages for row in rows),
        queue_ns=tuple(row.queue_ns for row in rows),
        prefill_ns_per_token=tuple(row.prefill_ns_per_token for row in rows),
        first_token_ns=tuple(row.first_token_ns for row in rows),
        starts=tuple(place for place, _ in ways),
        tiers=tuple(way.tier for _, way in ways),
        tokens=tuple(way.tokens for _, way in ways),
        load_ns=tuple(way.load_ns for _, way in ways),
        restore_ns=tuple(way.restore_ns for _, way in ways),
    )


def worker(name: str, *boundaries: Boundary, **changes: Any) -> RouteCandidate:
    base = RouteCandidate(
        worker=name,
        worker_epoch=1,
        online=True,
        model_loaded=True,
        context_tokens=8_192,
        verify_rows=0,
        free_pages=1_000,
        reclaimable_pages=0,
        queue_ns=0,
        prefill_ns_per_token=0,
        first_token_ns=0,
        boundaries=boundaries or (Boundary(-1, 0, 0, 0),),
    )
    return msgspec.structs.replace(base, **changes)


def admit_inputs(**changes: Any) -> AdmitInputs:
    base = AdmitInputs(
        prompt_tokens=100,
        max_new_tokens=28,
        context_tokens=4_096,
        compatible=True,
        need=(8,),
        adopted=(0,),
        copy_on_write=(0,),
        available=(100,),
        reclaimable=(0,),
        total=(100,),
        running=0,
        lanes=8,
        waiting_ahead=0,
        bypassed=0,
        restore_ns=0,
        recompute_ns=0,
    )
    return msgspec.structs.replace(base, **changes)


class EvictRun(msgspec.Struct, frozen=True):
    """A run of page columns as a row; the inputs hold columns."""

    pages: tuple[int, ...]  # per group
    columns: int
    holders: int


class EvictCandidate(msgspec.Struct, frozen=True):
    """A kept entry as a row. ``runs``: its own, then the others that it holds."""

    entry: int
    runs: tuple[int, ...]
    last_access: int
    previous_access: int
    accesses: int
    depth_columns: int
    resumed: bool
    superseded: bool
    durable: bool
    pinned: bool
    dirty: bool
    reuse_ppm: int
    recompute_ns: int
    reload_ns: int
    sharing_ns: int
    slo_ns: int


class EvictRows(msgspec.Struct, frozen=True):
    """The inputs of an eviction, row by row."""

    need: tuple[int, ...]
    runs: tuple[EvictRun, ...]
    candidates: tuple[EvictCandidate, ...]

    def columns(self) -> EvictInputs:
        groups = range(len(self.need))
        return EvictInputs(
            need=self.need,
            run_pages=tuple(tuple(run.pages[group] for run in self.runs) for group in groups),
            run_columns=tuple(run.columns for run in self.runs),
            run_holders=tuple(run.holders for run in self.runs),
            entries=tuple(c.entry for c in self.candidates),
            own_runs=tuple(c.runs[0] for c in self.candidates),
            further_runs=tuple(c.runs[1:] for c in self.candidates),
            last_access=tuple(c.last_access for c in self.candidates),
            previous_access=tuple(c.previous_access for c in self.candidates),
            accesses=tuple(c.accesses for c in self.candidates),
            depth_columns=tuple(c.depth_columns for c in self.candidates),
            resumed=tuple(c.resumed for c in self.candidates),
            superseded=tuple(c.superseded for c in self.candidates),
            durable=tuple(c.durable for c in self.candidates),
            pinned=tuple(c.pinned for c in self.candidates),
            dirty=tuple(c.dirty for c in self.candidates),
            reuse_ppm=tuple(c.reuse_ppm for c in self.candidates),
            recompute_ns=tuple(c.recompute_ns for c in self.candidates),
            reload_ns=tuple(c.reload_ns for c in self.candidates),
            sharing_ns=tuple(c.sharing_ns for c in self.candidates),
            slo_ns=tuple(c.slo_ns for c in self.candidates),
            entries_cut=0,
        )


def entry(number: int, *runs: int, **changes: Any) -> EvictCandidate:
    base = EvictCandidate(
        entry=number,
        runs=runs,
        last_access=0,
        previous_access=-1,
        accesses=1,
        depth_columns=1,
        resumed=False,
        superseded=False,
        durable=True,
        pinned=False,
        dirty=False,
        reuse_ppm=0,
        recompute_ns=0,
        reload_ns=0,
        sharing_ns=0,
        slo_ns=0,
    )
    return msgspec.structs.replace(base, **changes)


def evict_inputs(
    need: Sequence[int], runs: Sequence[EvictRun], candidates: Sequence[EvictCandidate]
) -> EvictRows:
    """Inputs in the order that the contract asks for."""
    ordered = sorted(candidates, key=lambda c: (c.last_access, c.entry))
    return EvictRows(tuple(need), tuple(runs), tuple(ordered))


class PageModel:
    """Every page by itself, with the set of those who hold it. Knows nothing of plans."""

    def __init__(self, inputs: EvictRows) -> None:
        self.groups = len(inputs.need)
        self.columns = [run.columns for run in inputs.runs]
        self.runs_of = {c.entry: c.runs for c in inputs.candidates}
        self.holders: dict[tuple[int, int, int], set[str]] = {}  # (run, group, column)
        for number, run in enumerate(inputs.runs):
            listed = {f"entry {c.entry}" for c in inputs.candidates if number in c.runs}
            others = {f"other {n}" for n in range(run.holders - len(listed))}
            for group, pages in enumerate(run.pages):
                for place in range(run.columns - pages, run.columns):
                    self.holders[number, group, place] = listed | others

    def cut(self, number: int, columns: int) -> None:
        """Cut columns from the tail of the entry's own run; a whole cut lets all its runs go."""
        runs = self.runs_of[number]
        first_cut = self.columns[runs[0]] - columns
        let_go = set(runs) if first_cut == 0 else set()
        for (run, _, place), held_by in self.holders.items():
            if run in let_go or (run == runs[0] and place >= first_cut):
                held_by.discard(f"entry {number}")

    def tail(self, number: int, columns: int) -> list[set[str]]:
        """Who holds each page of the last columns of the entry's own run."""
        own = self.runs_of[number][0]
        return [
            held_by
            for (run, _, place), held_by in self.holders.items()
            if run == own and place >= self.columns[own] - columns
        ]

    def freed(self) -> tuple[int, ...]:
        free = [0] * self.groups
        for (_, group, _), held_by in self.holders.items():
            free[group] += not held_by
        return tuple(free)


@st.composite
def trees(draw: st.DrawFn, *, groups: int = 1) -> EvictRows:
    """Kept prompts as a tree: a node holds its own run and its parent's, streams hold paths."""
    count = draw(st.integers(1, 10))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    columns = [draw(st.integers(1, 4)) for _ in range(count)]
    holders = [1 + parents.count(node) for node in range(count)]
    for end in draw(st.lists(st.integers(0, count - 1), max_size=2)):
        node = end
        while node >= 0:
            holders[node] += 1
            node = parents[node]
    runs = [
        EvictRun((columns[node],) * groups, columns[node], holders[node]) for node in range(count)
    ]
    numbers = draw(st.permutations(range(1, count + 1)))
    candidates = [
        entry(
            numbers[node],
            *((node,) if parents[node] < 0 else (node, parents[node])),
            **draw(_STANDING),
        )
        for node in range(count)
    ]
    need = [draw(st.integers(0, sum(columns) + 1)) for _ in range(groups)]
    return evict_inputs(need, runs, candidates)


@st.composite
def shared_runs(draw: st.DrawFn) -> EvictRows:
    """Entries that share runs in any way, in up to two groups; some runs are held elsewhere too.

    A run that no entry owns always is: its owner is not listed.
    """
    groups = draw(st.integers(1, 2))
    columns = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    places = st.lists(st.integers(0, len(columns) - 1), min_size=1, max_size=3, unique=True)
    candidates = [
        entry(number, *draw(places), **draw(_STANDING))
        for number in range(1, draw(st.integers(1, 7)) + 1)
    ]
    owned = {candidate.runs[0] for candidate in candidates}
    runs = [
        EvictRun(
            pages=(count, *(draw(st.integers(0, count)) for _ in range(groups - 1))),
            columns=count,
            holders=sum(run in c.runs for c in candidates)
            + (draw(st.sampled_from([0, 0, 0, 1])) if run in owned else 1),
        )
        for run, count in enumerate(columns)
    ]
    need = [draw(st.integers(0, 6)) for _ in range(groups)]
    return evict_inputs(need, runs, candidates)


_FLAG = st.sampled_from([False, False, False, True])
_STANDING = st.fixed_dictionaries(
    {
        "last_access": st.integers(0, 6),
        "previous_access": st.integers(-1, 6),
        "accesses": st.integers(0, 9),
        "depth_columns": st.integers(1, 40),
        "resumed": st.booleans(),
        "superseded": st.booleans(),
        "durable": st.booleans(),
        "pinned": _FLAG,
        "dirty": _FLAG,
        "reuse_ppm": st.integers(0, 1_000_000),
        "recompute_ns": st.integers(0, 20) | st.integers(0, 2**50),
        "reload_ns": st.integers(0, 20),
        "sharing_ns": st.sampled_from([0, 0, 3]),
        "slo_ns": st.sampled_from([0, 0, 5]),
    }
)


class Draws:
    """Numbers that look drawn but are the same everywhere: a linear congruential sequence."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit

    def one_in(self, count: int) -> bool:
        return self.below(count) == 0


def drawn_inputs(kind_name: str, seed: int) -> msgspec.Struct:
    """Inputs of one kind of decision as a function of the seed alone."""
    return _DRAWN[kind_name](Draws(seed))


def _drawn_route(draw: Draws) -> RouteInputs:
    names = [f"worker-{n:02d}" for n in range(1 + draw.below(12))]
    candidates = tuple(
        worker(
            name,
            *(
                Boundary(tier, tokens, draw.below(90) * MS, draw.below(9) * MS)
                for tier, tokens in [(-1, 0), (0, 32 * draw.below(40)), (2, 256 * draw.below(5))]
            ),
            online=not draw.one_in(7),
            model_loaded=not draw.one_in(9),
            context_tokens=2_048 << draw.below(3),
            verify_rows=draw.below(3) * 8,
            free_pages=draw.below(120),
            reclaimable_pages=draw.below(120),
            queue_ns=draw.below(60) * MS,
            prefill_ns_per_token=draw.below(4) * 100_000,
            first_token_ns=draw.below(3) * MS,
        )
        for name in names
    )
    excluded = (names[0],) if draw.one_in(4) else ()
    return route_inputs(1 + draw.below(1_500), draw.below(1_500), excluded, candidates)


def _drawn_admit(draw: Draws) -> AdmitInputs:
    need = tuple(4 + draw.below(60) for _ in range(1 + draw.below(3)))
    return admit_inputs(
        prompt_tokens=1 + draw.below(3_000),
        max_new_tokens=draw.below(2_000),
        compatible=not draw.one_in(9),
        need=need,
        adopted=tuple(draw.below(pages) for pages in need),
        copy_on_write=tuple(draw.below(2) for _ in need),
        available=tuple(draw.below(40) for _ in need),
        reclaimable=tuple(draw.below(40) for _ in need),
        total=tuple(40 + draw.below(30) for _ in need),
        running=draw.below(9),
        waiting_ahead=draw.below(3),
        bypassed=draw.below(20),
        restore_ns=draw.below(100) * MS,
        recompute_ns=draw.below(100) * MS,
        within_quota=draw.one_in(2),
        within_waiting=draw.below(2),
        preempted_ahead=draw.below(2),
    )


def _drawn_evict(draw: Draws) -> EvictInputs:
    count = 1 + draw.below(20)
    parents = [draw.below(node + 1) - 1 for node in range(count)]
    columns = [1 + draw.below(9) for _ in range(count)]
    runs = [
        EvictRun((columns[node],), columns[node], 1 + parents.count(node) + int(draw.one_in(6)))
        for node in range(count)
    ]
    candidates = [
        entry(
            node + 1,
            *((node,) if parents[node] < 0 else (node, parents[node])),
            last_access=draw.below(30),
            previous_access=draw.below(31) - 1,
            accesses=draw.below(50),
            depth_columns=1 + draw.below(100),
            resumed=draw.one_in(2),
            superseded=draw.one_in(3),
            durable=not draw.one_in(4),
            pinned=draw.one_in(9),
            dirty=draw.one_in(9),
            reuse_ppm=draw.below(1_000_001),
            recompute_ns=draw.below(1_000) * MS,
            reload_ns=draw.below(200) * MS,
            sharing_ns=draw.below(3) * MS,
            slo_ns=draw.below(2) * MS,
        )
        for node in range(count)
    ]
    return evict_inputs([draw.below(20)], runs, candidates).columns()


def _drawn_restore(draw: Draws) -> RestoreInputs:
    options = sorted(
        (1 + draw.below(4), 256 * (1 + draw.below(8)), f"peer-{n}") for n in range(draw.below(6))
    )
    return RestoreInputs(
        resident_tokens=16 * draw.below(40),
        reusable_tokens=1_024 + draw.below(1_024),
        page_tokens=16,
        pages_for_restore=draw.below(130),
        prefill_ns_per_token=draw.below(4) * 100_000,
        options=tuple(
            RestoreOption(tier, name, tokens, draw.below(100) * MS)
            for tier, tokens, name in options
        ),
    )


def _drawn_checkpoint(draw: Draws) -> CheckpointInputs:
    return CheckpointInputs(
        tokens=256 * draw.below(6),
        size_bytes=draw.below(100) << 20,
        depth_tokens=draw.below(4_000),
        reuse_ppm=draw.below(1_000_001),
        recompute_ns=draw.below(1_000) * MS,
        reload_ns=draw.below(300) * MS,
        capture_ns=draw.below(200) * MS,
        staging_bytes=draw.below(9) << 20,
        staging_bytes_max=8 << 20,
        queued=draw.below(5),
        queue_max=4,
        tier_free_bytes=(draw.below(100) << 20) - 1,
    )


def _drawn_keep(draw: Draws) -> KeepInputs:
    columns = draw.below(30)
    return KeepInputs(
        columns=columns,
        shared=draw.below(columns + 1),
        kept_columns=draw.below(40),
        kept_columns_max=24,
        kept_nodes=draw.below(10),
        kept_nodes_max=9,
        new_nodes=1 + draw.below(2),
        reclaim_failed=draw.one_in(2),
        ram_columns=draw.below(columns + 1),
        ram_bytes=draw.below(40),
        ram_bytes_max=20,
    )


def _drawn_preempt(draw: Draws) -> PreemptInputs:
    groups = 1 + draw.below(2)
    inputs = PreemptInputs(
        need=tuple(draw.below(12) for _ in range(groups)),
        priority=draw.below(3),
        swap_bytes_free=draw.below(40) << 20,
        page_bytes=(1 << 20,) * groups,
        candidates=tuple(
            PreemptCandidate(
                stream=stream,
                priority=draw.below(4),
                arrival_us=draw.below(5),
                pages=tuple(draw.below(9) for _ in range(groups)),
                rows=draw.below(900),
                swap_ns=draw.below(6) * MS,
                recompute_ns=draw.below(6) * MS,
            )
            for stream in range(1, 2 + draw.below(8))
        ),
    )

    def shared(one: PreemptCandidate) -> PreemptCandidate:
        account = draw.below(3)
        return msgspec.structs.replace(
            one, account=account, borrows=account == 2, swap_bytes=draw.below(20) << 20
        )

    asker = msgspec.structs.replace(inputs.candidates[0], stream=99)
    return msgspec.structs.replace(
        inputs,
        candidates=tuple(shared(one) for one in inputs.candidates),
        asker=None if draw.one_in(9) else shared(asker),
    )


_DRAWN = {
    "ROUTE": _drawn_route,
    "ADMIT": _drawn_admit,
    "EVICT": _drawn_evict,
    "RESTORE": _drawn_restore,
    "CHECKPOINT": _drawn_checkpoint,
    "KEEP": _drawn_keep,
    "PREEMPT": _drawn_preempt,
    "RESUME": _drawn_restore,
}
