"""The one writer without its sockets: admits messages, makes frames durable, answers lookups.

Owns the log directory of a run: the lock, the epoch slot, the active segment. A frame counts once
``commit`` returns: it was written, fdatasynced, and no newer writer had taken over. Any error on
the way stops the committer for good, because after a failed write or fdatasync neither the file
nor the kernel's idea of it can be trusted. It never touches a socket.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.log.archive import ActiveSegment, Archive
from pagetrail.controlplane.log.clock import Clock, WallClock
from pagetrail.controlplane.log.errors import LogBehindError, WriterStoppedError
from pagetrail.controlplane.log.files import Files, OsFiles, write_all
from pagetrail.controlplane.log.frames import CHAIN_START, Frame
from pagetrail.controlplane.log.limits import MESSAGE_BYTES_MAX, LogLimits, check_limits
from pagetrail.controlplane.log.recovery import recover
from pagetrail.controlplane.log.segment_index import IndexBuilder, index_name, write_index
from pagetrail.controlplane.log.segments import (
    SegmentHeader,
    encode_segment_header,
    log_directory,
    segment_name,
)
from pagetrail.controlplane.log.sequencer import (
    NotTaken,
    Sequencer,
    Taken,
)
from pagetrail.controlplane.log.slots import (
    DirectoryLock,
    DirectorySlots,
    SlotStore,
    check_not_fenced,
    newest_epoch,
    slot_name,
    take_epoch,
)
from pagetrail.controlplane.log.transactions import decode_transactions
from pagetrail.controlplane.log.wire import AnswerSpan, SegmentEntry


class Committer:
    """See the module. Open with ``open_committer``; not for more than one thread.

    ``lock`` is given up when it closes; None when nothing else can open this log.
    """

    def __init__(
        self,
        log: Path,
        sequencer: Sequencer,
        slots: SlotStore,
        lock: DirectoryLock | None,
        *,
        limits: LogLimits,
        clock: Clock,
        files: Files,
    ) -> None:
        self._log = log
        self._sequencer = sequencer
        self._archive = Archive(log)
        self._builder = IndexBuilder(sequencer.position, limits.index_stride_bytes)
        self._index_path: Path | None = None
        self._slots = slots
        self._lock = lock
        self._limits = limits
        self._clock = clock
        self._files = files
        self._descriptor: int | None = None
        self._segment_bytes = 0
        self._stopped: str | None = None
        self.head = sequencer.position
        self.frames = 0

    @property
    def writer_epoch(self) -> int:
        return self._sequencer.writer_epoch

    @property
    def clients(self) -> int:
        return self._sequencer.clients

    @property
    def registers(self) -> int:
        return self._sequencer.registers

    @property
    def active(self) -> ActiveSegment:
        """Where frames lie in the segment that is written; other threads may read it too."""
        return ActiveSegment(self._builder.start.next_seq, self._builder.places)

    @property
    def gathered_bytes(self) -> int:
        """Size of what the next commit will hold."""
        return self._sequencer.gathered_bytes

    def expected(self, client: str, client_epoch: int) -> tuple[int, int]:
        return self._sequencer.expected(client, client_epoch)

    def start(self, writer_epoch: int) -> Frame:
        """Begin the epoch: a new segment whose first frame says so."""
        self._sequencer.start_epoch(writer_epoch, self._clock.name)
        frame = self.commit()
        if frame is None:
            raise WriterStoppedError("the first frame of the epoch is empty")
        return frame

    def admit(self, client: str, client_epoch: int, payload: bytes) -> Taken | NotTaken:
        """Gather a client's message for the next commit. ``BadInputError``: never to be taken."""
        self._check_running()
        if len(payload) > MESSAGE_BYTES_MAX:
            raise BadInputError(
                f"a message of {len(payload)} bytes; at most {MESSAGE_BYTES_MAX} are allowed"
            )
        return self._sequencer.admit(client, client_epoch, decode_transactions(payload), payload)

    def commit(self) -> Frame | None:
        """Make what was gathered durable and return its frame; None when nothing was gathered.

        ``FencedError`` or ``WriterStoppedError``: nothing of it may be acknowledged, and the
        committer is of no further use.
        """
        self._check_running()
        frame = self._sequencer.seal(self._clock.now_us())
        if frame is None:
            return None
        try:
            descriptor = self._active_segment(frame)
            write_all(self._files, descriptor, frame.raw)
            self._files.fdatasync(descriptor)
            check_not_fenced(self._slots, frame.header.writer_epoch)
        except OSError as error:
            self._stopped = f"the log could not be made durable: {error}"
            raise WriterStoppedError(self._stopped) from error
        except PagetrailError as error:
            self._stopped = str(error)
            raise
        sealed = self._sequencer.sealed
        self._builder.note(frame, self._segment_bytes, sealed.ranges, sealed.changes)
        self._segment_bytes += len(frame.raw)
        self.head = self._sequencer.position
        self.frames += 1
        return frame

    def remembered(
        self, client: str, client_epoch: int, first_client_seq: int, count: int
    ) -> tuple[list[AnswerSpan], tuple[int, int] | None]:
        """Where transactions that the log holds lie, as far as memory knows it, and the range
        (first client_seq, count) before these for which the log must be read."""
        next_client_seq, _ = self.expected(client, client_epoch)
        end = min(first_client_seq + count, next_client_seq)
        if not 0 <= first_client_seq < end:
            return [], None
        return self._sequencer.answers(
            client, client_epoch, first_client_seq, end - first_client_seq
        )

    def resolve(
        self, client: str, client_epoch: int, first_client_seq: int, count: int
    ) -> list[AnswerSpan]:
        """Where transactions that the log holds lie; old ones are found by reading the log."""
        spans, missing = self.remembered(client, client_epoch, first_client_seq, count)
        if missing is None:
            return spans
        older = self._archive.answers(client, client_epoch, *missing, self.head.next_seq)
        return older + spans

    def check_witness(self, head: int, chain: bytes) -> None:
        """``LogBehindError`` when a position that was acknowledged is not in this log."""
        if head == 0 and chain == CHAIN_START:
            return
        if head <= self.head.next_seq:
            held = self._chain_at(head)
            if held is None or held == chain:
                return
            found = f"has another chain value there ({held.hex()[:16]}..)"
        else:
            found = f"ends at seq {self.head.next_seq}"
        self._stopped = (
            f"a client saw seq {head} with chain {chain.hex()[:16]}.. acknowledged, this log "
            f"{found}: acknowledged facts were lost. Restore the log from its disk or a copy; "
            "do not start a writer on this directory"
        )
        raise LogBehindError(self._stopped)

    def segments(self) -> list[SegmentEntry]:
        """The stretches a new reader starts from, the sealed ones by the name of their place."""
        return self._archive.segments(self.head.next_seq)

    def close(self) -> None:
        """Release the files and the lock. Gathered and uncommitted messages are dropped."""
        self._stopped = self._stopped or "it was closed"
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise WriterStoppedError(f"the writer stopped for good: {self._stopped}")

    def _active_segment(self, frame: Frame) -> int:
        if self._descriptor is not None and self._segment_bytes < self._limits.segment_bytes:
            return self._descriptor
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None
        if self._index_path is not None:
            write_index(self._files, self._index_path, self._builder.index())
        writer_epoch = frame.header.writer_epoch
        path = self._log / segment_name(frame.first_seq, writer_epoch)
        header = encode_segment_header(SegmentHeader(writer_epoch, self.head))
        temporary = path.with_name(f"{path.name}.tmp")
        with suppress(FileNotFoundError):
            self._files.unlink(temporary)  # a creation that a crash cut short
        descriptor = self._files.open_append(temporary)
        self._descriptor = descriptor
        write_all(self._files, descriptor, header)
        self._files.fdatasync(descriptor)
        self._files.replace(temporary, path)
        self._files.sync_directory(self._log)
        self._index_path = self._log / index_name(frame.first_seq, writer_epoch)
        self._builder = IndexBuilder(self.head, self._limits.index_stride_bytes)
        self._segment_bytes = len(header)
        return descriptor

    def _chain_at(self, head: int) -> bytes | None:
        """Chain value where ``head`` is the next seq, empty when no frame ends there; None when
        that is no longer kept."""
        if head == self.head.next_seq:
            return self.head.chain
        return self._archive.chain_at(head, self.head.next_seq, self.active)


