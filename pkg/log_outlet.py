"""A process's own clients of the log, and the catalog that follows it.

Owns one FactClient per machine, the stream and the live index of a process whose machines decide
in one thread. Spools before the caller acts; ``settle`` waits until the log shows everything.
When a writer that this process started has ended, it is started again on the same endpoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import InvariantError, PagetrailError
from pagetrail.catalog.index import LiveIndex
from pagetrail.controlplane.cluster.traceworld import Shown
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.errors import LogTimeoutError
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.writer import WriterProcess, start_writer_process
from pagetrail.log_client import spool_numbered
from pagetrail.log_follow import shown_of

SETTLE_TIMEOUT_S = 120.0
PATIENCE_S = 2.0
WRITER_RESTARTS_MAX = 100


class LogOutlet:
    """See the module. Belongs to one thread."""

    def __init__(
        self,
        directory: Path,
        clients: tuple[str, ...],
        *,
        clock: str,
        serial: bool,
        limits: LogLimits | None = None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._serial = serial
        self._limits = limits or LogLimits()
        self._restarts = 0
        self.writer: WriterProcess = start_writer_process(
            directory, clock=clock, limits=self._limits
        )
        self._endpoints = (self.writer.endpoint, self.writer.publish_endpoint)
        self.index = LiveIndex()
        self.spooled = 0
        self._clients: dict[str, FactClient] = {}
        self._stream: LogStream | None = None
        try:
            self._stream = LogStream(*self._endpoints, limits=self._limits)
            for name in clients:
                self._clients[name] = FactClient.open(
                    directory, name, self._endpoints[0], limits=self._limits
                )
            self.settle()
        except BaseException:
            self.close()
            raise

    @property
    def epochs(self) -> Mapping[str, int]:
        """The client epoch that each client took."""
        return {name: client.client_epoch for name, client in self._clients.items()}

    def spool(self, client: str, transactions: list[Transaction]) -> None:
        """Spool transactions that a journal has numbered; they must be the client's next."""
        if not transactions:
            return
        if self._serial:
            for transaction in transactions:
                self._append(client, [transaction])
                self._flush(client)
        else:
            self._append(client, transactions)

    def settle(self) -> dict[str, list[Shown]]:
        """Wait until the log shows all that was spooled, and apply it to the index."""
        for name in self._clients:
            self._flush(name)
        head = max((client.head for client in self._clients.values()), default=0)
        shown: dict[str, list[Shown]] = {name: [] for name in self._clients}
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while self._following.next_seq < head:
            if time.monotonic() > deadline_s:
                raise LogTimeoutError(
                    f"the log's stream stands at {self._following.next_seq} and {head} facts are "
                    f"acknowledged; waited {SETTLE_TIMEOUT_S} s. Is the writer overloaded?"
                )
            for frame in self._following.poll(PATIENCE_S):
                self._show(frame, shown)
        return shown

    def close(self) -> None:
        """Let go of the clients and the stream, and end the writer."""
        for client in self._clients.values():
            client.close()
        if self._stream is not None:
            self._stream.close()
        if self.writer.process.poll() is None:
            self.writer.terminate()

    # ---- inside

    @property
    def _following(self) -> LogStream:
        if self._stream is None:
            raise InvariantError("the outlet has no stream; it was not opened")
        return self._stream

    def _append(self, client: str, transactions: list[Transaction]) -> None:
        spool_numbered(self._clients[client], transactions)
        self.spooled += sum(len(transaction.facts) for transaction in transactions)

    def _flush(self, client: str) -> None:
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                self._clients[client].flush(PATIENCE_S)
                return
            except LogTimeoutError:
                if time.monotonic() > deadline_s:
                    raise
                self._restart_writer()

    def _restart_writer(self) -> None:
        code = self.writer.process.poll()
        if code is None:
            return
        self._restarts += 1
        if self._restarts > WRITER_RESTARTS_MAX:
            raise PagetrailError(
                f"the writer ended {self._restarts} times, last with code {code}; see its messages"
            )
        self.writer = start_writer_process(
            self._directory,
            bind=self._endpoints[0],
            publish=self._endpoints[1],
            clock=self._clock,
            limits=self._limits,
        )

    def _show(self, frame: Frame, shown: dict[str, list[Shown]]) -> None:
        self.index.apply(frame.facts())
        for name, client in self._clients.items():
            shown[name] += shown_of(frame, name, client.client_epoch)
