"""What a machine learns of its own transactions by following the log."""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.system import Refused
from pagetrail.controlplane.cluster.traceworld import Shown
from pagetrail.controlplane.log.frames import Frame

_REFUSED = msgspec.msgpack.Decoder(Refused)


def shown_of(frame: Frame, client: str, client_epoch: int) -> list[Shown]:
    """The publications of one client epoch that a frame shows, accepted or refused, in order."""
    shown = []
    for run in frame.runs():
        if run.client != client or run.client_epoch != client_epoch:
            continue
        for transaction in run.transactions:
            first = transaction.facts[0]
            if first.kind == KindId.REFUSED:
                actual = _REFUSED.decode(first.body).actual
                shown.append(Shown(transaction.client_seq, True, actual))
            elif first.kind in (KindId.NODE, KindId.COPY):
                shown.append(Shown(transaction.client_seq, False, None))
    return shown


def shown_through(frame: Frame, client: str, client_epoch: int) -> int:
    """The ``client_seq`` after the last transaction of one client epoch in a frame; 0 for none."""
    return max(
        (
            run.transactions[-1].client_seq + 1
            for run in frame.runs()
            if (run.client, run.client_epoch) == (client, client_epoch)
        ),
        default=0,
    )
