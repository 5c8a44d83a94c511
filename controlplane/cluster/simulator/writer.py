"""The one writer in the simulator: the production committer on a disk that can fail.

``WriterProcess`` is one run of a writer: it recovers the log from the disk, takes an epoch, gathers
what clients ship, and acknowledges what a commit has made durable. It ends for good when a commit
fails or finds it fenced. ``SimWriter`` is what starts such processes again, and lets a second one
take over while the first still lives; which of the two a client reaches is then a matter of luck.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from pagetrail.catalog.errors import InvariantError, PagetrailError
from pagetrail.controlplane.log.committer import Committer
from pagetrail.controlplane.log.errors import FencedError, WriterStoppedError
from pagetrail.controlplane.log.frames import CHAIN_START, LOG_START, Frame, LogPosition
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    Ending,
    SegmentScan,
    decode_segment_header,
)
from pagetrail.controlplane.log.sequencer import NotTaken, Sequencer
from pagetrail.controlplane.log.slots import take_epoch
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.log.wire import Head

from .clocks import SimClock
from .disk import SimDisk, SimSlots
from .log import WRITER, Fetch, Fetched, Live, ReadFrame, Ship, ShipAnswer
from .network import Network
from .timeline import Timeline

LOG = Path("/simulated/log")
SYNC_US = 6_000
SLOW_SYNC_US = 250_000
HEARTBEAT_US = LogLimits().heartbeat_ns // 1_000
FETCH_FRAMES_MAX = 512


def scan(disk: SimDisk) -> tuple[list[Frame], tuple[str, int] | None]:
    """The log's frames as they lie on the disk, and where a torn tail begins: (name, bytes).

    Raises CorruptionError for any damage but a torn tail.
    """
    segments = [name for name in disk.names() if name.endswith(".ptlog")]
    if segments and len(disk.read(segments[-1])) < SEGMENT_HEADER_BYTES:
        segments.pop()
    by_start = {decode_segment_header(disk.read(name), name).start: name for name in segments}
    starts, segments = list(by_start), list(by_start.values())
    frames: list[Frame] = []
    torn = None
    for place, name in enumerate(segments):
        until: LogPosition | None = starts[place + 1] if place + 1 < len(starts) else None
        found = SegmentScan(disk.read(name), name, starts[place], until)
        frames += found
        if found.end is not None and found.end.ending is Ending.TORN:
            torn = (name, found.end.offset_bytes)
    return frames, torn


class WriterProcess:
    """One run of a writer; see the module."""

    def __init__(self, world: SimWriter, reads: list[ReadFrame]) -> None:
        """Recover and serve. Raises OSError or PagetrailError when the disk does not let it."""
        self.up = True
        self.reads = reads
        self._world = world
        self._sealing = False
        self._answers: list[tuple[str, str, int]] = []
        self._asks: list[tuple[str, Fetch]] = []
        self._starts = [read.frame.first_seq for read in reads]
        writer_epoch = take_epoch(world.slots, 0)
        sequencer = self._recover(world.disk)
        self._committer = Committer(
            LOG,
            sequencer,
            world.slots,
            None,
            limits=LogLimits(),
            clock=world.clock,
            files=world.disk,
        )
        self._publish(self._committer.start(writer_epoch))
        self._beat()

    def _recover(self, disk: SimDisk) -> Sequencer:
        frames, torn = scan(disk)
        known = len(self.reads)
        if [frame.chain for frame in frames[:known]] != [read.frame.chain for read in self.reads]:
            raise InvariantError(
                f"the disk holds {len(frames)} frames of the log and not the {known} that were "
                "acknowledged"
            )
        self.reads += [ReadFrame.of(frame) for frame in frames[known:]]
        self._starts = [read.frame.first_seq for read in self.reads]
        sequencer = Sequencer(LogLimits(), LOG_START)
        sequencer.replay(frames)
        for name in [name for name in disk.names() if name.endswith(".ptlog")][-1:]:
            descriptor = disk.open_append(Path(name))
            if torn is not None:
                disk.truncate(descriptor, torn[1])
            disk.fdatasync(descriptor)
            disk.close(descriptor)
        return sequencer

    @property
    def head(self) -> Head:
        """Where the durable log stands."""
        if not self.reads:
            return Head(self._committer.writer_epoch, 0, CHAIN_START)
        last = self.reads[-1].frame
        return Head(self._committer.writer_epoch, last.next_seq, last.chain)

    def stop(self) -> None:
        """The process is gone, with what it had gathered."""
        self.up = False

    def heard(self, sender: str, message: object) -> None:
        """A message from a client."""
        match message:
            case Ship():
                self._take(sender, message)
            case Fetch() if self._sealing:
                self._asks.append((sender, message))  # it must not miss what is being committed
            case Fetch():
                self._fetch(sender, message)
            case _:
                raise InvariantError(f"the writer was sent {type(message).__name__}")

    def _fetch(self, sender: str, fetch: Fetch) -> None:
        first = max(0, bisect_right(self._starts, fetch.from_seq) - 1)
        some = tuple(self.reads[first : first + FETCH_FRAMES_MAX])
        self._world.send(sender, Fetched(some, self.head))

    def _take(self, sender: str, ship: Ship) -> None:
        try:
            answer = self._committer.admit(
                ship.client, ship.client_epoch, encode_transactions(ship.transactions)
            )
        except WriterStoppedError:
            return
        if isinstance(answer, NotTaken):
            next_seq, _ = self._committer.expected(ship.client, ship.client_epoch)
            self._world.send(sender, ShipAnswer(ship.client_epoch, next_seq, taken=False))
            return
        self._answers.append((sender, ship.client, ship.client_epoch))
        if not self._sealing:
            self._sealing = True
            self._world.timeline.after(self._world.sync_us, self._commit)

    def _commit(self) -> None:
        if not self.up:
            return
        self._sealing = False
        try:
            frame = self._committer.commit()
        except FencedError:
            self._world.ended(self, restart=False)  # the newer one is the writer now
            return
        except WriterStoppedError:
            self._world.ended(self, restart=True)
            return
        if frame is not None:
            self._publish(frame)
        answers, self._answers = self._answers, []
        for sender, client, client_epoch in answers:
            next_seq, _ = self._committer.expected(client, client_epoch)
            self._world.send(sender, ShipAnswer(client_epoch, next_seq))
        asks, self._asks = self._asks, []
        for sender, ask in asks:
            self._fetch(sender, ask)

    def _publish(self, frame: Frame) -> None:
        read = ReadFrame.of(frame)
        self.reads.append(read)
        self._starts.append(frame.first_seq)
        live = Live(read, self.head)
        for follower in self._world.followers:
            self._world.send(follower, live)

    def _beat(self) -> None:
        if self.up:
            for follower in self._world.followers:
                self._world.send(follower, Live(None, self.head))
            self._world.timeline.after(HEARTBEAT_US, self._beat)


class SimWriter:
    """What lasts of the writer: disk, slots, clock, and the processes that serve; see the module.

    ``reads`` are the frames that a process has made durable, which is what it acknowledges.
    """

    def __init__(
        self,
        timeline: Timeline,
        network: Network,
        disk: SimDisk,
        clock: SimClock,
        followers: list[str],
    ) -> None:
        self.timeline = timeline
        self.disk = disk
        self.clock = clock
        self.followers = followers
        self.slots = SimSlots()
        self.sync_us = SYNC_US
        self.restart_us = 300_000
        self._network = network
        self._process: WriterProcess | None = None
        self._fenced: WriterProcess | None = None
        self._misled: frozenset[str] = frozenset()  # clients that still reach the fenced one
        self._reads: list[ReadFrame] = []
        network.attach(WRITER, self._heard)

    @property
    def up(self) -> bool:
        """Whether a process serves."""
        return self._process is not None and self._process.up

    @property
    def frames(self) -> list[Frame]:
        """The log as it was made durable."""
        return [read.frame for read in self._reads]

    @property
    def reads(self) -> list[ReadFrame]:
        """The same, decoded."""
        return self._reads

    def start(self) -> None:
        """Start a process; on a disk that does not work it is tried again later."""
        if self.up:
            return
        try:
            self._process = WriterProcess(self, list(self._reads))
        except InvariantError:
            raise
        except (OSError, PagetrailError) as error:
            if not self.disk.broken and not self.disk.full:
                raise InvariantError(f"no writer starts on a disk that works: {error}") from error
            self._process = None
            self.timeline.after(self.restart_us, self.start)
            return
        self._reads = self._process.reads

    def crash(self) -> None:
        """Kill the process; what it had written stays written."""
        for process in (self._process, self._fenced):
            if process is not None:
                process.stop()

    def lose_power(self) -> None:
        """The machine goes off: what was not synced may be gone."""
        self.crash()
        self.disk.lose_power()

    def take_over(self, misled: frozenset[str]) -> None:
        """Another process becomes the writer while this one lives and is still asked by some."""
        if not self.up or self.disk.broken or self.disk.full:
            return
        self._fenced, self._process, self._misled = self._process, None, misled
        self.start()

    def take_over_while_syncing(self, misled: frozenset[str]) -> None:
        """The same, between a write of the old process and its durability."""
        self.disk.while_syncing = lambda: self.take_over(misled)

    def settle(self) -> None:
        """Every client reaches the one that is the writer."""
        self._misled = frozenset()

    def ended(self, process: WriterProcess, *, restart: bool) -> None:
        """A process stopped by itself."""
        process.stop()
        if restart and process is self._process:
            self.timeline.after(self.restart_us, self.start)

    def send(self, receiver: str, message: object) -> None:
        """Send as the writer."""
        self._network.send(WRITER, receiver, message)

    def _heard(self, sender: str, message: object) -> None:
        process = self._process
        if self._fenced is not None and self._fenced.up and sender in self._misled:
            process = self._fenced
        if process is not None and process.up:
            process.heard(sender, message)
