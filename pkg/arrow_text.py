"""Arrow tables as text or bytes on the way out of a command.

Byte strings are written as `0x...`, as the query language reads them. Importing this module loads
pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import BinaryIO

import msgspec
import pyarrow as pa
from pyarrow import csv
from rich import box
from rich.console import Console
from rich.table import Table


class TableFormat(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"  # one object a line
    CSV = "csv"
    ARROW = "arrow"  # an IPC stream


def write_table(table: pa.Table, form: TableFormat, out: BinaryIO) -> None:
    """Writes the rows in their order; every form but `table` is complete and exact."""
    match form:
        case TableFormat.TABLE:
            out.write(_terminal_text(table).encode())
        case TableFormat.JSON:
            for row in _rows(table):
                out.write(msgspec.json.encode(row) + b"\n")
        case TableFormat.CSV:
            csv.write_csv(_with_text_for_bytes(table), out)
        case TableFormat.ARROW:
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table)


def _terminal_text(table: pa.Table) -> str:
    shown = Table(box=box.SIMPLE_HEAD)
    for field in table.schema:
        right = pa.types.is_integer(field.type)
        shown.add_column(field.name, justify="right" if right else "left", overflow="fold")
    for row in _rows(table):
        shown.add_row(*(str(value) for value in row.values()))
    console = Console()
    with console.capture() as captured:
        console.print(shown)
        console.print(f"{table.num_rows} row{'' if table.num_rows == 1 else 's'}")
    return captured.get()


def _rows(table: pa.Table) -> Iterator[dict[str, object]]:
    for batch in _with_text_for_bytes(table).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _with_text_for_bytes(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [f"0x{value.hex()}" for value in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table
