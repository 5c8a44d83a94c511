"""Prints one digest per evaluator over many decisions; a program, run by a test.

Usage: ``evaluate_all.py [DATE]``. With a date the clock stands there while it decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import locale
import sys

import msgspec
from policy_inputs import drawn_inputs

from pagetrail.controlplane.policy.recorder import RecordMode, record
from pagetrail.controlplane.policy.registry import EVALUATORS

DECISIONS = 200


def digests() -> dict[str, str]:
    """Evaluator -> SHA-256 over its decisions, recorded in full for about half of them."""
    found = {}
    for name, evaluator in sorted(EVALUATORS.items()):
        total = hashlib.sha256()
        for seed in range(DECISIONS):
            weights = evaluator.weights_type()
            _, decision = record(
                0,
                evaluator,
                weights,
                drawn_inputs(evaluator.kind.name, seed),
                subject=seed,
                as_of=-1,
                chain=bytes(32),
                recorded=weights,  # the inputs' form is free to change; answers are not
                mode=RecordMode(500_000),
            )
            total.update(msgspec.msgpack.encode(decision))
        found[name] = total.hexdigest()
    return found


if __name__ == "__main__":
    locale.setlocale(locale.LC_ALL, "")
    moved: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if len(sys.argv) > 1:
        from freezegun import freeze_time

        moved = freeze_time(sys.argv[1])
    with moved:
        for name, digest in digests().items():
            print(name, digest)