def open_committer(
    directory: str | Path,
    *,
    limits: LogLimits | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    takeover: bool = False,
) -> tuple[Committer, Frame]:
    """Recover the log of a run directory (or begin one), fence earlier writers, start an epoch.

    Returns the committer and the frame that began the epoch. A torn tail is cut, durably, before
    anything else is written. ``CorruptionError`` when the log is damaged otherwise: nothing is
    changed then. ``BadInputError`` when a writer is running here, unless ``takeover``.
    """
    limits = check_limits(limits or LogLimits())
    files = files or OsFiles()
    log = log_directory(Path(directory))
    log.mkdir(parents=True, exist_ok=True)
    epochs = log / "epochs"
    slots = DirectorySlots(epochs, files)
    newest = newest_epoch(slots)
    if newest > 0 and not takeover:
        # A writer holds the lock of its own epoch's slot for as long as it lives.
        DirectoryLock(epochs / slot_name(newest), "a writer").release()
    writer_epoch = take_epoch(slots, 0)
    sequencer = recover(log, limits, files)
    if writer_epoch <= sequencer.writer_epoch:
        writer_epoch = take_epoch(slots, sequencer.writer_epoch)
    lock = DirectoryLock(epochs / slot_name(writer_epoch), "a writer", wait=True)
    committer = Committer(
        log,
        sequencer,
        slots,
        lock,
        limits=limits,
        clock=clock or WallClock(),
        files=files,
    )
    try:
        return committer, committer.start(writer_epoch)
    except BaseException:
        committer.close()
        raise
