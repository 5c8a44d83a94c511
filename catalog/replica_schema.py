"""The tables of a replica and the predicates over them, derived from the table of kinds.

Each kind has an event table ``events_<kind>`` with one row for each of its facts; all kinds of
decision share one. A row of a catalog kind also says until which fact it was the last about its
entity (``to_seq``), so that what held when is a selection of events, not a table of its own.

A catalog entity has an integer id ``e``, the seq of the fact that first named it, be it by its own
kind or by another's reference (a part names its node); ``entities_<kind>`` holds the ids, which
are unique inside a kind. A reference to a node or a part by digest comes with a column ``node_e``
or ``part_e``: joins on these are many times faster than on digests, and rules should use them.

Predicates: a catalog kind ``k`` gives ``k(e, fields..., references...)``, what holds, and
``k_event(e, seq, op, fields..., references...)``, what was said. Any other kind gives ``k(seq,
fields...)``. ``decision(seq, kind, fields...)`` is over all kinds of decision, ``fact(...)`` over
the envelopes of all facts and ``cause(tx, client, client_epoch, client_seq)`` over the causes of
transactions. Integers, text and byte strings are columns of their own types, booleans are 0 or 1,
and every other field is the byte string of its msgpack encoding.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

import msgspec

from .datalog.model import Column, Relation, Schema, Type
from .datalog.sql import identifier
from .envelope import Op
from .facts import KINDS, Kind, KindId, Role
from .kinds.decision import Decision

FORMAT = 3
"""Raised when the meaning of a table changes; a replica of another format is rebuilt."""

REFERABLE = ("node", "part")
"""Kinds that other kinds' facts name by a field ``<kind>_id``."""

_PLAIN: Mapping[object, Type] = {int: Type.INT, str: Type.TEXT, bytes: Type.BYTES}

ENVELOPE = (
    Column("seq", Type.INT),
    Column("tx", Type.INT),
    Column("t_us", Type.INT),
    Column("writer_epoch", Type.INT),
    Column("client", Type.TEXT),
    Column("client_epoch", Type.INT),
    Column("client_seq", Type.INT),
    Column("idx", Type.INT),
    Column("op", Type.INT),
    Column("kind", Type.TEXT),
    Column("schema_v", Type.INT),
)
DERIVED: Mapping[str, str] = {"idx": "seq - tx"}
"""Columns of the envelope that no row holds: DuckDB computes them from those that it does."""

STORED_ENVELOPE = tuple(c for c in ENVELOPE if c.name not in DERIVED)
CAUSE = (
    Column("tx", Type.INT),
    Column("client", Type.TEXT),
    Column("client_epoch", Type.INT),
    Column("client_seq", Type.INT),
)


_HARDLY_REPEATED = ("node_id", "part_id", "prefix", "parent_prefix", "content_id")
_HARDLY_CHANGING = ("op", "schema_v", "writer_epoch")
_COMPRESSION: Mapping[str, str] = {
    # Digests do not compress; to find that out takes four times as long as to write them.
    **dict.fromkeys(_HARDLY_REPEATED, "uncompressed"),
    **dict.fromkeys(_HARDLY_CHANGING, "rle"),
}
"""How columns of a name are compressed. For others DuckDB tries every method and takes the best,
which is most of the time that it takes to fill a replica."""


class Storage(Enum):
    """How a field's value is stored."""

    PLAIN = auto()
    ZERO_ONE = auto()  # a boolean
    ENCODED = auto()  # its msgpack encoding


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a kind, and how a body's value becomes the column's."""

    column: Column
    storage: Storage


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """What a catalog kind has besides events. ``references`` are the kinds, other than itself,
    whose entity it names by a field ``<kind>_id``."""

    entities: str
    references: tuple[str, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The integer ids of what is referred to."""
        return tuple(self.ids.values())

    @property
    def ids(self) -> dict[str, Column]:
        """For each field that refers to an entity by its digest, the column with its id."""
        return {f"{name}_id": Column(f"{name}_e", Type.INT) for name in self.references}


@dataclass(frozen=True, slots=True)
class KindTables:
    """How the facts of one kind are stored."""

    kind: Kind
    fields: tuple[Field, ...]
    events: str
    catalog: CatalogTables | None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The kind's own columns, in the order of its struct."""
        return tuple(field.column for field in self.fields)


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table whose rows are counted. ``since`` orders rows by the fact that made them; a table
    that ``closes`` has a column ``to_seq`` besides, which a later fact sets."""

    name: str
    columns: tuple[Column, ...]
    since: str
    closes: bool


def _field(name: str, hint: object) -> Field:
    if hint is bool:
        return Field(Column(name, Type.INT), Storage.ZERO_ONE)
    if hint in _PLAIN:
        return Field(Column(name, _PLAIN[hint]), Storage.PLAIN)
    return Field(Column(name, Type.BYTES), Storage.ENCODED)


def _kind_tables(kind: Kind) -> KindTables:
    hints = typing.get_type_hints(kind.struct)
    fields = tuple(_field(f.name, hints[f.name]) for f in msgspec.structs.fields(kind.struct))
    if kind.struct is Decision:
        return KindTables(kind, fields, "events_decision", None)
    catalog = None
    if kind.role is Role.CATALOG:
        names = {field.column.name for field in fields}
        references = tuple(n for n in REFERABLE if n != kind.name and f"{n}_id" in names)
        catalog = CatalogTables(f"entities_{kind.name}", references)
    return KindTables(kind, fields, f"events_{kind.name}", catalog)


KIND_TABLES: Mapping[int, KindTables] = {id_: _kind_tables(k) for id_, k in KINDS.items()}


def event_columns(tables: KindTables) -> tuple[Column, ...]:
    """Columns of the kind's event table."""
    lead: tuple[Column, ...]
    if tables.catalog is not None:
        lead = (Column("e", Type.INT), Column("seq", Type.INT), Column("op", Type.INT))
        return (*lead, *tables.columns, *tables.catalog.columns)
    if tables.kind.struct is Decision:
        lead = (Column("seq", Type.INT), Column("kind", Type.TEXT))
    else:
        lead = (Column("seq", Type.INT),)
    return (*lead, *tables.columns)


