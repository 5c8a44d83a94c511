"""The standing rules: the texts in ``rules/*.dl``, parsed once and usable from every query.

A query names a standing predicate like any other; only the rules it needs take part. Predicates
are defined in one file each, and a query cannot define them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from .datalog.errors import DatalogError, Diagnostic
from .datalog.model import Rule
from .datalog.parser import parse


@lru_cache(maxsize=1)
def rule_texts() -> Mapping[str, str]:
    """Text of each rule file by its name without ``.dl``, in order of names."""
    found = {
        entry.name.removesuffix(".dl"): entry.read_text(encoding="utf-8")
        for entry in files("pagetrail.catalog").joinpath("rules").iterdir()
        if entry.name.endswith(".dl")
    }
    return dict(sorted(found.items()))


@lru_cache(maxsize=1)
def standing_rules() -> tuple[Rule, ...]:
    """All standing rules. Raises DatalogError when two files define one predicate."""
    rules: list[Rule] = []
    homes: dict[str, str] = {}
    for name, text in rule_texts().items():
        file = f"rules/{name}.dl"
        for rule in parse(text, file).rules:
            home = homes.setdefault(rule.predicate, file)
            if home != file:
                message = f"{rule.predicate} is defined in {home} too"
                fix = "keep all rules of a predicate in one file"
                at = rule.at
                raise DatalogError([Diagnostic(file, at.line, at.column, rule.text, message, fix)])
            rules.append(rule)
    return tuple(rules)
