"""The tiers behind the workers in the simulator, and everything that an object store does wrong.

Owns the objects that were stored, whatever becomes of them. Reads go through the production restore
machine and every operation through the production breaker; what is handed back as restored is
compared, row by row, with what the bytes really were. Survives every crash of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import content_id
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tier

from ...tiers.breaker import Breaker
from ...tiers.restoring import ChunkToRead, DropLocal, Read, RestoreEffect, Restoring, Write
from ..messages import Restore
from .timeline import Draw, Timeline

WINDOW = 2
READ_LATE_US = 400_000
PUT_LATE_US = 1_500_000
Key = tuple[str, int, str]  # (holder, tier, location)


class Mood(Enum):
    """How the stores behave."""

    SOUND = "sound"
    FAILING = "failing"  # half of all operations answer 503
    LATE = "late"  # answers to writes come too late to be a receipt, answers to reads late
    PARTIAL = "partial"  # half of all writes stop midway, half of all reads end early
    STALE = "stale"  # what was written since is not seen by others


@dataclass(slots=True)
class Stores:
    """What the tiers hold. ``received`` is every (holder, tier, prefix) that ever got a receipt."""

    timeline: Timeline
    draw: Draw
    mood: Mood = Mood.SOUND
    since_us: int = 0
    received: set[tuple[str, int, bytes]] = field(default_factory=set)
    _objects: dict[Key, tuple[bytes, int]] = field(default_factory=dict)  # content, stored at
    _breakers: dict[tuple[str, int], Breaker] = field(default_factory=dict)

    def become(self, mood: Mood) -> None:
        """Behave so from now on."""
        self.mood = mood
        self.since_us = self.timeline.now_us

    def lose(self, holder: str, share_ppm: int) -> None:
        """Objects of a worker's disk, or of the object store (""), vanish behind all backs."""
        for key in sorted(key for key in self._objects if key[0] == holder):
            if self.draw.ppm(share_ppm):
                del self._objects[key]

    # ---- single operations, as a worker sees them

    def put(self, worker: str, key: Key, content: bytes) -> bool:
        """Write an object once; whether there is a receipt."""
        if not self._ask(worker, key[1]):
            return False
        mood = self.mood
        if mood is Mood.FAILING and self.draw.below(2):
            return self._told(worker, key[1], succeeded=False)
        if mood is Mood.LATE:
            self.timeline.after(self.draw.between(1_000, PUT_LATE_US), self._land, key, content)
            return self._told(worker, key[1], succeeded=False)
        if mood is Mood.PARTIAL and self.draw.below(2):
            if key[1] == Tier.SSD:  # an object store shows no object that was not sent whole
                self._land(key, b"the first part of " + content)
            return self._told(worker, key[1], succeeded=False)
        self._land(key, content)
        return self._told(worker, key[1], succeeded=True)

    def get(self, worker: str, key: Key) -> bytes | None:
        """What a read brings: the content's digest; None: nothing."""
        if not self._ask(worker, key[1]):
            return None
        if self.mood is Mood.FAILING and self.draw.below(2):
            self._told(worker, key[1], succeeded=False)
            return None
        content, stored_us = self._objects.get(key, (None, 0))
        if self.mood is Mood.STALE and stored_us >= self.since_us:
            content = None
        if content is not None and self.mood is Mood.PARTIAL and self.draw.below(2):
            content = b"the first part of " + content
        self._told(worker, key[1], succeeded=True)
        return content

    def drop(self, key: Key) -> None:
        """Delete an object that was found corrupt."""
        self._objects.pop(key, None)

    def _land(self, key: Key, content: bytes) -> None:
        if key not in self._objects:  # written once; a late write changes nothing that is there
            self._objects[key] = (content, self.timeline.now_us)

    def _ask(self, worker: str, tier: int) -> bool:
        breaker = self._breakers.get((worker, tier), Breaker())
        self._breakers[worker, tier], allowed = breaker.ask(self.timeline.now_us * 1_000)
        return allowed

    def _told(self, worker: str, tier: int, *, succeeded: bool) -> bool:
        breaker = self._breakers[worker, tier]
        now_ns = self.timeline.now_us * 1_000
        after = breaker.succeeded() if succeeded else breaker.failed(now_ns)
        self._breakers[worker, tier] = after
        return succeeded


