"""Serves and evaluates in a process of its own, and prints what came out as one JSON object.

    replay_child.py DIRECTORY [--clock WHEN] [--locale NAME]

Every evaluator of the registry decides something: most of them by serving a generated trace, the
others over inputs made here. What is printed depends on nothing but the code.
"""

from __future__ import annotations

import argparse
import hashlib
import locale
import random
import sys
from pathlib import Path

import msgspec
from freezegun import freeze_time
from replay_runs import serve_generated

from pagetrail.catalog.facts import KindId
from pagetrail.controlplane.policy.inputs import PreemptCandidate, PreemptInputs
from pagetrail.controlplane.policy.registry import EVALUATORS
from pagetrail.replay.verify import verify


def served(directory: Path) -> dict[str, object]:
    """Chains of every client, for each evaluator that a trace can be served with."""
    found: dict[str, object] = {}
    evictors = [name for name, one in EVALUATORS.items() if one.kind is KindId.EVICT]
    for number, name in enumerate(evictors):
        run = serve_generated(
            directory / str(number),
            requests=24,
            workers=2,
            pages=40,
            evaluators=(name,),
            tiers="ssd,object" if name == "residency/value-density@1" else "none",
        )
        result = verify(run.directory, processes=1)
        found[name] = [run.report.facts_by_client, result.ok, run.report.evictions > 0]
    return found


def preempted() -> str:
    """Digest of what the preemption evaluators answer over many inputs."""
    draw = random.Random(3)
    digest = hashlib.sha256()
    for evaluator in EVALUATORS.values():
        if evaluator.kind is not KindId.PREEMPT:
            continue
        for _ in range(200):
            candidates = tuple(
                PreemptCandidate(
                    stream=stream,
                    priority=draw.randrange(3),
                    arrival_us=draw.randrange(50),
                    pages=(draw.randrange(9),),
                    rows=draw.randrange(1, 4_000),
                    swap_ns=draw.randrange(1_000),
                    recompute_ns=draw.randrange(1_000),
                )
                for stream in range(draw.randrange(1, 12))
            )
            inputs = PreemptInputs((draw.randrange(20),), 2, 4_096, (512,), candidates)
            evaluation = evaluator.evaluate(evaluator.weights_type(), inputs)
            digest.update(msgspec.msgpack.encode(evaluation.choice))
            digest.update(evaluation.encoded_alternatives())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clock")
    parser.add_argument("--locale")
    arguments = parser.parse_args()
    if arguments.locale:
        locale.setlocale(locale.LC_ALL, arguments.locale)
    if arguments.clock:
        with freeze_time(arguments.clock, tick=True):
            found = [served(arguments.directory), preempted()]
    else:
        found = [served(arguments.directory), preempted()]
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
