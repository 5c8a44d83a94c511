"""Tables on a terminal in full width: a figure that is cut says nothing."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

TABLE_CHARS_MAX = 1_000


def print_whole(table: Table) -> None:
    """Prints a table without cutting or folding a cell, even where the terminal is narrower."""
    console = Console()
    options = console.options.update(max_width=TABLE_CHARS_MAX)
    needed = Measurement.get(console, options, table).maximum
    Console(width=max(console.width, needed)).print(table)
