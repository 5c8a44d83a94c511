"""A worker's policy-visible state: its page owner, queue and calibration, folded from its journal.

Production folds each fact as it writes it; replay folds the same facts with the same code. What
evaluators read is derived here, by pure functions of the view, the catalog and what the decision
recorded, so a decision's inputs are complete by construction. Reads no clock, does no I/O; all
quantities are integers.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.worker import (
    Metric,
    RequestQueued,
)

from .eviction import ALL_ACCOUNTS, EvictRecorded, KeepCosts, evict_inputs, reuse_ppm
from .lookup import Catalog, PrefixLookup, holdings
from .policy.inputs import (
    AdmitInputs,
    CheckpointInputs,
    EvictInputs,
    KeepInputs,
    PreemptInputs,
    RestoreInputs,
    RestoreOption,
)
from .preempting import PreemptRecorded, preempt_inputs, swap_bytes, swap_option
from .quotas import Giver, next_giver, reclaimable_for, stays_within
from .view_fold import WorkerFold
from .waiting import Waiting

MIB = 1024 * 1024
QUOTA_SCAN_MAX = 64  # waiting requests looked at for one within its quota


class AdmitRecorded(msgspec.Struct, frozen=True, array_like=True):
    """What an admission read beyond its view: the resident match, and the catalog look-up."""

    node: int  # kept node that the match ends in; 0 the root
    columns: int  # columns matched
    lookup: PrefixLookup


class RestoreRecorded(msgspec.Struct, frozen=True, array_like=True):
    """The catalog look-up of a restore decision, and what lies in host memory."""

    lookup: PrefixLookup
    ram_chunks: int = 0  # chunks in this worker's memory, without a gap from the first missing


class CheckpointRecorded(msgspec.Struct, frozen=True, array_like=True):
    """The catalog look-up over whole chunks, and the side that stores, no part of the view."""

    lookup: PrefixLookup
    queued: int  # chunks waiting to be stored
    tier_free_bytes: int  # -1 unbounded


class KeepRecorded(msgspec.Struct, frozen=True, array_like=True):
    """Where the prompt meets the tree."""

    node: int
    shared: int
    columns: int
    reclaim_failed: bool = False  # making room for it was tried, and could not be reached
    ram_columns: int = 0  # columns of its whole chunks


class WorkerView(WorkerFold):
    """The fold, and what each kind of decision reads of it."""

    def admit_inputs(
        self, stream: int, recorded: AdmitRecorded, catalog: Catalog, entries: tuple[Entry, ...]
    ) -> AdmitInputs:
        """The complete inputs of an admission decision."""
        waiting = self.waiting[stream]
        queued, owner, start = waiting.queued, self.owner, self.start
        resident = recorded.columns * start.page_tokens
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        reusable = self._known_rows(queued)
        recompute_ns = max(0, reusable - resident) * prefill_ns
        options = self._restore_options(catalog, entries, resident, reusable)
        restore_ns = min(
            (option.cost_ns + max(0, reusable - option.tokens) * prefill_ns for option in options),
            default=recompute_ns,
        )
        rows = self.reserved_rows(queued)
        need, copies = self._need(queued)
        adopted = owner.adoption_pages(recorded.node, recorded.columns, rows, start.step_rows)
        account = self.accounts.of(queued.tenant)
        within = self._stays_within(queued, tuple(map(int.__sub__, need, adopted)))
        ahead = self._ahead(stream, within)
        return AdmitInputs(
            prompt_tokens=queued.prompt_tokens,
            max_new_tokens=queued.max_new_tokens,
            context_tokens=start.context_tokens,
            compatible=True,
            need=need,
            adopted=adopted,
            copy_on_write=copies,
            available=owner.available(),
            reclaimable=reclaimable_for(
                owner,
                self.accounts,
                account,
                owner.idle_adopted(recorded.node, recorded.columns),
                alone=not self.running,
            ),
            total=owner.total(),
            running=len(self.running) + queued.samples - 1,
            lanes=start.lanes,
            waiting_ahead=len(ahead),
            bypassed=ahead[0].bypassed if ahead else 0,
            restore_ns=restore_ns,
            recompute_ns=recompute_ns,
            within_quota=within,
            quota=self.accounts.quotas[account] if self.accounts.shared else (),
            charged=owner.charged(account) if self.accounts.shared else (),
            within_waiting=0 if within else self._within_waiting(queued),
            preempted_ahead=0 if waiting.preempted else sum([other.preempted for other in ahead]),
        )

    def _stays_within(self, queued: RequestQueued, promise: tuple[int, ...]) -> bool:
        account = self.accounts.of(queued.tenant)
        return stays_within(self.owner, self.accounts, account, promise)

    def _ahead(self, stream: int, within: bool) -> list[Waiting]:
        """Who waits before a stream; for one within its quota only others within theirs."""
        ahead = [self.waiting[other] for other in self.queue(self.waiting.place(stream))]
        if not self.accounts.shared or not within:
            return ahead
        return [one for one in ahead if self._stays_within(one.queued, self._need(one.queued)[0])]

    def _within_waiting(self, queued: RequestQueued) -> int:
        """Requests of no lower priority that wait and would stay within their quota."""
        others = [self.waiting[other].queued for other in self.queue(QUOTA_SCAN_MAX)]
        return sum(
            [
                self._stays_within(other, self._need(other)[0])
                for other in others
                if other.stream != queued.stream and other.priority >= queued.priority
            ]
        )

    def admission_order(self, most: int) -> list[int]:
        """Waiting streams as admission looks at them: of one priority, those within their quota
        before those that would borrow."""
        order = self.queue(most)
        if not self.accounts.shared:
            return order

        def standing(stream: int) -> tuple[int, bool]:
            queued = self.waiting[stream].queued
            return -queued.priority, not self._stays_within(queued, self._need(queued)[0])

        return sorted(order, key=standing)

    def _need(self, queued: RequestQueued) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pages per group that a request's streams may ever take, and the copies among them."""
        need = self.owner.need(self.reserved_rows(queued), self.start.step_rows)
        extra = self.fork_pages(queued)
        forks = queued.samples - 1
        # The source copies the shared partial tail too when a fork still holds it.
        copies = 1 if forks and (queued.prompt_tokens - 1) % self.start.page_tokens else 0
        total = tuple(own + forks * fork + copies for own, fork in zip(need, extra, strict=True))
        return total, (copies * queued.samples,) * len(need)

    def fork_pages(self, queued: RequestQueued) -> tuple[int, ...]:
        """Pages per group that one fork takes at most: all but the shared whole pages."""
        need = self.owner.need(self.reserved_rows(queued), self.start.step_rows)
        shared = (queued.prompt_tokens - 1) // self.start.page_tokens
        return tuple(count - min(count, shared) for count in need)

    def evict_inputs(self, stream: int, recorded: EvictRecorded) -> EvictInputs:
        """The complete inputs of an eviction for a running stream (eviction.py).

        Raises BadInputError when nobody is left that could give.
        """
        giver = self._giver(stream, recorded.need, recorded.passed)
        if giver is None:
            raise BadInputError(
                f"an eviction for stream {stream} has asked every account that may give"
            )
        return evict_inputs(
            self.owner,
            self._keep_costs(),
            msgspec.structs.replace(recorded, need=giver.pages),
            giver.account if self.accounts.shared else ALL_ACCOUNTS,
        )

    def giver(self, stream: int, need: tuple[int, ...], passed: tuple[int, ...]) -> int | None:
        """The account that is asked next for a running stream's pages; None: nobody is left."""
        giver = self._giver(stream, need, passed)
        return None if giver is None else giver.account

    def _giver(self, stream: int, need: tuple[int, ...], passed: tuple[int, ...]) -> Giver | None:
        account = self.accounts.of(self.running[stream].tenant)
        alone = len(self.running) == 1
        return next_giver(self.owner, self.accounts, account, need, passed, alone=alone)

    def reclaimable_for(self, stream: int) -> tuple[int, ...]:
        """Pages per group that evicting for a running stream may free."""
        account = self.accounts.of(self.running[stream].tenant)
        alone = len(self.running) == 1
        return reclaimable_for(self.owner, self.accounts, account, {}, alone=alone)

    def swapped_rows(self, stream: int) -> int:
        """Rows of a stream that lie in host memory, swapped out."""
        standing = self.preempted.get(stream)
        return 0 if standing is None else standing.swap_rows

    def preempt_inputs(self, stream: int, recorded: PreemptRecorded) -> PreemptInputs:
        """The complete inputs of a preemption for a running stream's growth (preempting.py)."""
        return preempt_inputs(
            self.owner,
            self.start,
            self.accounts,
            self.running,
            self.preempted,
            {metric: self.cost(metric) for metric in Metric},
            stream,
            recorded,
        )

    def _keep_costs(self) -> KeepCosts:
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        reload_ns = self.cost(Metric.SSD_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        column_bytes = sum([pool.page_bytes for pool in self.start.pools])
        return KeepCosts(self.start.page_tokens * prefill_ns, column_bytes * reload_ns // MIB)

    def restore_inputs(
        self,
        stream: int,
        recorded: RestoreRecorded,
        catalog: Catalog,
        entries: tuple[Entry, ...],
    ) -> RestoreInputs:
        """The complete inputs of a restore-source decision for a stream that was admitted, or of
        the resumption of one that had been preempted."""
        queued = self.running[stream]
        resident = self.owner.rows(stream)
        reusable = self._known_rows(queued)
        standing = self.preempted.get(stream)
        swapped: tuple[RestoreOption, ...] = ()
        if standing is not None:
            upload_ns = self.cost(Metric.UPLOAD_NS_PER_MIB)
            swapped = swap_option(self.start, standing, resident, upload_ns)
        return RestoreInputs(
            resident_tokens=resident,
            reusable_tokens=reusable,
            page_tokens=self.start.page_tokens,
            pages_for_restore=min(self.owner.promised(stream)),
            prefill_ns_per_token=self.cost(Metric.PREFILL_NS_PER_TOKEN),
            options=(swapped or self._ram_option(recorded.ram_chunks, resident, reusable))
            + self._restore_options(catalog, entries, resident, reusable),
        )

    def _ram_option(self, chunks: int, resident: int, reusable: int) -> tuple[RestoreOption, ...]:
        if not chunks:
            return ()
        reached = (resident // self.start.chunk_tokens + chunks) * self.start.chunk_tokens
        ns_per_mib = self.cost(Metric.RAM_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        cost_ns = chunks * self.start.chunk_bytes * ns_per_mib // MIB
        return (RestoreOption(Tier.RAM, "", min(reached, reusable), cost_ns),)

    def _restore_options(
        self, catalog: Catalog, entries: tuple[Entry, ...], resident: int, reusable: int
    ) -> tuple[RestoreOption, ...]:
        first = resident // self.start.chunk_tokens
        upload_ns = self.cost(Metric.UPLOAD_NS_PER_MIB)
        options = []
        for holding in holdings(catalog, entries, first):
            if holding.worker not in ("", self.start.worker):
                continue  # a peer's disk is not read until there is a peer tier
            read_ns = self.cost(_READ_COST[holding.tier])
            options.append(
                RestoreOption(
                    holding.tier,
                    "",
                    min(holding.tokens, reusable),
                    holding.missing_bytes * (read_ns + upload_ns) // MIB,
                )
            )
        return tuple(options)

    def durable_chunks(self, catalog: Catalog, entries: tuple[Entry, ...]) -> int:
        """Leading chunks that have a ready copy in every tier this worker writes to."""
        wanted = {
            ("" if tier == Tier.OBJECT else self.start.worker, tier)
            for tier in self.start.checkpoint_tiers
        }
        for place, entry in enumerate(entries):
            mask, held = entry.mask, set()
            while mask:
                held.add(catalog.holder((mask & -mask).bit_length() - 1))
                mask &= mask - 1
            if not wanted <= held:
                return place
        return len(entries)

    def checkpoint_inputs(
        self,
        stream: int,
        recorded: CheckpointRecorded,
        catalog: Catalog,
        entries: tuple[Entry, ...],
    ) -> CheckpointInputs:
        """The complete inputs of a checkpoint decision for a finished prompt."""
        queued = self.running[stream]
        start = self.start
        chunk_tokens = start.chunk_tokens
        durable = self.durable_chunks(catalog, entries)
        chunks = queued.prompt_tokens // chunk_tokens - durable if start.checkpoint_tiers else 0
        tokens = chunks * chunk_tokens
        size = chunks * start.chunk_bytes
        reload_ns = self.cost(Metric.SSD_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        return CheckpointInputs(
            tokens=tokens,
            size_bytes=size,
            depth_tokens=durable * chunk_tokens,
            reuse_ppm=reuse_ppm(1),
            recompute_ns=tokens * self.cost(Metric.PREFILL_NS_PER_TOKEN),
            reload_ns=size * reload_ns // MIB,
            capture_ns=size * self.cost(Metric.CAPTURE_NS_PER_MIB) // MIB,
            staging_bytes=start.chunk_bytes,
            staging_bytes_max=start.staging_bytes_max,
            queued=recorded.queued,
            queue_max=start.publish_queue_max,
            tier_free_bytes=recorded.tier_free_bytes,
        )

    def keep_inputs(self, recorded: KeepRecorded) -> KeepInputs:
        """The complete inputs of a keep decision."""
        return KeepInputs(
            columns=recorded.columns,
            shared=recorded.shared,
            kept_columns=self.owner.kept_columns,
            kept_columns_max=self.start.kept_columns_max,
            kept_nodes=self.owner.kept_nodes,
            kept_nodes_max=self.start.kept_nodes_max,
            new_nodes=1 + (recorded.shared < self.owner.node(recorded.node).end),
            reclaim_failed=recorded.reclaim_failed,
            ram_columns=recorded.ram_columns,
            ram_bytes=swap_bytes(self.start, recorded.ram_columns * self.start.page_tokens),
            ram_bytes_max=self.start.ram_bytes_max,
        )


_READ_COST: dict[int, Metric] = {
    Tier.RAM: Metric.RAM_NS_PER_MIB,
    Tier.SSD: Metric.SSD_NS_PER_MIB,
    Tier.PEER: Metric.PEER_NS_PER_MIB,
    Tier.OBJECT: Metric.OBJECT_NS_PER_MIB,
}
