"""The demo's figures as a person reads them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .figures import Figures


def print_figures(console: Console, figures: Figures) -> None:
    """Three small tables and the verdict."""
    console.print()
    console.print(_requests(figures))
    console.print(_work(figures))
    console.print(_decisions(figures))
    if figures.missing:
        console.print(f"[red]did not happen:[/red] {', '.join(figures.missing)}")
    if figures.unequal:
        console.print(f"[red]differ after the kill:[/red] {', '.join(figures.unequal)}")
    word = "[green]yes[/green]" if figures.ok else "[red]no[/red]"
    console.print(f"everything as it should be: {word}")
    console.print(f"report: {figures.report}")
    console.print(f"log: {figures.directory}")


def _requests(figures: Figures) -> Table:
    table = Table(title="time to first token, by where the prompt's prefix came from")
    for column in ("source", "requests", "p50 ms", "p95 ms"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for source, spread in figures.ttft_ms.items():
        table.add_row(source, *(str(spread[key]) for key in ("count", "p50", "p95")))
    return table


def _work(figures: Figures) -> Table:
    table = Table(title=f"{figures.serving_s} s of serving", show_header=False)
    table.add_column("what")
    table.add_column("how much", justify="right")
    rows = [
        ("requests (failed)", f"{figures.requests} ({figures.failed})"),
        ("prompt tokens (cached)", f"{figures.prompt_tokens} ({figures.cached_tokens})"),
        ("generated tokens", str(figures.completion_tokens)),
        ("decode, tokens/s a stream", str(figures.decode_tokens_per_s)),
        ("evictions (pages)", f"{figures.evictions} ({figures.evicted_pages})"),
        ("chunks written", ", ".join(f"{n} {tier}" for tier, n in figures.copies.items()) or "0"),
        *((f"tokens {source}", str(n)) for source, n in figures.restored_tokens.items()),
        ("forks of a prompt", str(figures.forks)),
        ("attempts that ended elsewhere", str(figures.moved)),
        ("compared after the kill (unequal)", f"{figures.compared} ({len(figures.unequal)})"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _decisions(figures: Figures) -> Table:
    table = Table(title=f"decisions, from {figures.facts} facts")
    table.add_column("kind")
    for column in ("re-derived", "mismatched", "missing"):
        table.add_column(column, justify="right")
    for kind, counts in figures.decisions.items():
        table.add_row(kind, *(str(counts[key]) for key in ("re-derived", "mismatched", "missing")))
    return table
