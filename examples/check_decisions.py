"""Every decision of a run derived again, and the last eviction explained:
python check_decisions.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pagetrail.catalog.facts import KindId
from pagetrail.controlplane.log.reader import read_log
from pagetrail.replay.explain import Explanation, explain
from pagetrail.replay.verify import VerifyResult, verify


def check(directory: Path) -> tuple[VerifyResult, Explanation | None]:
    """The verdict over the whole log, and its last eviction, if it has one."""
    result = verify(directory)
    evictions = [
        fact.seq
        for frame in read_log(directory)
        for fact in frame.facts()
        if fact.kind == KindId.EVICT
    ]
    return result, explain(directory, str(evictions[-1])) if evictions else None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    result, last = check(Path(sys.argv[1]))
    for kind, count in result.rederived.items():
        print(f"{kind}: {count} derived again, {result.mismatched.get(kind, 0)} otherwise")
    for finding in result.findings:
        print(finding)
    for told in last.decisions if last is not None else ():
        print(f"{told.kind} {told.name} at {told.position} by {told.evaluator}: {told.choice}")
        print(f"  because: {told.reason}; {told.verdict}")
        for other in told.rejected[:5]:
            print(f"  rejected: {other}")
    sys.exit(not result.ok)
