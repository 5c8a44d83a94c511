"""Whoever changes or removes an input of a decision, and seals the log again, is found out.

Every field of every kind of fact that a run holds is changed, and whole facts and transactions are
removed, swapped and doubled. Verify must name the client whose journal was touched, not later than
where that journal is next vouched for; what nothing vouches for must be counted as unattested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest
from log_editor import (
    BODY,
    CAUSES,
    FACTS,
    KIND,
    OP,
    REGISTERS,
    SEQ,
    VERSION,
    EditableLog,
    Place,
    changes,
    get_at,
    leaves,
    set_at,
)
from replay_runs import Served, serve_generated

from pagetrail.catalog.errors import PagetrailError
from pagetrail.catalog.facts import DECISION_KINDS, KINDS, KindId
from pagetrail.controlplane.policy.recorder import FULL
from pagetrail.replay.verify import VerifyResult, verify

VOUCHING = {*map(int, DECISION_KINDS), int(KindId.KEYFRAME)}


@dataclass(frozen=True)
class Tampering:
    """One way to change a log."""

    what: str
    client: str
    client_seq: int  # the first transaction that is not what it was
    edited: Callable[[], EditableLog]
    shift: int = 0  # by how many numbers what follows has moved


class Original:
    """An untouched log and what vouches for what in it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.log = EditableLog.read(served.directory)
        self.vouching: dict[str, list[int]] = {}
        self.count: dict[str, int] = {}
        self.keyframes: set[tuple[str, int]] = set()
        for _, client, _, transaction in self.log.places():
            self.count[client] = self.count.get(client, 0) + 1
            if transaction[FACTS][0][KIND] in VOUCHING:
                self.vouching.setdefault(client, []).append(transaction[SEQ])
            if transaction[FACTS][0][KIND] == KindId.KEYFRAME:
                self.keyframes.add((client, transaction[SEQ]))

    def bound(self, client: str, client_seq: int) -> int | None:
        """The first later transaction that cites the chain over this one; None: there is none."""
        later = [seq for seq in self.vouching.get(client, []) if seq > client_seq]
        return min(later, default=None)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Two workers with tiers and tiny pools, everything recorded in full, keyframes between."""
    return Original(
        serve_generated(
            tmp_path_factory.mktemp("original"),
            seed=3,
            requests=16,
            workers=2,
            pages=36,
            keyframe_every=40,
            record=FULL,
        )
    )


@pytest.fixture(scope="module")
def unfinished(original: Original, tmp_path_factory: pytest.TempPathFactory) -> Original:
    """The same log as a crash leaves it: every client's last transactions never came."""
    log = original.log.whole_copy()
    for runs in log.frames:
        for client, _, transactions in runs:
            last = original.count[client] - (1 if client.startswith("~") else 4)
            transactions[:] = [item for item in transactions if item[SEQ] <= last]
    directory = tmp_path_factory.mktemp("unfinished")
    log.write(directory)
    return Original(replace(original.served, directory=directory))


def test_the_editor_writes_back_what_it_read(original: Original, tmp_path: Path) -> None:
    original.log.write(tmp_path)
    assert _bytes(tmp_path) == _bytes(original.served.directory)


def test_the_original_holds(original: Original) -> None:
    result = verify(original.served.directory)
    assert result.ok, result.findings
    assert set(result.rederived) == {"route", "admit", "evict", "restore", "checkpoint", "keep"}


def test_every_field_of_every_kind_of_fact_is_vouched_for(
    original: Original, tmp_path: Path
) -> None:
    _all_are_found_out(original, _each_field_once(original), tmp_path)


def test_parts_of_the_envelope_are_vouched_for(original: Original, tmp_path: Path) -> None:
    _all_are_found_out(original, islice(_envelopes(original), 0, None, 7), tmp_path)


