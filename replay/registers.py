"""The writer's verdicts on preconditions, made again in the order of the log.

Owns the registers as the log leaves them: a transaction that was accepted must have found what it
expected, a refused one is told by what the register held, which must be so.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.system import Refused


class Registers:
    """Registers that hold something, as of the last transaction folded."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}

    def fold(self, transaction: Transaction) -> Iterator[str]:
        """Take one transaction in; says where the writer cannot have judged so.

        Raises PagetrailError when a refusal cannot be read.
        """
        wire = transaction.facts[0]
        if wire.kind == KindId.REFUSED:
            refused = decode_body(wire.kind, wire.schema_v, wire.body)
            if isinstance(refused, Refused):
                yield from self._refused(refused)
            return
        for wanted in transaction.compare_and_set:
            held = self._held.get(wanted.register)
            if held != wanted.expected:
                yield (
                    f"was accepted expecting {_text(wanted.expected)} in register "
                    f"{_text(wanted.register)}, which held {_text(held)}"
                )
        for wanted in transaction.compare_and_set:
            if wanted.new is None:
                self._held.pop(wanted.register, None)
            else:
                self._held[wanted.register] = wanted.new

    def _refused(self, refused: Refused) -> Iterator[str]:
        held = self._held.get(refused.register)
        if refused.actual != held:
            yield (
                f"was refused because register {_text(refused.register)} held "
                f"{_text(refused.actual)}; it held {_text(held)}"
            )


def _text(value: bytes | None) -> str:
    return "nothing" if value is None else value.hex()[:32]