def state_columns(tables: KindTables) -> tuple[Column, ...]:
    """Arguments of a catalog kind's predicate."""
    references = tables.catalog.columns if tables.catalog is not None else ()
    return (Column("e", Type.INT), *tables.columns, *references)


def entity_columns(tables: KindTables) -> tuple[Column, ...]:
    """What names an entity of a catalog kind, and its id. An entity that is named by another (a
    copy by its part) is named by that one's id."""
    ids = {} if tables.catalog is None else tables.catalog.ids
    key = tuple(ids.get(c.name, c) for c in tables.columns if c.name in tables.kind.entity)
    return (*key, Column("e", Type.INT))


def _stored_tables() -> tuple[StoredTable, ...]:
    """All tables that hold rows, each once."""
    tables = {
        "facts": StoredTable("facts", STORED_ENVELOPE, "seq", False),
        "causes": StoredTable("causes", CAUSE, "tx", False),
    }
    for kind in KIND_TABLES.values():
        closes = kind.catalog is not None
        tables[kind.events] = StoredTable(kind.events, event_columns(kind), "seq", closes)
        if kind.catalog is not None:
            name = kind.catalog.entities
            tables[name] = StoredTable(name, entity_columns(kind), "e", False)
    return tuple(tables.values())


STORED_TABLES = _stored_tables()


def ddl() -> tuple[str, ...]:
    """Statements that create an empty replica's tables."""
    statements = []
    for table in STORED_TABLES:
        columns = [_definition(column) for column in table.columns]
        columns += ["to_seq BIGINT NOT NULL"] if table.closes else []
        if table.name == "facts":
            columns += [f"{name} BIGINT AS ({value})" for name, value in DERIVED.items()]
        statements.append(f"CREATE TABLE {table.name} ({', '.join(columns)})")
    statements.append(
        "CREATE TABLE ledger (table_name VARCHAR NOT NULL, row_count BIGINT NOT NULL, "
        "row_hash UBIGINT NOT NULL, closed_count BIGINT NOT NULL, closed_hash UBIGINT NOT NULL)"
    )
    statements.append(
        "CREATE TABLE position (seq BIGINT NOT NULL, chain BLOB NOT NULL, "
        "form VARCHAR NOT NULL, engine VARCHAR NOT NULL)"
    )
    return tuple(statements)


def _definition(column: Column) -> str:
    method = _COMPRESSION.get(column.name)
    using = "" if method is None else f" USING COMPRESSION {method}"
    return f"{identifier(column.name)} {column.type.value} NOT NULL{using}"


@lru_cache(maxsize=1)
def form_digest() -> str:
    """Names the form of the tables; a replica with another one cannot be continued."""
    return hashlib.sha256("\n".join((str(FORMAT), *ddl())).encode()).hexdigest()


def _relations() -> list[Relation]:
    """Each predicate, straight over the table that has its rows: a view between them is bound
    again in every statement, which in a small one is felt."""
    seq = Column("seq", Type.INT)
    decision = KIND_TABLES[KindId.ROUTE]
    relations = [
        _told("fact", ENVELOPE, "facts"),
        Relation("cause", CAUSE, "causes", temporal=True, since="tx", until=None),
        _told("decision", event_columns(decision), decision.events),
    ]
    for tables in KIND_TABLES.values():
        name, columns = tables.kind.name, tables.columns
        if tables.catalog is not None:
            ids = {f"{name}_id": f"{name}_e" for name in tables.catalog.references}
            keys = (
                ("e",),
                tables.kind.entity,
                tuple(ids.get(field, field) for field in tables.kind.entity),
            )
            held = Relation(
                name,
                state_columns(tables),
                tables.events,
                keys,
                temporal=True,
                where=(("op", int(Op.ASSERT)),),
                since="seq",
            )
            relations += [held, _told(f"{name}_event", event_columns(tables), tables.events)]
        else:
            kind = (("kind", name),) if tables.kind.struct is Decision else ()
            relations.append(_told(name, (seq, *columns), tables.events, kind))
    return relations


def _told(
    name: str, columns: tuple[Column, ...], table: str, where: tuple[tuple[str, str], ...] = ()
) -> Relation:
    """What was said stays said: a row for each fact, which never ends."""
    return Relation(
        name, columns, table, (("seq",),), temporal=True, where=where, since="seq", until=None
    )


PROMPT = Relation(
    "prompt",
    (Column("i", Type.INT), Column("prefix", Type.BYTES)),
    "given_prompt",
    (("i",),),
    provided=True,
)
"""The chunk digests of a prompt, handed in with a query: i from 0 without gaps, prefix digest."""

CHUNK = Relation(
    "chunk",
    (Column("i", Type.INT), Column("node_e", Type.INT), Column("part_e", Type.INT)),
    "given_chunk",
    (("i", "part_e"),),
    provided=True,
)
"""The wanted parts of a prompt's chunks, handed in with a query: i from 0 without gaps, the node's
``e`` or -1 where none is known, the part's ``e`` or -1 where none is bound, and behind the last
chunk a row with -1 and -1. The rule ``chunk_of`` finds them from ``prompt``."""

SCHEMA = Schema([*_relations(), PROMPT, CHUNK])
"""The base relations of every replica."""
