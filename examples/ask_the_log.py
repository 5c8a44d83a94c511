"""Rules over the log of a run, answered as Arrow tables: python ask_the_log.py DIRECTORY

docs/datalog.md has the language, docs/facts.md the kinds of fact; the standing rules that a query
may use are files of catalog/rules.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from pagetrail.log_replica import caught_up_replica

DECISIONS = """
made(Client, Kind, count(Seq)) :- decision(seq: Seq, kind: Kind), fact(seq: Seq, client: Client).
?- made(Client, Kind, Decisions).
"""

SHARED = """
% Chunks of a prompt that more than one worker has, ready in any tier.
holders(Node, count(Worker)) :- current_copy(Node, _, Worker, _, 1), Worker != "".
?- holders(Node, Workers), Workers > 1.
"""

REGRETS = "?- regretted_eviction(Eviction, Worker, Epoch, Stream)."


def ask(directory: Path) -> dict[str, pa.Table]:
    """What each question answers about the whole log, and the first about its first half."""
    with caught_up_replica(directory, None) as replica:
        return {
            "decisions": replica.query(DECISIONS),
            "decisions of the first half": replica.query(DECISIONS, as_of=replica.position // 2),
            "chunks on several workers": replica.query(SHARED),
            "evictions regretted within a minute": replica.query(
                REGRETS, {"horizon_us": 60_000_000}
            ),
        }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for title, table in ask(Path(sys.argv[1])).items():
        print(f"{title}: {table.num_rows} rows")
        for row in table.slice(0, 8).to_pylist():
            print("  ", row)
