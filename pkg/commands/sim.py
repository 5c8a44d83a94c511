"""`pagetrail sim`: the control plane without a model."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.commands import sim_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagetrail.replay.trace import TraceRequest
    from pagetrail.simtrace import TraceReport

REQUESTS_MAX = 100_000_000


@click.group(name="sim")
def command() -> None:
    """Run the control plane without a model."""


for _command in (sim_faults.run, sim_faults.sweep, sim_faults.shrink, sim_faults.replay):
    command.add_command(_command)


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--generate",
    type=click.IntRange(1, REQUESTS_MAX),
    metavar="REQUESTS",
    help="Serve a generated trace of this many requests instead of a file.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the generated trace.")
@click.option("--requests", type=click.IntRange(1, REQUESTS_MAX), help="Stop after this many.")
@click.option("--workers", type=int, default=1, show_default=True, help="Workers to serve with.")
@click.option("--pages", type=int, default=10_000, show_default=True, help="Pages of each worker.")
@click.option(
    "--evaluator",
    "evaluators",
    multiple=True,
    metavar="NAME@VERSION",
    help="Evaluator in place of its kind's default. May be repeated.",
)
@click.option("--lanes", type=int, default=1, show_default=True, help="Streams at once a worker.")
@click.option(
    "--count",
    type=click.Choice(["serving", "trace"]),
    default="serving",
    show_default=True,
    help="serving: the last prompt token is never reused; trace: as the trace's own ids count.",
)
@click.option(
    "--tiers",
    type=click.Choice(["none", "ssd", "ssd,object"]),
    default="ssd,object",
    show_default=True,
    help="Tiers that prompts are checkpointed to and restored from.",
)
@click.option("--reserve-output", is_flag=True, help="Admission counts the tokens to come, too.")
@click.option("--serial", is_flag=True, help="Wait for each fact's acknowledgement.")
@click.option("--logical-writer", is_flag=True, help="Log time counts instead of reading a clock.")
@click.option(
    "--record",
    type=click.Choice(["reference", "full"]),
    default="reference",
    show_default=True,
    help="Store the digest of a decision's alternatives, or all of them.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Directory of the run; a log there is continued.  [default: a new temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(
    file: Path | None,
    generate: int | None,
    seed: int,
    requests: int | None,
    record: str,
    log: Path | None,
    as_json: bool,
    **settings: Any,  # the remaining options are fields of TraceSettings by the same names
) -> None:
    """Serve a request trace with the real policies, log and writer, and no model.

    FILE holds JSON lines with timestamp, input_length, output_length and hash_ids, one id for each
    block of 512 prompt tokens; the blocks are the pages.
    """
    from pagetrail.controlplane.policy.recorder import FULL, REFERENCE
    from pagetrail.simtrace import TraceSettings, run_trace

    arrivals = _requests(file, generate, seed)
    directory = log or Path(tempfile.mkdtemp(prefix="pagetrail-sim-"))
    try:
        report = run_trace(
            islice(arrivals, requests),
            directory,
            TraceSettings(**settings, record=FULL if record == "full" else REFERENCE),
        )
    except PagetrailError:
        if log is None and not any(directory.iterdir()):
            directory.rmdir()
        raise
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _print(report)


def _requests(file: Path | None, generate: int | None, seed: int) -> Iterator[TraceRequest]:
    """The requests to serve; the first is read at once, so that a bad file starts nothing."""
    from pagetrail.replay.trace import generate_trace, read_trace

    if file is not None and generate is None:
        requests = read_trace(file)
    elif file is None and generate is not None:
        requests = generate_trace(seed, generate)
    else:
        raise BadInputError("expected either a trace file or --generate REQUESTS; give one of them")
    first = next(requests, None)
    if first is None:
        raise BadInputError(f"the trace {file} holds no request; expected one a line")
    return chain([first], requests)


def _print(report: TraceReport) -> None:
    ttft = ", ".join(f"{name} {value}" for name, value in report.ttft_ms.items())
    decisions = ", ".join(f"{kind} {count}" for kind, count in report.decisions.items())
    lines = (
        ("requests", f"{report.requests} served, {report.failed} failed"),
        ("blocks", f"{report.hit_blocks} of {report.prompt_blocks} hit: {report.hit_percent} %"),
        ("evictions", f"{report.evictions}, of {report.evicted_pages} pages"),
        ("restored", f"{report.restored_tokens} tokens"),
        ("recomputed", f"{report.recomputed_tokens} tokens"),
        ("TTFT ms", ttft or "none"),
        ("decisions", decisions or "none"),
        ("facts", f"{report.facts} in {report.log_bytes} bytes"),
        ("took", f"{report.wall_s} s"),
        ("log", report.log),
    )
    for name, text in lines:
        click.echo(f"{name:<12}{text}")
