"""Runs clingo or Nemo for `pagetrail bench catalog`, in a process and an environment of their own.

Reads ``{"engine": "clingo" | "nemo", "edges": [[a, b], ...]}`` as JSON and answers the CPU seconds
from the facts as the engine takes them to every derived pair in Python, as our side hands back a
table. Imports nothing of pagetrail: the peer's environment does not have it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path


def _clingo(edges: list[list[int]]) -> tuple[float, int]:
    import clingo

    facts = " ".join(f"edge({a},{b})." for a, b in edges)
    control = clingo.Control(["--warn=none"])
    start = time.process_time()
    control.add("base", [], f"{facts} tc(X,Y) :- edge(X,Y). tc(X,Y) :- tc(X,Z), edge(Z,Y).")
    control.ground([("base", [])])
    rows = [
        (atom.symbol.arguments[0].number, atom.symbol.arguments[1].number)
        for atom in control.symbolic_atoms.by_signature("tc", 2)
    ]
    return time.process_time() - start, len(rows)


def _nemo(edges: list[list[int]]) -> tuple[float, int]:
    import nmo_python

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "edge.csv"
        file.write_text("".join(f"{a},{b}\n" for a, b in edges), encoding="ascii")
        text = (
            f'@import edge :- csv{{resource="{file}", format=(int,int)}} . '
            "tc(?X,?Y) :- edge(?X,?Y) . tc(?X,?Y) :- tc(?X,?Z), edge(?Z,?Y) . @output tc ."
        )
        start = time.process_time()
        engine = nmo_python.NemoEngine(nmo_python.load_string(text))
        engine.reason()
        rows = list(engine.result("tc"))
        return time.process_time() - start, len(rows)


def main() -> None:
    """Measure one closure."""
    request = json.load(sys.stdin)
    closure = {"clingo": _clingo, "nemo": _nemo}[request["engine"]]
    seconds, rows = closure(request["edges"])
    print(json.dumps({"seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
