"""The model-free worker: the production worker machine on a device that only takes time.

Every effect of the machine is carried out by letting declared costs pass on a logical clock. The
device prefills one stream at a time, decodes any number, and its tiers store what they are given.
What it leaves out: tensors, transfers that fail, sockets. Pure but for its own state; the
surroundings own the clock, the spool and the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pagetrail.catalog.identity import content_id
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import FinishReason, Metric

from .messages import (
    Answered,
    Capture,
    Ended,
    KeepInRam,
    Offer,
    Parked,
    Restore,
    Run,
    Stop,
    SwapDrop,
    SwapIn,
    SwapOut,
    WorkerEffect,
)
from .publisher import Publisher, Stored
from .slices import Slices
from .worker import WorkerMachine
from .worker_state import PublisherState

MIB = 1024 * 1024


class DeclaredCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What the device takes, by the units of Metric, and what fits below it."""

    prefill_ns_per_token: int = 20_000
    first_token_ns: int = 8_000_000
    decode_ns_per_token: int = 0  # a prefill worker hands its streams over to decode
    upload_ns_per_mib: int = 40_000
    capture_ns_per_mib: int = 40_000
    ssd_ns_per_mib: int = 200_000
    object_ns_per_mib: int = 1_000_000
    ssd_bytes: int = 4 << 40

    def by_metric(self) -> tuple[tuple[int, int], ...]:
        """As a worker's start fact states them."""
        return (
            (Metric.PREFILL_NS_PER_TOKEN, self.prefill_ns_per_token),
            (Metric.FIRST_TOKEN_NS, self.first_token_ns),
            (Metric.DECODE_NS_PER_TOKEN, self.decode_ns_per_token),
            (Metric.UPLOAD_NS_PER_MIB, self.upload_ns_per_mib),
            (Metric.CAPTURE_NS_PER_MIB, self.capture_ns_per_mib),
            (Metric.RAM_NS_PER_MIB, self.upload_ns_per_mib),
            (Metric.SSD_NS_PER_MIB, self.ssd_ns_per_mib),
            (Metric.PEER_NS_PER_MIB, self.object_ns_per_mib),
            (Metric.OBJECT_NS_PER_MIB, self.object_ns_per_mib),
        )


# ---------------------------------------------------------------- what comes due


@dataclass(frozen=True, slots=True)
class RestoreDue:
    """A restore's bytes have arrived."""

    stream: int
    rows: int
    tier: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class DoneDue:
    """A stream has computed everything."""

    stream: int
    rows: int


@dataclass(frozen=True, slots=True)
class CaptureDue:
    """Chunks have left the device."""

    stream: int
    chunks: tuple[int, ...]
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class SliceDue:
    """A stream that grows page by page has computed more rows."""

    stream: int
    run: int
    rows: int


@dataclass(frozen=True, slots=True)
class SwapOutDue:
    """A stream's rows lie in host memory."""

    stream: int
    rows: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class RamKeepDue:
    """Chunks of a finished prompt lie in host memory."""

    stream: int
    rows: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class StopDue:
    """A cancelled stream's work has ended."""

    stream: int


Due = RestoreDue | DoneDue | SliceDue | SwapOutDue | RamKeepDue | CaptureDue | StopDue
Later = tuple[int, Due]  # (microseconds of the logical clock, what comes due)