def test_facts_and_transactions_removed_swapped_or_doubled_are_found_out(
    original: Original, tmp_path: Path
) -> None:
    _all_are_found_out(original, islice(_moves(original), 0, None, 4), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_inside_every_field_is_vouched_for(original: Original, tmp_path: Path) -> None:
    _all_are_found_out(original, _fields(original), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_part_of_every_envelope_is_vouched_for(original: Original, tmp_path: Path) -> None:
    _all_are_found_out(original, _envelopes(original), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_is_removed_swapped_or_doubled_is_found_out(
    original: Original, tmp_path: Path
) -> None:
    _all_are_found_out(original, _moves(original), tmp_path)


def test_in_a_log_without_its_end_the_rest_is_counted_as_unattested(
    unfinished: Original, tmp_path: Path
) -> None:
    clean = verify(unfinished.served.directory)
    assert clean.ok, clean.findings
    assert set(clean.unattested) >= {"router", "worker-0", "worker-1"}
    _all_are_found_out(unfinished, islice(_ends(unfinished), 0, None, 4), tmp_path)


# ---------------------------------------------------------------- what is done to a log


def _fields(original: Original) -> Iterator[Tampering]:
    """Every field of the first, a middle and the last fact of every kind."""
    found: dict[int, list[tuple[Place, str, int, int]]] = {}
    for place, client, _, transaction in original.log.places():
        for index, fact in enumerate(transaction[FACTS]):
            found.setdefault(fact[KIND], []).append((place, client, transaction[SEQ], index))
    for kind, at in found.items():
        for place, client, seq, index in {at[0], at[len(at) // 2], at[-1]}:
            yield from _values(
                original, f"{KINDS[kind].name} {client}/{seq}", place, client, (FACTS, index, BODY)
            )


def _each_field_once(original: Original) -> Iterator[Tampering]:
    """One change to every field of the first fact of every kind."""
    seen: set[int] = set()
    for place, client, _, transaction in original.log.places():
        for index, fact in enumerate(transaction[FACTS]):
            if fact[KIND] not in seen:
                seen.add(fact[KIND])
                name = f"{KINDS[fact[KIND]].name} {client}/{transaction[SEQ]}"
                for field, value in enumerate(fact[BODY]):
                    path = (FACTS, index, BODY, field)
                    what, other = next(changes(value))
                    yield _changed(original, f"{name} {what}", place, client, path, other)


def _envelopes(original: Original) -> Iterator[Tampering]:
    """Numbers, causes, preconditions, ops, kinds and versions, of one transaction of each form."""
    seen: set[tuple[object, ...]] = set()
    for place, client, _, transaction in original.log.places():
        kinds = tuple(fact[KIND] for fact in transaction[FACTS])
        form = (kinds, bool(transaction[CAUSES]), bool(transaction[REGISTERS]))
        if form in seen:
            continue
        seen.add(form)
        name = f"envelope of {KINDS[kinds[0]].name} {client}/{transaction[SEQ]}"
        for path in ((SEQ,), (CAUSES,), (REGISTERS,)):
            yield from _values(original, name, place, client, path, itself=True)
        for index in range(len(kinds)):
            for part in (OP, KIND, VERSION):
                yield from _values(original, name, place, client, (FACTS, index, part), itself=True)
    for place, client, epoch, transaction in original.log.places():
        if transaction[SEQ] == original.count[client] // 2:

            def moved(place: Place = place, epoch: int = epoch) -> EditableLog:
                log = original.log.copy_for(place)
                log.run(place)[1] = epoch + 1
                return log

            yield Tampering(f"epoch of {client}", client, transaction[SEQ], moved)


def _values(
    original: Original,
    name: str,
    place: Place,
    client: str,
    root: tuple[int, ...],
    *,
    itself: bool = False,
) -> Iterator[Tampering]:
    transaction = original.log.transaction(place)
    value = get_at(transaction, root)
    paths = [root] if itself else []
    paths += [(*root, *path) for path in leaves(value)]
    for path in paths:
        part = get_at(transaction, path)
        if path == (CAUSES,) and not part:
            yield _changed(original, f"{name} with a cause", place, client, path, [[client, 1, 0]])
            continue
        for what, other in changes(part):
            yield _changed(original, f"{name} {what}", place, client, path, other)


def _changed(
    original: Original, name: str, place: Place, client: str, path: tuple[int, ...], other: object
) -> Tampering:
    """A copy in which a path of one transaction leads to something else."""

    def edited() -> EditableLog:
        log = original.log.copy_for(place)
        set_at(log.transaction(place), path, other)
        return log

    return Tampering(f"{name} at {path}", client, original.log.transaction(place)[SEQ], edited)


def _moves(original: Original) -> Iterator[Tampering]:
    """Whole facts and transactions, of every form once."""
    seen: set[tuple[object, ...]] = set()
    for place, client, _, transaction in original.log.places():
        kinds = tuple(fact[KIND] for fact in transaction[FACTS])
        if kinds in seen or client.startswith("~"):
            continue
        seen.add(kinds)
        seq = transaction[SEQ]
        name = f"{KINDS[kinds[0]].name} {client}/{seq}"
        yield Tampering(f"{name} removed", client, seq, _removed(original, place, client))
        yield Tampering(f"{name} doubled", client, seq, _doubled(original, place, client), shift=1)
        yield Tampering(f"{name} left out", client, seq, _removed(original, place, None))
        yield Tampering(f"{name} said twice", client, seq, _doubled(original, place, None))
        if seq + 1 < original.count[client]:
            yield Tampering(f"{name} swapped", client, seq, _swapped(original, client, seq))
        for index in range(len(kinds)):
            if len(kinds) > 1:
                yield Tampering(
                    f"{name} without fact {index}", client, seq, _without(original, place, index)
                )
                yield Tampering(
                    f"{name} with fact {index} first", client, seq, _first(original, place, index)
                )


def _ends(original: Original) -> Iterator[Tampering]:
    for place, client, _, transaction in original.log.places():
        if transaction[SEQ] >= original.count[client] - 3:
            name = f"{client}/{transaction[SEQ]}"
            yield from _values(original, name, place, client, (FACTS, 0, BODY))
            yield from _values(original, name, place, client, (CAUSES,), itself=True)


def _removed(original: Original, place: Place, client: str | None) -> Callable[[], EditableLog]:
    """Without the transaction; the client's numbers are made gapless when it is given."""

    def edited() -> EditableLog:
        log = original.log.whole_copy()
        del log.run(place)[2][place.transaction]
        if client is not None:
            log.renumber(client)
        return log

    return edited


def _doubled(original: Original, place: Place, client: str | None) -> Callable[[], EditableLog]:
    def edited() -> EditableLog:
        log = original.log.whole_copy()
        transactions = log.run(place)[2]
        transactions.insert(place.transaction, list(transactions[place.transaction]))
        if client is not None:
            log.renumber(client)
        return log

    return edited


def _swapped(original: Original, client: str, seq: int) -> Callable[[], EditableLog]:
    """Two neighbours change places, and their numbers with them."""

    def edited() -> EditableLog:
        log = original.log.whole_copy()
        at = {
            transaction[SEQ]: place
            for place, who, _, transaction in log.places()
            if who == client and transaction[SEQ] in (seq, seq + 1)
        }
        one, two = log.transaction(at[seq]), log.transaction(at[seq + 1])
        one[CAUSES:], two[CAUSES:] = two[CAUSES:], one[CAUSES:]
        return log

    return edited


def _without(original: Original, place: Place, index: int) -> Callable[[], EditableLog]:
    def edited() -> EditableLog:
        log = original.log.copy_for(place)
        del log.transaction(place)[FACTS][index]
        return log

    return edited


def _first(original: Original, place: Place, index: int) -> Callable[[], EditableLog]:
    """One fact of a transaction moves to another place in it."""

    def edited() -> EditableLog:
        log = original.log.copy_for(place)
        facts = log.transaction(place)[FACTS]
        facts.insert(0 if index else len(facts), facts.pop(index))
        return log

    return edited


# ---------------------------------------------------------------- being found out


def _all_are_found_out(
    original: Original, tamperings: Iterable[Tampering], directory: Path
) -> None:
    unnoticed = []
    tried = 0
    for tampering in tamperings:
        tampering.edited().write(directory)
        tried += 1
        problem = _unnoticed(original, tampering, directory)
        if problem is not None:
            unnoticed.append(f"{tampering.what}: {problem}")
    assert tried > 20
    assert not unnoticed, "\n".join([f"{len(unnoticed)} of {tried}", *unnoticed])


def _unnoticed(original: Original, tampering: Tampering, directory: Path) -> str | None:
    client, seq = tampering.client, tampering.client_seq
    try:
        result = verify(directory, processes=1)
    except PagetrailError as error:
        # The log's own reader refuses it: by the client's name, or because it has no form at all.
        told = str(error)
        return None if client in told or "does not decode" in told else f"the error says {told}"
    bound = original.bound(client, seq)
    if bound is None and (client, seq) not in original.keyframes:
        left = result.unattested.get(client, 0)
        if seq >= original.count[client] - left:
            return None  # nothing vouches for it, and the report says so
        return f"not counted among the {left} unattested: {result.findings}"
    named = [at for who, at in _named(result) if who == client]
    if not named:
        return f"nobody named {client}: {result.findings}"
    if bound is not None and min(named) > bound + tampering.shift:
        return f"named at {min(named)}, vouched for at {bound}"
    return None


def _named(result: VerifyResult) -> Iterator[tuple[str, int]]:
    for finding in result.findings:
        client, _, seq = finding.split(" ", 1)[0].split("/")
        yield client, int(seq)


def _bytes(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "log").glob("segment-*"))]
