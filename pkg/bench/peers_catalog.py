"""Runs clingo for `pagetrail bench catalog`, as a process of its own: JSON in, JSON out.

Reads ``{"edges": [[a, b], ...], "rules": text}`` and answers the CPU seconds from the ground facts
to every derived pair in Python, as our side hands back a table.
"""

from __future__ import annotations

import json
import sys
import time

import clingo


def main() -> None:
    """Measure one closure."""
    request = json.load(sys.stdin)
    facts = " ".join(f"edge({a},{b})." for a, b in request["edges"])
    control = clingo.Control(["--warn=none"])
    start = time.process_time()
    control.add("base", [], facts + request["rules"])
    control.ground([("base", [])])
    rows = [
        (atom.symbol.arguments[0].number, atom.symbol.arguments[1].number)
        for atom in control.symbolic_atoms.by_signature("tc", 2)
    ]
    print(json.dumps({"seconds": time.process_time() - start, "rows": len(rows)}))


if __name__ == "__main__":
    main()
