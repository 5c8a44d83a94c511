"""One step of the model over a worker's running streams: plan, reserve, run, commit, sample.

Owns the lanes and the flight recorder; the streams are the runtime's. A step's rows are reserved
before it runs and committed only when every layer has succeeded. Sends nothing: what was produced
is handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.worker import Metric
from pagetrail.controlplane import scheduler
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.pages.appends import Append, Shortfall
from pagetrail.kernels.abi import Floats

from .clock import Clock
from .model import EngineModel, PageTable, RowSpec
from .sampling import sample
from .streams import ActiveStream, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Produced:
    """A stream's new token. ``first`` counts its request's generated tokens before it."""

    active: ActiveStream
    first: int
    token: int
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]  # with the first token, when they were asked for


class Steps:
    """See the module."""

    def __init__(
        self,
        streams: Mapping[int, ActiveStream],
        machine: WorkerMachine,
        model: EngineModel,
        clock: Clock,
        budgets: scheduler.Budgets,
        grow: Callable[[int, int], None],
        *,
        measure: bool,
    ) -> None:
        """``grow(stream, rows)`` asks for the pages of a stream's next rows, where streams may
        outgrow their promise. Raises BadInputError for budgets that cannot work."""
        self._streams = streams
        self._machine = machine
        self._model = model
        self._clock = clock
        self._budgets = scheduler.check_budgets(budgets)
        self._grow = grow
        self._measure = measure
        self._lanes: tuple[int, ...] = (0,) * budgets.sequences
        self.flight = scheduler.FlightRecorder()

    def to_fork(self) -> list[ActiveStream]:
        """Streams whose other samples branch off now."""
        return [active for active in self._streams.values() if active.must_fork]

    def step(self) -> tuple[bool, list[Produced]]:
        """Run one step; whether anything ran, and the new tokens in order of lane."""
        plan = self._plan()
        if not plan.selected:
            return False, []
        started_ns = self._clock.now_ns()
        reserved = [self._reserve(item) for item in plan.selected]
        logits = self._model.step([spec for _, spec in reserved])
        step_ns = self._clock.now_ns() - started_ns
        produced = []
        place = 0
        for item, (append, spec) in zip(plan.selected, reserved, strict=True):
            active = self._streams[item.stream]
            self._machine.view.owner.commit(append, item.rows)
            active.take_prompt_logits(logits[place : place + spec.wanted])
            active.processed += item.rows
            place += spec.wanted
            if active.first_token_ns == 0:
                active.prefill_ns += step_ns * item.rows // plan.rows
                active.prefill_rows += item.rows
            if active.processed == len(active.tokens):
                produced.append(self._sample(active, logits[place - 1]))
        return True, produced

    def _plan(self) -> scheduler.Plan:
        waiting: set[int] = set()  # for pages
        while True:
            work = [
                active.work(blocked=stream in waiting) for stream, active in self._streams.items()
            ]
            if not any(item.ready for item in work):
                return scheduler.EMPTY
            plan = scheduler.plan(work, self._lanes, self._budgets)
            if not self._machine.start.grows or self._grown(plan, waiting):
                break
        self.flight.record(work, self._lanes, self._budgets, plan)
        self._lanes = scheduler.lanes_after(plan, self._budgets.sequences)
        for item in plan.selected:
            self._streams[item.stream].parked_steps = 0
        for stream in (*plan.no_sequence, *plan.no_rows):
            self._streams[stream].parked_steps += 1
        return plan

    def _grown(self, plan: scheduler.Plan, waiting: set[int]) -> bool:
        """Whether every stream of a plan has the pages that it is to write.

        One that has not asks for them, and either has them then, or gave way, or waits; others
        may have given way for it. So the step is planned anew.
        """
        owner = self._machine.view.owner
        for item in plan.selected:
            if any(owner.shortfall(item.stream, item.rows)):
                self._grow(item.stream, item.rows)
                active = self._streams.get(item.stream)
                runs = active is not None and active.ready
                if runs and any(owner.shortfall(item.stream, item.rows)):
                    waiting.add(item.stream)
                return False
        return True

    def _reserve(self, item: scheduler.Selected) -> tuple[Append, RowSpec]:
        active = self._streams[item.stream]
        owner = self._machine.view.owner
        append = owner.reserve(item.stream, item.rows)
        if isinstance(append, Shortfall):
            raise InvariantError(
                f"stream {item.stream} needs {append.pages} pages beyond its promise for "
                f"{item.rows} rows; admission promised every row it may write"
            )
        for group, (source, target) in enumerate(append.copies):
            if source >= 0:
                self._model.copy_page(source, target, group)
        tables = tuple(
            PageTable(np.asarray(owner.page_table(item.stream, group), np.int32))
            for group in range(len(self._machine.start.pools))
        )
        tokens = active.tokens[active.processed : active.processed + item.rows]
        return append, RowSpec(tables, active.processed, tokens, active.wanted_rows(item.rows))

    def _sample(self, active: ActiveStream, logits: Floats) -> Produced:
        chosen = sample(logits, active.params, len(active.tokens), active.counts)
        logprobs = [] if chosen.logprob is None else [TokenLogprobs(chosen.logprob, chosen.top)]
        one = Produced(
            active, active.generated, chosen.token, logprobs, active.take_prompt_logprobs()
        )
        active.append(chosen.token)
        if active.first_token_ns == 0:
            self._first_token(active)
        return one

    def _first_token(self, active: ActiveStream) -> None:
        active.first_token_ns = self._clock.now_ns() - active.accepted_ns
        if active.sample:
            return  # the request's first token is its first sample's
        self._machine.first_token(active.stream, active.first_token_ns)
        if self._measure and active.prefill_rows:
            per_token = active.prefill_ns // active.prefill_rows
            self._machine.measured(Metric.PREFILL_NS_PER_TOKEN, per_token)
