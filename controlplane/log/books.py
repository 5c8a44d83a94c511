"""What the log knows of its clients: epochs, the next number of each, and recent answers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.transactions import is_refusal
from pagetrail.controlplane.log.wire import AnswerSpan, cut_span

CLIENTS_MAX = 65_536
"""Clients a log can know."""

EPOCHS_PER_CLIENT_MAX = 1_024
"""Epochs of a client whose end is kept; older ones are refused as stale."""


@dataclass(slots=True)
class _EpochBook:
    next_client_seq: int = 0
    spans: deque[AnswerSpan] = field(default_factory=deque)
    kept: int = 0

    def record(self, span: AnswerSpan, kept_max: int) -> None:
        self.spans.append(span)
        self.kept += span.count
        while len(self.spans) > 1 and self.kept - self.spans[0].count >= kept_max:
            self.kept -= self.spans.popleft().count


@dataclass(slots=True)
class _ClientBook:
    newest_epoch: int
    epochs: dict[int, _EpochBook] = field(default_factory=dict)


class ClientBooks:
    """See the module. ``answers`` bounds the transactions per client whose answer is kept."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._clients: dict[str, _ClientBook] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def expected(self, client: str, client_epoch: int) -> tuple[int, int]:
        """(next client_seq of this epoch, newest epoch of this client; -1 when unknown)."""
        book = self._clients.get(client)
        if book is None:
            return 0, -1
        epoch = book.epochs.get(client_epoch)
        return (epoch.next_client_seq if epoch else 0), book.newest_epoch

    def check_room(self, client: str) -> None:
        """``BadInputError`` when ``client`` is new and one too many."""
        if client not in self._clients and len(self._clients) >= CLIENTS_MAX:
            raise BadInputError(
                f"the log knows {CLIENTS_MAX} clients, its most; reuse client names"
            )

    def advance(self, client: str, client_epoch: int, next_client_seq: int) -> None:
        """Note the end of an epoch; a new epoch drops the answers of the older ones."""
        book = self._clients.get(client)
        if book is None:
            book = self._clients[client] = _ClientBook(client_epoch)
        epoch = book.epochs.get(client_epoch)
        if epoch is None:
            for older in book.epochs.values():
                older.spans.clear()
                older.kept = 0
            if len(book.epochs) >= EPOCHS_PER_CLIENT_MAX:
                del book.epochs[min(book.epochs)]
            epoch = book.epochs[client_epoch] = _EpochBook()
            book.newest_epoch = client_epoch
        epoch.next_client_seq = next_client_seq

    def record(self, client: str, client_epoch: int, span: AnswerSpan) -> None:
        """Keep an answer; only the newest epoch's are."""
        book = self._clients[client]
        if client_epoch == book.newest_epoch:
            book.epochs[client_epoch].record(span, self._answers)

    def answers(
        self, client: str, client_epoch: int, first_client_seq: int, count: int
    ) -> tuple[list[AnswerSpan], tuple[int, int] | None]:
        """Kept answers to transactions the log holds, and the range that is no longer kept."""
        end = first_client_seq + count
        found = []
        for span in self._clients[client].epochs[client_epoch].spans:
            low = max(first_client_seq, span.first_client_seq)
            high = min(end, span.first_client_seq + span.count)
            if low < high:
                found.append(cut_span(span, low, high - low))
        kept_from = found[0].first_client_seq if found else end
        if kept_from == first_client_seq:
            return found, None
        return found, (first_client_seq, kept_from - first_client_seq)

    def ends(self) -> tuple[tuple[str, int, int], ...]:
        """(client, epoch, next client_seq) of all epochs, older before newer per client."""
        return tuple(
            (client, epoch, book.epochs[epoch].next_client_seq)
            for client, book in sorted(self._clients.items())
            for epoch in sorted(book.epochs)
        )


def refusals_among(transactions: Sequence[Transaction]) -> tuple[int, ...]:
    """``client_seq`` of those that stand for refused transactions."""
    return tuple(t.client_seq for t in transactions if is_refusal(t))


def span_of(
    transactions: Sequence[Transaction], first_seq: int, refused: tuple[int, ...]
) -> AnswerSpan:
    """The answer to consecutive transactions whose first fact has ``first_seq``."""
    counts = [len(transaction.facts) for transaction in transactions]
    size = counts[0]
    alike = counts.count(size) == len(counts)
    return AnswerSpan(
        transactions[0].client_seq,
        len(counts),
        first_seq,
        size if alike else tuple(counts),
        refused,
    )


def facts_in(span: AnswerSpan) -> int:
    """Facts that the transactions of a span hold."""
    return span.sizes * span.count if isinstance(span.sizes, int) else sum(span.sizes)


def spans_of_frame(frame: Frame) -> list[tuple[str, int, AnswerSpan]]:
    """(client, client_epoch, answer) for every run of a frame."""
    seq = frame.first_seq
    found = []
    for run in frame.runs():
        span = span_of(run.transactions, seq, refusals_among(run.transactions))
        seq += facts_in(span)
        found.append((run.client, run.client_epoch, span))
    return found
