"""A client of the log that starts: it serves nobody before it knows where it stands.

As the production client does, it ships what earlier epochs left in the spool, then reads the log up
to its head; there it finds where its epoch before ended. Only then does its machine begin.
"""

from __future__ import annotations

from collections.abc import Callable

from pagetrail.catalog.envelope import Run
from pagetrail.controlplane.journal import Journal

from .log import RETRY_US, WRITER, Fetch, Fetched, Live, ShipAnswer, SimSpool
from .nodes import Begin, Node, Surroundings


class Starter(Node):
    """Calls ``begun`` once, from the event in which everything was drained and read."""

    def __init__(
        self,
        name: str,
        around: Surroundings,
        spool: SimSpool,
        begun: Callable[[Begin], None],
    ) -> None:
        super().__init__(name, around, Begin(spool, None))
        self._begun = begun
        self._journal: Journal | None = None
        self._every(RETRY_US, self._ask)
        self._ask()

    def _ask(self) -> None:
        """Ship what is left, and ask for the log; answers come when all of it is durable."""
        if self.spool.next_to_ship() is not None:
            self._ship()
        else:
            self.network.send(self.name, WRITER, Fetch(self.follower.next_seq))

    def _take(self, sender: str, message: object) -> None:
        match message:
            case ShipAnswer():
                self.spool.answered(message)
                self._ask()
            case Live():
                self.followed(self.follower.heard(message))
            case Fetched():
                self.followed(self.follower.heard(message))
                if self.spool.next_to_ship() is None and not self.follower.behind:
                    self.crash()  # this stage is over
                    self._begun(Begin(self.spool, self._journal, self.follower))
                else:
                    self._ask()
            case _:
                pass  # nobody can be served yet

    def followed(self, runs: list[Run]) -> None:
        """Find the newest epoch of this client and where it ended."""
        for run in runs:
            if run.client != self.name:
                continue
            if self._journal is None or self._journal.client_epoch != run.client_epoch:
                self._journal = Journal(run.client, run.client_epoch)
            for transaction in run.transactions:
                self._journal.fold(transaction)
