"""The content index of a live worker: which node holds the page with this digest.

Owns a table from page digests to nodes, kept in step with splits and cuts of the tree. A page's
digest commits to everything before it (a chain over pages, an in-process matter), and the tree is
closed towards its root: when a page is kept, so are all before it. That makes the longest match a
binary search. Replay needs no index: commands name nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagetrail.catalog.errors import BadInputError, InvariantError

from .owner import PageOwner


class PrefixIndex:
    """The index of one owner's kept prompts. It starts empty, with an owner that keeps nothing."""

    __slots__ = ("_changes", "_digests", "_nodes", "_owner")

    def __init__(self, owner: PageOwner) -> None:
        """Raises BadInputError when the owner keeps prompts already: their content is unknown."""
        if owner.kept_nodes:
            raise BadInputError(
                f"the owner keeps {owner.kept_nodes} nodes whose content this index never saw; "
                "make the index when the owner is new"
            )
        self._owner = owner
        self._changes: dict[bytes, bool] | None = None
        self._nodes: dict[bytes, int] = {}  # page digest -> node
        self._digests: dict[int, list[bytes]] = {}  # node -> digests of its columns
        owner.observe_kept(self)

    def __len__(self) -> int:
        """Pages indexed."""
        return len(self._nodes)

    def match(
        self, page_digests: Sequence[bytes], columns_max: int | None = None
    ) -> tuple[int, int]:
        """The longest kept prefix of at most ``columns_max`` pages: (node it ends in, columns).

        (0, 0) when nothing is kept. Nothing is touched.
        """
        nodes = self._nodes
        low = 0
        high = len(page_digests) if columns_max is None else min(columns_max, len(page_digests))
        while low < high:
            middle = (low + high + 1) // 2
            if page_digests[middle - 1] in nodes:
                low = middle
            else:
                high = middle - 1
        return (nodes[page_digests[low - 1]], low) if low else (0, 0)

    def record(self, stream: int, page_digests: Sequence[bytes]) -> None:
        """After a PromptKept of this stream: name the content of the nodes that it created.

        ``page_digests[c]`` is the digest of column ``c``, for every column kept. Raises
        InvariantError when the content is kept under another node already: the command should
        have said that it is shared.
        """
        for node, start, columns in self._owner.kept_path(stream):
            if node in self._digests:
                continue
            digests = list(page_digests[start : start + columns])
            if len(digests) != columns:
                raise BadInputError(
                    f"node {node} covers columns {start} to {start + columns} and "
                    f"{len(page_digests)} page digests were given; give one for each column kept"
                )
            if not self._nodes.keys().isdisjoint(digests):
                raise InvariantError(
                    f"content of node {node} is kept twice; the keep left out columns that the "
                    "tree shares"
                )
            self._digests[node] = digests
            self._nodes.update(dict.fromkeys(digests, node))
            if self._changes is not None:
                self._changes.update(dict.fromkeys(digests, True))

    def digests(self) -> Iterator[bytes]:
        """Every indexed page."""
        return iter(self._nodes)

    def take_changes(self) -> tuple[list[bytes], list[bytes]]:
        """Digests that came and that went since the last call; the first call tells them all.

        Bounded by the pages of the owner and by how often the caller asks.
        """
        if self._changes is None:
            self._changes = {}
            return list(self._nodes), []
        changes, self._changes = self._changes, {}
        came = [digest for digest, kept in changes.items() if kept]
        return came, [digest for digest, kept in changes.items() if not kept]

    def node_split(self, node: int, columns: int, rear: int) -> None:
        """See KeptObserver."""
        digests = self._known(node)
        rest = digests[columns:]
        del digests[columns:]
        self._digests[rear] = rest
        self._nodes.update(dict.fromkeys(rest, rear))

    def node_cut(self, node: int, columns: int) -> None:
        """See KeptObserver."""
        digests = self._known(node)
        for digest in digests[columns:]:
            del self._nodes[digest]
        if self._changes is not None:
            self._changes.update(dict.fromkeys(digests[columns:], False))
        del digests[columns:]
        if not columns:
            del self._digests[node]

    def _known(self, node: int) -> list[bytes]:
        digests = self._digests.get(node)
        if digests is None:
            raise InvariantError(
                f"node {node} changed before its content was recorded; call record after each "
                "PromptKept"
            )
        return digests
