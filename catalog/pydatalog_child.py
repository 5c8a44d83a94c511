"""The process that runs pyDatalog for ``pydatalog_front``: requests on stdin, replies on stdout.

pyDatalog may never end, executes Python text, and keeps its state in the thread; so it lives here,
where it can be killed. A message is its length (4 bytes, big-endian) and a msgpack array. Run as
``python -m pagetrail.catalog.pydatalog_child``; it ends at the end of its input.
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import msgspec
from pyDatalog import pyDatalog, pyEngine

MESSAGE_BYTES_MAX = 1 << 30


class Request(msgspec.Struct, frozen=True, array_like=True):
    """``facts`` to assert by predicate, then ``clauses`` to load, then a ``goal`` to ask."""

    facts: dict[str, list[list[Any]]]
    arities: dict[str, int]
    clauses: str
    goal: str


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer's rows, or what went wrong."""

    rows: list[list[Any]]
    error: str


def read_message(stream: BinaryIO) -> bytes | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def frame(body: bytes) -> bytes:
    """A message as it is written."""
    return len(body).to_bytes(4, "big") + body


def main() -> None:
    """Serve until the input ends."""
    pyEngine.Float_Precision = None
    decoder = msgspec.msgpack.Decoder(Request)
    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    while (message := read_message(sys.stdin.buffer)) is not None:
        replies.write(frame(msgspec.msgpack.encode(_serve(decoder.decode(message)))))
        replies.flush()


def _serve(request: Request) -> Reply:
    try:
        for predicate, arity in request.arities.items():
            # A predicate without any fact is an error to pyDatalog, one emptied again is not.
            nothing = [0] * arity
            pyDatalog.assert_fact(predicate, *nothing)
            pyDatalog.retract_fact(predicate, *nothing)
            for row in request.facts.get(predicate, ()):
                pyDatalog.assert_fact(predicate, *row)
        if request.clauses:
            pyDatalog.load(request.clauses)
        if not request.goal:
            return Reply([], "")
        answer = pyDatalog.ask(request.goal)
    except Exception as error:  # whatever pyDatalog or the text's own Python raises
        return Reply([], f"{type(error).__name__}: {error}")
    rows = [] if answer is None else [list(row) for row in answer.answers]
    for row in rows:
        for value in row:
            if isinstance(value, bool) or not isinstance(value, (int, str, bytes)):
                return Reply([], f"an answer holds {value!r}, which is no value of the language")
    return Reply(rows, "")


if __name__ == "__main__":
    main()
