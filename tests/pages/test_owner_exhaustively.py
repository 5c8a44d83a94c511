"""Every interleaving of three streams over a pool of four pages.

Each stream runs the life of a request: adopt what is kept, have the rest promised, write, keep,
finish. Two of them ask for the same prompt, so they race to keep it. A promise that does not fit
evicts, or undoes its adoption and tries again. All orders are walked; equal books are walked once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PoolSpec,
    PromptKept,
    RowsAdvanced,
    StreamFinished,
)
from pagetrail.controlplane.pages.owner import PageOwner

PROMPTS = ("ab", "ab", "acd")  # a symbol a column
PAGES = 4
DONE = 5


@dataclass(frozen=True)
class World:
    """A book, what its nodes hold, and how far each stream is."""

    state: bytes
    contents: tuple[tuple[int, str], ...]  # (node, the path's symbols up to its end)
    places: tuple[int, ...]


def match(owner: PageOwner, contents: dict[int, str], prompt: str) -> tuple[int, int]:
    """The longest kept prefix, by looking at every node."""
    best = (0, 0)
    for number, path in contents.items():
        node = owner.node(number)
        for columns in range(node.start + 1, node.depth_columns + 1):
            if path[:columns] == prompt[:columns] and columns > best[1] and columns <= len(prompt):
                best = (number, columns)
    return best


class Contents:
    """Follows splits and cuts, as an index would."""

    def __init__(self, owner: PageOwner, contents: dict[int, str]) -> None:
        self.owner = owner
        self.paths = contents
        owner.observe_kept(self)

    def node_split(self, node: int, columns: int, rear: int) -> None:
        self.paths[rear] = self.paths[node]
        end = self.owner.node(node).depth_columns
        self.paths[node] = self.paths[node][:end]

    def node_cut(self, node: int, columns: int) -> None:
        if columns:
            self.paths[node] = self.paths[node][: self.owner.node(node).depth_columns]
        else:
            del self.paths[node]


def moves(world: World, which: int) -> list[World]:
    """What can happen when stream ``which`` takes its next step."""
    owner = PageOwner.decode(world.state)
    followed = Contents(owner, dict(world.contents))
    stream, prompt, place = which + 1, PROMPTS[which], world.places[which]
    if place == 0:
        node, columns = match(owner, followed.paths, prompt[:-1])
        owner.apply(PagesAdopted(stream, node, columns))
    elif place == 1:
        need = (len(prompt) - owner.route(stream).columns,)
        if owner.available() < need and not evicted(owner, need[0] - owner.available()[0]):
            owner.apply(AdoptionUndone(stream))
            return [settled(world, owner, followed, which, 0)]
        owner.apply(PagesPromised(stream, need))
    elif place == 2:
        owner.apply(RowsAdvanced(((stream, len(prompt) - owner.rows(stream)),)))
    elif place == 3:
        node, shared = match(owner, followed.paths, prompt)
        owner.apply(PromptKept(stream, node, shared, len(prompt)))
        for number, _, _ in owner.kept_path(stream):
            followed.paths.setdefault(number, prompt[: owner.node(number).depth_columns])
    else:
        owner.apply(StreamFinished(stream, 0))
    return [settled(world, owner, followed, which, place + 1)]


def evicted(owner: PageOwner, short: int) -> bool:
    """Evict oldest leaves until ``short`` pages are free; nothing when that cannot be."""
    if owner.reclaimable()[0] < short:
        return False
    while short > 0:
        leaf = next(n for n in owner.oldest_nodes() if not n.children and not n.holders)
        count = min(short, leaf.columns)
        owner.apply(NodesEvicted(((leaf.number, count),)))
        short -= count
    return True


def settled(world: World, owner: PageOwner, followed: Contents, which: int, place: int) -> World:
    owner.check()
    places = list(world.places)
    places[which] = place
    return replace(
        world,
        state=owner.encode(),
        contents=tuple(sorted(followed.paths.items())),
        places=tuple(places),
    )


def shape_of(world: World) -> tuple[object, ...]:
    """What decides the future: the book without command numbers, contents and places."""
    owner = PageOwner.decode(world.state)
    nodes = tuple((n.number, n.start, n.columns, n.holders) for n in owner.oldest_nodes())
    routes = tuple((s, owner.rows(s), owner.promised(s)) for s in owner.streams())
    return (world.places, world.contents, nodes, routes)


def test_all_interleavings_of_three_streams_over_four_pages_end_with_nothing_leaked() -> None:
    owner = PageOwner((PoolSpec("kv", 0, PAGES, 1),), 1, 0, PAGES, PAGES)
    waiting = [World(owner.encode(), (), (0, 0, 0))]
    seen: set[tuple[object, ...]] = set()
    ends = 0
    while waiting:
        world = waiting.pop()
        shape = shape_of(world)
        if shape in seen:
            continue
        seen.add(shape)
        if world.places == (DONE, DONE, DONE):
            ends += 1
            owner = PageOwner.decode(world.state)
            assert owner.promised_in_all() == (0,)
            assert owner.free() == (PAGES - owner.kept_columns,)
            assert owner.reclaimable() == (owner.kept_columns,)
            continue
        for which, place in enumerate(world.places):
            if place < DONE:
                waiting += moves(world, which)
    assert ends >= 2  # more than one prompt can be what is left
    assert len(seen) > 300
