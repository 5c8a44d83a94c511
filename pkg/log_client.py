"""A process's client of the log, as its deciding thread uses it.

Owns the FactClient, the thread that follows the live stream and the way frames reach the deciding
thread (a callback that must only queue). Used by the worker and by the gateway alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import InvariantError, PagetrailError
from pagetrail.controlplane.journal import Journal, last_journals
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.stream import LogStream

POLL_S = 0.1


def spool_numbered(client: FactClient, transactions: Sequence[Transaction]) -> None:
    """Spool transactions that a journal has numbered; they must be the client's next."""
    if not transactions:
        return
    drafts = [
        Draft(
            facts=transaction.facts,
            causes=transaction.causes,
            compare_and_set=transaction.compare_and_set,
        )
        for transaction in transactions
    ]
    first = client.append_many(drafts)[0]
    if first.client_seq != transactions[0].client_seq:
        raise InvariantError(
            f"{client.client} spooled transaction {first.client_seq}; its journal wrote "
            f"{transactions[0].client_seq}. Something else appends to this client"
        )


class LogClient:
    """See the module. ``followed`` is called from the following thread with contiguous frames."""

    def __init__(
        self,
        directory: Path,
        client: str,
        endpoint: str,
        publish_endpoint: str,
        caught_up: Callable[[list[Frame]], None],
        followed: Callable[[list[Frame]], None],
        *,
        limits: LogLimits,
        keys: ClientKeys | None,
        catch_up_timeout_s: float,
    ) -> None:
        """Opens the spool, drains what earlier epochs left, and reads the log up to its head.

        Those frames go to ``caught_up``, in this thread; later ones to ``followed``. ``previous``
        says where the client's epoch before ended.
        """
        self._facts = FactClient.open(directory, client, endpoint, limits=limits, keys=keys)
        self._followed = followed
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        try:
            self._facts.flush(catch_up_timeout_s)
            self._stream = LogStream(endpoint, publish_endpoint, limits=limits, keys=keys)
            self.previous = self._catch_up(client, caught_up, catch_up_timeout_s)
        except BaseException:
            self._facts.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="log-follow", daemon=True)

    @property
    def epoch(self) -> int:
        """The client epoch that this process took."""
        return self._facts.client_epoch

    @property
    def failure(self) -> Exception | None:
        """Why the log is no longer followed or written; None while all is well."""
        return self._failure or self._facts.failure

    def start(self) -> None:
        """Begin to follow; frames of the catching up have been handed over already."""
        self._thread.start()

    def spool(self, transactions: list[Transaction]) -> None:
        """Spool transactions that the journal has numbered; they must be the client's next."""
        spool_numbered(self._facts, transactions)

    def reserve(self, size_bytes: int) -> Callable[[], None]:
        """Room for one request's facts. Raises HeadroomError when the spool is short of it."""
        return self._facts.reserve(size_bytes).release

    def flush(self, timeout_s: float) -> None:
        """Wait until everything spooled is acknowledged."""
        self._facts.flush(timeout_s)

    def close(self) -> None:
        """Stop following and shipping; what is unacknowledged stays in the spool."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._facts.close()

    # ---- following

    def _catch_up(
        self, client: str, caught_up: Callable[[list[Frame]], None], timeout_s: float
    ) -> Journal | None:
        runs = []
        waited_s = 0.0
        while self._stream.next_seq < self._facts.head:
            frames = self._stream.poll(POLL_S)
            if not frames:
                waited_s += POLL_S
                if waited_s > timeout_s:
                    raise PagetrailError(
                        f"the log's stream stands at {self._stream.next_seq} of "
                        f"{self._facts.head} facts and does not move; is the writer overloaded?"
                    )
                continue
            caught_up(frames)
            for frame in frames:
                runs += [
                    run
                    for run in frame.runs()
                    if run.client == client and run.client_epoch < self.epoch
                ]
        return last_journals(runs).get(client)

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                frames = self._stream.poll(POLL_S)
                if frames:
                    self._followed(frames)
        except Exception as error:  # whoever polls ``failure`` ends the process
            self._failure = error
        finally:
            self._stream.close()
