"""Random stratified programs with databases, printed for pagetrail and for clingo.

A program is made as a value (``Generated``) and printed twice, so neither text is derived from the
other. Byte strings become clingo strings of their hex digits, which sort alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import clingo

INT, TEXT, BYTES = "INT", "TEXT", "BYTES"
TEXTS = ("a", "b", "it's", 'say "x"', "back\\slash", "", "two\nlines", "ä", "Z", "--", "$p0 ; '")
BLOBS = (b"", b"\x00", b"\x00\xff", b"'", b"ab")
BASE = {
    "e": (INT, INT),
    "f": (INT, INT),
    "name": (INT, TEXT),
    "tag": (TEXT, TEXT),
    "blob": (BYTES, INT),
    "one": (INT,),
}
SIGNATURES = ((INT,), (INT, INT), (INT, INT), (TEXT, INT), (TEXT,), (BYTES, INT), (INT, TEXT, INT))


@dataclass(frozen=True)
class Const:
    value: int | str | bytes


@dataclass(frozen=True)
class Var:
    name: str


@dataclass(frozen=True)
class Sum:
    left: object
    operator: str
    right: object


@dataclass(frozen=True)
class Agg:
    kind: str
    terms: tuple


ANY = Var("_")


@dataclass
class GeneratedRule:
    head: str
    terms: list
    positive: list = field(default_factory=list)
    negative: list = field(default_factory=list)
    tests: list = field(default_factory=list)

    def variables(self) -> list[str]:
        names = {t.name: None for _, args in self.positive for t in args if isinstance(t, Var)}
        names |= {left.name: None for left, op, _ in self.tests if op == ":="}
        names.pop("_", None)
        return list(names)


@dataclass
class Generated:
    database: dict[str, set[tuple]]
    signatures: dict[str, tuple[str, ...]]
    rules: list[GeneratedRule]
    derived: list[str]

    def text(self) -> str:
        return "\n".join(_rule(r, ours=True) for r in self.rules)

    def clingo_text(self) -> str:
        lines = [
            f"{name}({', '.join(_show(Const(v), ours=False) for v in row)})."
            for name, rows in self.database.items()
            for row in sorted(rows, key=repr)
        ]
        for number, rule in enumerate(self.rules):
            if any(isinstance(t, Agg) for t in rule.terms):
                lines += _clingo_aggregate(rule, number)
            else:
                lines.append(_rule(rule, ours=False))
        return "\n".join(lines)


def _show(term: object, *, ours: bool) -> str:
    if isinstance(term, Var):
        return term.name
    if isinstance(term, Sum):
        left, right = _show(term.left, ours=ours), _show(term.right, ours=ours)
        return f"({left} {term.operator} {right})"
    if isinstance(term, Agg):
        return f"{term.kind}({', '.join(_show(t, ours=ours) for t in term.terms) or '*'})"
    value = term.value
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if ours else f'"{value.hex()}"'
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _body(rule: GeneratedRule, *, ours: bool) -> str:
    def atom(name: str, args: list) -> str:
        return f"{name}({', '.join(_show(a, ours=ours) for a in args)})"

    parts = [atom(*p) for p in rule.positive] + [f"not {atom(*n)}" for n in rule.negative]
    parts += [
        f"{_show(a, ours=ours)} {'=' if op == ':=' else op} {_show(b, ours=ours)}"
        for a, op, b in rule.tests
    ]
    return ", ".join(parts)


def _rule(rule: GeneratedRule, *, ours: bool) -> str:
    head = f"{rule.head}({', '.join(_show(t, ours=ours) for t in rule.terms)})"
    body = _body(rule, ours=ours)
    return f"{head} :- {body}." if body else f"{head}."


def _clingo_aggregate(rule: GeneratedRule, number: int) -> list[str]:
    """Groups by a helper predicate, then one ``#aggregate`` over explicit tuples each."""
    body = _body(rule, ours=False)
    groups = [_show(t, ours=False) for t in rule.terms if not isinstance(t, Agg)]
    helper = f"g{number}({', '.join(groups) or '0'})"
    bindings = ", ".join(rule.variables()) or "0"
    terms, parts = [], [helper]
    for i, term in enumerate(rule.terms):
        if not isinstance(term, Agg):
            terms.append(_show(term, ours=False))
            continue
        inner = ", ".join(_show(t, ours=False) for t in term.terms)
        if term.kind == "sum":
            element = f"{inner}, {bindings}"
        elif term.kind == "count":
            element = inner or bindings
        else:
            element = inner
        parts.append(f"A{i} = #{term.kind}{{ {element} : {body} }}")
        terms.append(f"A{i}")
    return [f"{helper} :- {body}.", f"{rule.head}({', '.join(terms)}) :- {', '.join(parts)}."]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.signatures = dict(BASE)
        self.rules: list[GeneratedRule] = []

    def constant(self, type_: str) -> Const:
        if type_ == INT:
            return Const(self.rnd.randint(-3, 8))
        return Const(self.rnd.choice(TEXTS if type_ == TEXT else BLOBS))

    def database(self) -> dict[str, set[tuple]]:
        rnd = self.rnd
        out: dict[str, set[tuple]] = {}
        for name, types in BASE.items():
            rows = 0 if rnd.random() < 0.12 else rnd.randint(1, 12)
            out[name] = {tuple(self.constant(t).value for t in types) for _ in range(rows)}
        if rnd.random() < 0.3:
            size = rnd.randint(2, 7)
            out["e"] |= {(i, (i + 1) % size) for i in range(size)}
        return out

    def rule(self, head: str, lower: list[str], inside: list[str], recursive: int) -> None:
        """A rule with ``recursive`` atoms of ``inside``, safe by construction."""
        rnd = self.rnd
        rule = GeneratedRule(head, [])
        types: dict[str, str] = {}
        callees = [rnd.choice(inside) for _ in range(recursive)]
        callees += [rnd.choice(lower) for _ in range(rnd.randint(0 if recursive else 1, 2))]
        rnd.shuffle(callees)
        for callee in callees:
            args = []
            for type_ in self.signatures[callee]:
                known = [n for n, t in types.items() if t == type_]
                draw = rnd.random()
                if draw < 0.12:
                    args.append(ANY)
                elif draw < 0.2:
                    args.append(self.constant(type_))
                elif known and draw < 0.65:
                    args.append(Var(rnd.choice(known)))
                else:
                    name = f"V{len(types)}"
                    types[name] = type_
                    args.append(Var(name))
            rule.positive.append((callee, args))
        ints = [n for n, t in types.items() if t == INT]
        if ints and not recursive and rnd.random() < 0.3:
            name = f"V{len(types)}"
            value = Sum(Var(rnd.choice(ints)), rnd.choice("+-*"), self.operand(ints))
            rule.tests.append((Var(name), ":=", value))
            types[name] = INT
        for name in list(types):
            if rnd.random() < 0.2:
                same = [n for n, t in types.items() if t == types[name] and n != name]
                other = Var(rnd.choice(same)) if same and rnd.random() < 0.6 else None
                operator = rnd.choice(("=", "!=", "!=", "<", "<=", ">", ">="))
                rule.tests.append((Var(name), operator, other or self.constant(types[name])))
        if rnd.random() < 0.4:
            callee = rnd.choice(lower)
            rule.negative.append((callee, [self.bound(t, types) for t in self.signatures[callee]]))
        rule.terms = [self.bound(t, types, head=True) for t in self.signatures[head]]
        rnd.shuffle(rule.tests)
        self.rules.append(rule)

    def operand(self, ints: list[str]) -> object:
        return Var(self.rnd.choice(ints)) if self.rnd.random() < 0.5 else self.constant(INT)

    def bound(self, type_: str, types: dict[str, str], head: bool = False) -> object:
        known = [n for n, t in types.items() if t == type_]
        if known and self.rnd.random() < 0.85:
            return Var(self.rnd.choice(known))
        return ANY if not head and self.rnd.random() < 0.5 else self.constant(type_)

    def aggregate(self, head: str, lower: list[str]) -> None:
        """Turn a fresh plain rule into an aggregate over its bindings."""
        kinds = self.rnd.choices(("count", "count*", "sum", "min", "max"), k=self.rnd.randint(1, 2))
        self.signatures[head] = (INT,)
        self.rule(head, lower, [], 0)
        rule = self.rules.pop()
        names = rule.variables()
        types = {
            t.name: type_
            for callee, args in rule.positive
            for t, type_ in zip(args, self.signatures[callee], strict=True)
            if isinstance(t, Var)
        }
        types |= {left.name: INT for left, op, _ in rule.tests if op == ":="}
        groups = self.rnd.sample(names, k=min(len(names), self.rnd.randint(0, 2)))
        terms: list = [Var(n) for n in groups]
        signature = [types[n] for n in groups]
        for kind in kinds:
            ints = [n for n in names if types[n] == INT]
            if not names:
                terms.append(Agg("count", (self.constant(INT),)))
                signature.append(INT)
            elif kind == "count*" or (kind == "sum" and not ints):
                terms.append(Agg("count", ()))
                signature.append(INT)
            elif kind == "count":
                picked = self.rnd.sample(names, k=self.rnd.randint(1, min(2, len(names))))
                terms.append(Agg("count", tuple(Var(n) for n in picked)))
                signature.append(INT)
            elif kind == "sum":
                inner: object = Var(self.rnd.choice(ints))
                if self.rnd.random() < 0.3:
                    inner = Sum(inner, "*", self.constant(INT))
                terms.append(Agg("sum", (inner,)))
                signature.append(INT)
            else:
                name = self.rnd.choice(names)
                terms.append(Agg(kind, (Var(name),)))
                signature.append(types[name])
        order = list(range(len(terms)))
        self.rnd.shuffle(order)
        rule.terms = [terms[i] for i in order]
        self.signatures[head] = tuple(signature[i] for i in order)
        self.rules.append(rule)

    def program(self) -> Generated:
        rnd = self.rnd
        database = self.database()
        derived: list[str] = []
        levels = rnd.randint(2, 5)
        for level in range(levels):
            lower = [*BASE, *derived * (4 if level == levels - 1 else 2)]
            draw = rnd.random()
            if draw < 0.25:
                self.aggregate(f"p{level}", lower)
                derived.append(f"p{level}")
                continue
            names = [f"p{level}"] if draw < 0.8 else [f"p{level}", f"q{level}"]
            signature = rnd.choice(SIGNATURES)
            for name in names:
                self.signatures[name] = signature
            for name in names:
                for _ in range(rnd.randint(1, 2)):
                    self.rule(name, lower, names, 0)
                if rnd.random() < 0.2:
                    terms = [self.constant(t) for t in signature]
                    self.rules.append(GeneratedRule(name, terms))
                if draw >= 0.4:
                    self.rule(name, lower, names, 2 if rnd.random() < 0.3 else 1)
            derived += names
        return Generated(database, self.signatures, self.rules, derived)


def generate(seed: int) -> Generated:
    """The program of this seed, always the same."""
    return _Maker(seed).program()


def solve_with_clingo(program: Generated) -> dict[str, set[tuple]]:
    """The unique stable model, as sets of rows for each derived predicate."""
    control = clingo.Control(["--warn=none"])
    control.add("base", [], program.clingo_text())
    control.ground([("base", [])])
    models: list[list[clingo.Symbol]] = []
    control.configuration.solve.models = "2"
    control.solve(on_model=lambda m: models.append(list(m.symbols(atoms=True))))
    if len(models) != 1:
        raise ValueError(f"a stratified program has one stable model, clingo found {len(models)}")
    out: dict[str, set[tuple]] = {name: set() for name in program.derived}
    for symbol in models[0]:
        if symbol.name in out:
            types = program.signatures[symbol.name]
            out[symbol.name].add(
                tuple(_value(a, t) for a, t in zip(symbol.arguments, types, strict=True))
            )
    return out


def _value(symbol: clingo.Symbol, type_: str) -> int | str | bytes:
    if type_ == INT:
        return symbol.number
    return symbol.string if type_ == TEXT else bytes.fromhex(symbol.string)
