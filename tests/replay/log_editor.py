"""Changes a log the way someone would who wants replay not to notice, and seals it again.

A log is read into plain lists with an independent msgpack reader; an edit changes them; then
lengths, counts, checksums, the chain over frames and the positions are made right again, so that
nothing but the changed bytes tells. One segment, which is what a run without a restart writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    HEADER_BYTES,
    LOG_START,
    FrameHeader,
    encode_frame,
    position_after,
)
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.segments import (
    SegmentHeader,
    encode_segment_header,
    segment_name,
)

# A frame's runs: [client, client_epoch, [transaction, ...]]; a transaction is
# [client_seq, causes, compare_and_set, [[op, kind, schema_v, body], ...]].
SEQ, CAUSES, REGISTERS, FACTS = 0, 1, 2, 3
OP, KIND, VERSION, BODY = 0, 1, 2, 3


@dataclass(frozen=True)
class Place:
    """Where a transaction lies: frame, run in it, transaction in that."""

    frame: int
    run: int
    transaction: int


class EditableLog:
    """A log in memory. Edits are made on copies: ``edited`` never changes the original."""

    def __init__(self, headers: list[FrameHeader], frames: list[list[Any]]) -> None:
        self.headers = headers
        self.frames = frames

    @classmethod
    def read(cls, directory: Path) -> EditableLog:
        headers, frames = [], []
        for frame in read_log(directory):
            headers.append(frame.header)
            frames.append(
                msgpack.unpackb(frame.raw[HEADER_BYTES:], raw=False, strict_map_key=False)
            )
        return cls(headers, frames)

    def places(self) -> Iterator[tuple[Place, str, int, Any]]:
        """(place, client, client epoch, transaction) in the log's order."""
        for number, runs in enumerate(self.frames):
            for run_number, (client, epoch, transactions) in enumerate(runs):
                for at, transaction in enumerate(transactions):
                    yield Place(number, run_number, at), client, epoch, transaction

    def copy_for(self, place: Place) -> EditableLog:
        """A copy whose frame at the place may be edited freely."""
        frames = list(self.frames)
        frames[place.frame] = deepcopy(frames[place.frame])
        return EditableLog(self.headers, frames)

    def whole_copy(self) -> EditableLog:
        """A copy that may be edited anywhere."""
        return EditableLog(self.headers, deepcopy(self.frames))

    def run(self, place: Place) -> Any:
        return self.frames[place.frame][place.run]

    def transaction(self, place: Place) -> Any:
        return self.run(place)[2][place.transaction]

    def renumber(self, client: str) -> None:
        """Number a client's transactions from 0 again, so that no number is missing or twice."""
        seq = 0
        for runs in self.frames:
            for run in runs:
                if run[0] == client:
                    for transaction in run[2]:
                        transaction[SEQ] = seq
                        seq += 1

    def write(self, directory: Path) -> None:
        """Seal everything again into a log under ``directory``."""
        position = LOG_START
        first = self.headers[0]
        out = [encode_segment_header(SegmentHeader(first.writer_epoch, LOG_START))]
        for header, runs in zip(self.headers, self.frames, strict=True):
            kept = [run for run in runs if run[2]]
            transactions = [transaction for run in kept for transaction in run[2]]
            if not transactions:
                continue
            frame = encode_frame(
                msgpack.packb(kept, use_bin_type=True),
                flags=FLAG_REGISTERS if any(item[REGISTERS] for item in transactions) else 0,
                fact_count=sum(len(item[FACTS]) for item in transactions),
                transaction_count=len(transactions),
                writer_epoch=header.writer_epoch,
                first_seq=position.next_seq,
                t_us=max(header.t_us, position.last_t_us + 1),
                previous_chain=position.chain,
            )
            position = position_after(frame)
            out.append(frame.raw)
        log = directory / "log"
        log.mkdir(parents=True, exist_ok=True)
        (log / segment_name(0, first.writer_epoch)).write_bytes(b"".join(out))


def leaves(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Paths to a value's parts: every field, and the first and last of what is nested in one."""
    if path:
        yield path
    if isinstance(value, list):
        ends = {0, len(value) - 1} if value else set()
        for place in range(len(value)) if not path else sorted(ends):
            yield from leaves(value[place], (*path, place))


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """(what was done, another value of the same form)."""
    if isinstance(value, bool):
        yield "turned over", not value
    elif isinstance(value, int):
        yield "plus one", value + 1
        yield "another sign", -value - 1
    elif isinstance(value, bytes):
        yield "one bit", value[:-1] + bytes([value[-1] ^ 1]) if value else b"\x01"
    elif isinstance(value, str):
        yield "a letter more", value + "x"
    elif value is None:
        yield "something for nothing", []
    elif isinstance(value, list):
        yield "one more", [*value, value[-1] if value else 0]
        if value:
            yield "one less", value[:-1]


def set_at(root: Any, path: tuple[int, ...], value: Any) -> None:
    """Replace what a path leads to."""
    for place in path[:-1]:
        root = root[place]
    root[path[-1]] = value


def get_at(root: Any, path: tuple[int, ...]) -> Any:
    """What a path leads to."""
    for place in path:
        root = root[place]
    return root
