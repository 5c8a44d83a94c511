"""The publisher by plain calls: who wins a race, and what is never published."""

from __future__ import annotations

import pytest
from cluster_parts import FINGERPRINT, ROOMY, facts, incoming, make_worker, offer

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import content_id, register_name
from pagetrail.catalog.index import CatalogChanges, LiveIndex
from pagetrail.catalog.kinds.content import Copy, Node, Part, Tier
from pagetrail.controlplane.cluster.messages import Prompt
from pagetrail.controlplane.cluster.publisher import Publisher, Stored
from pagetrail.controlplane.cluster.worker import WorkerMachine

OURS, OTHERS = content_id(b"ours"), content_id(b"others")
SSD = (Tier.SSD,)


class Rig:
    """A worker that has finished a prompt of three chunks, and a log that it writes to."""

    def __init__(self) -> None:
        self.index = LiveIndex()
        self.machine: WorkerMachine = make_worker(tiers=SSD, catalog=self.index)
        self.machine.offered(offer(1, incoming("r", 12)), 0)
        self.machine.admit_waiting(0)
        self.prompt: Prompt = self.machine.prompt(1)
        self.machine.decider.drain()
        self.publisher = Publisher(self.machine)

    def publish(self, chunk: int, content: bytes = OURS, receipts: int = 1) -> list[Transaction]:
        copies = ((int(Tier.SSD), f"key-{chunk}"),) * receipts
        self.publisher.publish("", self.prompt, chunk, Stored(content, 4_096, copies))
        return self.machine.decider.drain()

    def log(self, written: list[Transaction]) -> None:
        """The log takes transactions as they are."""
        run = Run("w", 1, tuple(written))
        self.index.fold(CatalogChanges.of_runs(self.index.position, [run]))


def bodies(written: list[Transaction]) -> list[type]:
    return [type(body) for body in facts(written) if isinstance(body, Node | Part | Copy)]


def test_a_new_chunk_is_published_whole_while_nobody_has_bound_its_content() -> None:
    rig = Rig()
    (written,) = rig.publish(0)
    assert bodies([written]) == [Node, Part, Copy]
    (condition,) = written.compare_and_set
    assert (condition.expected, condition.new) == (None, OURS)


def test_a_copy_of_a_known_chunk_is_published_only_while_the_bound_content_is_this_copys() -> None:
    rig = Rig()
    rig.log(rig.publish(0))
    (written,) = rig.publish(0)
    assert bodies([written]) == [Copy]
    (condition,) = written.compare_and_set
    (part,) = [body for body in facts([written]) if isinstance(body, Copy)]
    assert condition.register == register_name("part", part.part_id, "content_id")
    assert (condition.expected, condition.new) == (OURS, OURS)


@pytest.mark.parametrize("known", [False, True])
def test_other_bytes_under_the_same_chunk_are_an_alarm_with_both_ids(known: bool) -> None:
    rig = Rig()
    if known:
        rig.log(rig.publish(0, OTHERS))
    (written,) = rig.publish(0)
    with pytest.raises(InvariantError, match=f"{OURS.hex()}.*{OTHERS.hex()}"):
        rig.publisher.refused(written.client_seq, OTHERS)


def test_the_loser_of_a_race_adds_its_copy_to_the_winners_binding() -> None:
    rig = Rig()
    (written,) = rig.publish(0)
    rig.publisher.refused(written.client_seq, OURS)
    (again,) = rig.machine.decider.drain()
    assert bodies([again]) == [Copy]
    assert rig.publisher.pending == 1


def test_a_binding_that_was_taken_back_meanwhile_is_made_again() -> None:
    rig = Rig()
    rig.log(rig.publish(0))
    (written,) = rig.publish(0)
    rig.publisher.refused(written.client_seq, None)
    (again,) = rig.machine.decider.drain()
    assert bodies([again]) == [Node, Part, Copy]
    assert again.compare_and_set[0].expected is None


def test_without_a_receipt_nothing_is_published() -> None:
    rig = Rig()
    assert bodies(rig.publish(0, receipts=0)) == []
    assert rig.publisher.pending == 0


def test_a_chunk_is_published_after_the_one_before_it_or_not_at_all() -> None:
    rig = Rig()
    assert bodies(rig.publish(1)) == []
    assert bodies(rig.publish(0)) == [Node, Part, Copy]
    assert bodies(rig.publish(1)) == [Node, Part, Copy]  # the one before is on its way
    assert bodies(rig.publish(2, receipts=0)) == []


def test_a_shown_publication_makes_the_prompts_pages_durable() -> None:
    rig = Rig()
    rig.machine.advanced(1, rig.prompt.tokens)
    rig.machine.done(1, 0, ROOMY)  # type: ignore[arg-type]
    rig.machine.decider.drain()
    (written,) = rig.publish(0)
    rig.publisher.shown(written.client_seq)
    names = [type(body).__name__ for body in facts(rig.machine.decider.drain())]
    assert names == ["NodeDurable"]
    assert rig.machine.start.fingerprint == FINGERPRINT
