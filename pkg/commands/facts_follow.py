"""`pagetrail facts follow`: facts as the writer publishes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagetrail.commands.facts_print import kind_ids, print_fact
from pagetrail.commands.options import config_options, configuration
from pagetrail.config import log_limits

if TYPE_CHECKING:
    from pagetrail.catalog.envelope import Fact
    from pagetrail.controlplane.log.stream import LogStream


@click.command()
@config_options
@click.option("--endpoint", help="Where the writer answers (writer.bind).")
@click.option("--publish", help="Where the writer publishes (writer.publish).")
@click.option("--from", "from_seq", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--lines", type=click.IntRange(min=1), help="End after this many facts.")
@click.option("--kind", "kinds", multiple=True, help="Only facts of this kind. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def follow(
    config: Path | None,
    set_: tuple[str, ...],
    endpoint: str | None,
    publish: str | None,
    from_seq: int,
    lines: int | None,
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print facts from a position on, then each new one, until Ctrl-C.

    Asks a writer that runs, here or on another machine; nothing is skipped. A writer that is away
    is waited for.
    """
    from pagetrail.controlplane.log.stream import LogStream
    from pagetrail.curve_keys import client_keys

    chosen = kind_ids(kinds)
    given = {
        "writer.bind": ("--endpoint", endpoint),
        "writer.publish": ("--publish", publish),
    }
    settings = configuration(config, set_, given).config
    stream = LogStream(
        settings.writer.bind,
        settings.writer.publish,
        from_seq=from_seq,
        limits=log_limits(settings),
        keys=client_keys(settings.sockets),
    )
    with stream:
        try:
            for fact in islice(_facts(stream, from_seq, chosen), lines):
                print_fact(fact, as_json)
        except KeyboardInterrupt:  # the ordinary end of following
            return


def _facts(stream: LogStream, from_seq: int, kinds: frozenset[int] | None) -> Iterator[Fact]:
    for frame in stream:
        for fact in frame.facts():
            if fact.seq >= from_seq and (kinds is None or fact.kind in kinds):
                yield fact
