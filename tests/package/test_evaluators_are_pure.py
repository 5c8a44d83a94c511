"""No module that decides reads a clock, chance, the environment or an address, or makes a float."""

from __future__ import annotations

import pytest
from arrows import modules
from purity import offences

DECIDING_PACKAGES = (
    "pagetrail.controlplane.policy",
    "pagetrail.controlplane.pages",
    "pagetrail.controlplane.tiers",
    "pagetrail.controlplane.view",
    "pagetrail.controlplane.scheduler",
    "pagetrail.controlplane.calibration",
)


def deciding_modules() -> dict[str, str]:
    return {
        name: file.read_text(encoding="utf-8")
        for name, file in modules().items()
        if any(name == p or name.startswith(p + ".") for p in DECIDING_PACKAGES)
    }


def test_no_deciding_module_uses_what_replay_cannot_repeat() -> None:
    sources = deciding_modules()
    assert len(sources) >= 3
    assert {name: found for name, text in sources.items() if (found := offences(text))} == {}


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("import time\n", "line 1: imports time"),
        ("from time import monotonic_ns\n", "line 1: imports time"),
        ("def f():\n    import datetime as d\n", "line 2: imports datetime"),
        ("from datetime import datetime\n", "line 1: imports datetime"),
        ("import random\n", "line 1: imports random"),
        ("import secrets\n", "line 1: imports secrets"),
        ("import os\nx = os.environ['A']\n", "line 1: imports os"),
        ("from os import environ\n", "line 1: imports os"),
        ("x = 0.5\n", "line 1: the float 0.5"),
        ("x = 1e9\n", "line 1: the float 1000000000.0"),
        ("x = 2j\n", "line 1: the float 2j"),
        ("def f(a: int) -> int:\n    return int(float(a))\n", "line 2: float: floats"),
        ("def f(a: float) -> int:\n    return 1\n", "line 1: float: floats"),
        ("def f(a, b):\n    return a / b\n", "line 2: true division"),
        ("def f(a, b):\n    a /= b\n", "line 2: true division"),
        ("key = hash('x')\n", "line 1: hash"),
        ("items = sorted([], key=id)\n", "line 1: id"),
        ("n = 0\ndef f():\n    global n\n", "line 3: state outside the function"),
        ("text = open('x')\n", "line 1: open"),
    ],
)
def test_a_planted_offender_is_found(planted: str, said: str) -> None:
    (found,) = offences(planted)
    assert found.startswith(said)


def test_integers_floor_division_and_fields_called_time_are_no_offence() -> None:
    assert offences("def f(a, b):\n    return a.time // b.id + 3 % 2\n") == []
    assert offences("from pagetrail.catalog import identity\nfrom . import time\n") == []