@dataclass(slots=True)
class WorkerStores:
    """``Tiers`` as one worker epoch reaches them. ``index`` is its catalog."""

    stores: Stores
    worker: str
    worker_epoch: int
    fingerprint: bytes
    index: LiveIndex
    _written: int = 0

    @property
    def read_late_us(self) -> int:
        """How much longer reads take now than their bytes need."""
        return READ_LATE_US if self.stores.mood is Mood.LATE else 0

    def restored_tokens(self, effect: Restore, chunk_tokens: int) -> int:
        """Verified tokens, up to the first chunk that is missing or wrong."""
        first = effect.first_token // chunk_tokens
        holder = self._holder(effect.tier)
        chunks = tuple(
            ChunkToRead(
                prefix,
                (first + place) * chunk_tokens,
                (first + place + 1) * chunk_tokens,
                self.index.stored(self.fingerprint, prefix, holder, effect.tier),
            )
            for place, prefix in enumerate(effect.chunks)
        )
        machine = Restoring(
            effect.stream, effect.tier, effect.first_token, effect.tokens, chunks, WINDOW
        )
        reached = effect.first_token
        read: dict[int, bytes | None] = {}
        effects = machine.begin()
        while effects:
            effects, done = self._carry_out(machine, effects, read)
            reached += done
        self._check(effect, chunks, read, reached)
        return reached

    def _carry_out(
        self, machine: Restoring, effects: list[RestoreEffect], read: dict[int, bytes | None]
    ) -> tuple[list[RestoreEffect], int]:
        """Perform effects; what follows from the reads among them, and the rows restored."""
        places: list[int] = []
        rows = 0
        for effect in effects:
            match effect:
                case Read(place):
                    places.append(place)
                case DropLocal(place):
                    if machine.tier == Tier.SSD:
                        self.stores.drop(self._key(machine.tier, machine.chunks[place]))
                case Write():
                    pass  # the rows are counted when the restore ends
                case _:
                    rows = effect.rows
        if len(places) > 1 and self.stores.draw.below(2):
            places.reverse()  # reads overtake each other
        follows: list[RestoreEffect] = []
        for place in places:
            chunk = machine.chunks[place]
            content = (
                self.stores.get(self.worker, self._key(machine.tier, chunk))
                if chunk.parts
                else None
            )
            read[place] = content
            sound = content is not None and content == chunk.parts[0].content_id
            follows += machine.arrived(place, sound, corrupt=content is not None and not sound)
        return follows, rows

    def _check(
        self,
        effect: Restore,
        chunks: tuple[ChunkToRead, ...],
        read: dict[int, bytes | None],
        reached: int,
    ) -> None:
        """No byte is served that was not verified, whatever the machines believe."""
        for place, chunk in enumerate(chunks):
            restored = effect.first_token < reached and chunk.token_start < reached
            if restored and read.get(place) != content_id(chunk.prefix):
                raise InvariantError(
                    f"{self.worker} serves stream {effect.stream} rows up to {reached}, and chunk "
                    f"{place} of its restore was never verified"
                )

    def stored_in(self, prefix: bytes, tiers: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
        """Receipts of the tiers that took the chunk, under a key that carries the attempt."""
        self._written += 1
        location = f"{prefix.hex()}/{self.worker}.{self.worker_epoch}.{self._written}"
        receipts = []
        for tier in tiers:
            holder = self._holder(tier)
            if self.stores.put(self.worker, (holder, tier, location), content_id(prefix)):
                self.stores.received.add((holder, tier, prefix))
                receipts.append((tier, location))
        return tuple(receipts)

    def _key(self, tier: int, chunk: ChunkToRead) -> Key:
        return self._holder(tier), tier, chunk.parts[0].location

    def _holder(self, tier: int) -> str:
        return "" if tier == Tier.OBJECT else self.worker