class Tiers(Protocol):
    """How the stores behind the device behave."""

    def restored_tokens(self, effect: Restore, chunk_tokens: int) -> int:
        """Tokens of the prefix that are there, verified, when a restore has ended."""

    def stored_in(self, prefix: bytes, tiers: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
        """(Tier, location) of each receipt for a chunk that was written."""


class SoundTiers:
    """Stores that keep what they are given and give it back."""

    def restored_tokens(self, effect: Restore, chunk_tokens: int) -> int:
        """All that was asked for."""
        return effect.tokens

    def stored_in(self, prefix: bytes, tiers: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
        """Every tier has it."""
        return tuple((tier, prefix.hex()) for tier in tiers)


@dataclass(slots=True)
class Counters:
    """What a run reports of one worker."""

    requests: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    stored_bytes: int = 0


@dataclass(slots=True)
class ModelFreeWorker:
    """One worker of a model-free cluster."""

    machine: WorkerMachine
    publisher: Publisher
    costs: DeclaredCosts
    tiers: Tiers = field(default_factory=SoundTiers)
    counters: Counters = field(default_factory=Counters)
    _output_tokens: dict[int, int] = field(default_factory=dict)
    _accepted_us: dict[int, int] = field(default_factory=dict)
    _prefill_free_us: int = 0
    _stored_bytes: int = 0
    _answers: list[Answered | Ended] = field(default_factory=list)
    _slices: Slices = field(init=False)

    def __post_init__(self) -> None:
        self._slices = Slices(self.machine.start.page_tokens)

    @property
    def name(self) -> str:
        """The worker's id."""
        return self.machine.start.worker

    def offer(self, offer: Offer, now_us: int) -> list[Later]:
        """Take an offer and try to start it."""
        later: list[Later] = []
        for effect in self.machine.offered(offer, now_us):
            self._perform(effect, now_us, later)
        return later + self.admit(now_us)

    def cancel(self, number: int, attempt: int, now_us: int) -> list[Later]:
        """Give an attempt up."""
        later: list[Later] = []
        for effect in self.machine.cancelled(number, attempt):
            self._perform(effect, now_us, later)
        return later + self.admit(now_us)

    def admit(self, now_us: int) -> list[Later]:
        """Start what can be started now."""
        later: list[Later] = []
        for stream in list(self._slices.stalled):
            if stream in self._slices.stalled:  # none before it has preempted it
                self._slice(stream, now_us, later)
        for effect in self.machine.admit_waiting(now_us):
            self._perform(effect, now_us, later)
        return later

    def refuse_starved(self, now_us: int) -> list[Later]:
        """Nothing is under way and nothing will be published: end what can never go on."""
        later: list[Later] = []
        for effect in self.machine.starved():
            self._perform(effect, now_us, later)
        return later

    def due(self, due: Due, now_us: int) -> list[Later]:
        """Something that was under way has ended."""
        later: list[Later] = []
        effects: list[WorkerEffect] = []
        machine = self.machine
        if not machine.runs(due.stream):
            return later  # it was stopped meanwhile
        match due:
            case RestoreDue():
                self.counters.restored_tokens += due.rows
                effects = machine.restored(due.stream, due.rows, due.tier, due.elapsed_ns)
            case DoneDue():
                machine.advanced(due.stream, due.rows)
                self.counters.recomputed_tokens += due.rows
                machine.first_token(due.stream, (now_us - self._accepted_us[due.stream]) * 1000)
                effects = machine.done(due.stream, FinishReason.LENGTH, self._publisher_state())
            case SliceDue():
                if not self._slices.current(due.stream, due.run):
                    return later  # it gave way meanwhile
                effects = self._sliced(due, now_us, later)
            case SwapOutDue():
                effects = machine.swapped_out(due.stream, due.rows, due.elapsed_ns, now_us)
            case RamKeepDue():
                state = self._publisher_state()
                effects = machine.kept_in_ram(due.stream, due.rows, due.elapsed_ns, state)
            case CaptureDue():
                prompt, tenant = machine.prompt(due.stream), machine.tenant(due.stream)
                size = len(due.chunks) * machine.start.chunk_bytes
                self._stored_bytes += size
                self.counters.stored_bytes += size
                effects = machine.captured(due.stream, size, due.elapsed_ns)
                for chunk in due.chunks:
                    self.publisher.publish(
                        tenant, prompt, chunk, self._stored(prompt.chunks[chunk])
                    )
            case StopDue():
                effects = machine.closed(due.stream)
        for effect in effects:
            self._perform(effect, now_us, later)
        return later + self.admit(now_us)

    def take_answers(self) -> list[Answered | Ended]:
        """What the router must hear, in order."""
        answers, self._answers = self._answers, []
        return answers

    # ---- effects

    def _perform(self, effect: WorkerEffect, now_us: int, later: list[Later]) -> None:
        match effect:
            case Answered():
                self._answers.append(effect)
                if effect.answer is Answer.ACCEPTED:
                    self._accept(effect, now_us)
            case Ended():
                self._answers.append(effect)
            case Restore():
                later.append(self._restore(effect, now_us))
            case Run():
                later.append(self._run(effect, now_us))
            case Capture():
                size = len(effect.chunks) * self.machine.start.chunk_bytes
                elapsed_ns = size * self.costs.capture_ns_per_mib // MIB
                due = CaptureDue(effect.stream, effect.chunks, elapsed_ns)
                later.append((now_us + elapsed_ns // 1000, due))
            case KeepInRam():
                rows = len(effect.chunks) * self.machine.start.chunk_tokens
                elapsed_ns = self._copy_ns(rows, self.costs.capture_ns_per_mib)
                keep = RamKeepDue(effect.stream, rows, elapsed_ns)
                later.append((now_us + elapsed_ns // 1000, keep))
            case SwapOut():
                self._slices.stop(effect.stream)
                elapsed_ns = self._copy_ns(effect.rows, self.costs.capture_ns_per_mib)
                out = SwapOutDue(effect.stream, effect.rows, elapsed_ns)
                later.append((now_us + elapsed_ns // 1000, out))
            case SwapIn():
                rows = max(0, effect.rows - effect.first_row)
                elapsed_ns = self._copy_ns(rows, self.costs.upload_ns_per_mib)
                back = RestoreDue(effect.stream, rows, Tier.RAM, elapsed_ns)
                later.append((now_us + elapsed_ns // 1000, back))
            case Parked():
                self._slices.stop(effect.stream)
            case SwapDrop():
                pass  # there are no bytes
            case Stop():
                self._slices.stop(effect.stream)
                later.append((now_us, StopDue(effect.stream)))

    def _accept(self, answered: Answered, now_us: int) -> None:
        stream = self.machine.stream_of(answered.number, answered.attempt)
        if stream is None or stream in self._accepted_us:
            return  # acknowledged again
        self._accepted_us[stream] = now_us
        self._output_tokens[stream] = self.machine.view.waiting[stream].queued.max_new_tokens
        self.counters.requests += 1

    def _restore(self, effect: Restore, now_us: int) -> Later:
        read_ns = (
            self.costs.ssd_ns_per_mib if effect.tier == Tier.SSD else self.costs.object_ns_per_mib
        )
        size = len(effect.chunks) * self.machine.start.chunk_bytes
        elapsed_ns = size * (read_ns + self.costs.upload_ns_per_mib) // MIB
        reached = self.tiers.restored_tokens(effect, self.machine.start.chunk_tokens)
        rows = max(0, reached - effect.first_token)
        due = RestoreDue(effect.stream, rows, effect.tier, elapsed_ns)
        return now_us + elapsed_ns // 1000, due

    def _copy_ns(self, rows: int, ns_per_mib: int) -> int:
        columns = -(-rows // self.machine.start.page_tokens)
        return (
            columns * sum(pool.page_bytes for pool in self.machine.start.pools) * ns_per_mib // MIB
        )

    def _run(self, effect: Run, now_us: int) -> Later:
        prompt = self.machine.prompt(effect.stream)
        self.counters.prompt_blocks += len(prompt.pages)
        self.counters.hit_blocks += min(
            len(prompt.pages),
            -(-self.machine.resident_at_start(effect.stream) // self.machine.start.page_tokens),
        )
        rows, run = max(0, prompt.tokens - effect.rows), 0
        sliced = self.machine.start.grows
        if sliced:
            new_tokens = self._output_tokens[effect.stream]
            run, rows = self._slices.begin(effect.stream, effect.rows, prompt.tokens, new_tokens)
        start_us = max(now_us, self._prefill_free_us)
        prefill_us = (
            max(0, rows - 1) * self.costs.prefill_ns_per_token + self.costs.first_token_ns
        ) // 1000
        self._prefill_free_us = start_us + prefill_us
        if sliced:
            return start_us + prefill_us, SliceDue(effect.stream, run, rows)
        decode_us = self._output_tokens[effect.stream] * self.costs.decode_ns_per_token // 1000
        return start_us + prefill_us + decode_us, DoneDue(effect.stream, rows)

    def _sliced(self, due: SliceDue, now_us: int, later: list[Later]) -> list[WorkerEffect]:
        """Rows of a stream that grows are computed: the next ones, or its end."""
        machine, stream = self.machine, due.stream
        machine.advanced(stream, due.rows)
        self.counters.recomputed_tokens += due.rows
        if self._slices.computed(stream, due.rows):
            machine.first_token(stream, (now_us - self._accepted_us[stream]) * 1000)
        if self._slices.next_rows(stream) > 0:
            self._slice(stream, now_us, later)
            return []
        self._slices.forget(stream)
        return machine.done(stream, FinishReason.LENGTH, self._publisher_state())

    def _slice(self, stream: int, now_us: int, later: list[Later]) -> None:
        """Ask for the pages of a stream's next rows and compute them, or wait for pages."""
        run, rows = self._slices.run_of(stream), self._slices.next_rows(stream)
        for effect in self.machine.grow(stream, rows, now_us):
            self._perform(effect, now_us, later)
        if not self._slices.current(stream, run):
            return  # it gave way itself
        if any(self.machine.view.owner.shortfall(stream, rows)):
            self._slices.stalled[stream] = None
            return
        self._slices.stalled.pop(stream, None)
        decode_us = rows * self.costs.decode_ns_per_token // 1000
        later.append((now_us + decode_us, SliceDue(stream, run, rows)))

    def _stored(self, prefix: bytes) -> Stored:
        # The bytes of a chunk are a function of its prefix; here the digest stands for them.
        start = self.machine.start
        copies = self.tiers.stored_in(prefix, start.checkpoint_tiers)
        return Stored(content_id(prefix), start.chunk_bytes, copies)

    def _publisher_state(self) -> PublisherState:
        return PublisherState(
            self.publisher.pending, max(0, self.costs.ssd_bytes - self._stored_bytes)
        )
