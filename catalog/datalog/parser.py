"""Tokens to a :class:`Program` by recursive descent; the grammar is written out in docs/datalog.md.

Only the shape is judged here. Whether predicates exist, rules are safe and types agree is for
``check``, ``infer`` and ``strata``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pagetrail.catalog.datalog.errors import DatalogError, Diagnostic, rule_text
from pagetrail.catalog.datalog.lexer import Token, TokenKind, tokenize
from pagetrail.catalog.datalog.model import (
    ARITY_MAX,
    GOAL,
    Aggregate,
    AggregateKind,
    Anonymous,
    Arithmetic,
    Atom,
    Compare,
    Comparison,
    Constant,
    Literal,
    Operation,
    Parameter,
    Place,
    Program,
    Rule,
    Term,
    Variable,
    variables,
)

RULES_MAX = 100_000
BODY_LITERALS_MAX = 64
TERM_DEPTH_MAX = 12

_T = TypeVar("_T")
_AGGREGATES = {kind.value: kind for kind in AggregateKind}
_COMPARISONS = {op.value: op for op in Compare}
_RESERVED = {"not", "mod", *_AGGREGATES}
_INT_MAX = 2**63 - 1


def parse(text: str, file: str = "<query>") -> Program:
    """Parse a program. Raises DatalogError at the first syntax error.

    The answer is the goal ``?- body.`` (at most one, as the last statement) or, without one, the
    predicate of the last rule.
    """
    return _Parser(text, file).program()


class _Parser:
    """Position in the token list; one instance parses one text."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._tokens = tokenize(text, file)
        self._next = 0
        self._rule_start = 0

    def program(self) -> Program:
        rules: list[Rule] = []
        while self._peek().kind is not TokenKind.END:
            self._rule_start = self._peek().start
            if rules and rules[-1].predicate == GOAL:
                raise self._error(self._peek(), "a statement after the goal", "put the goal last")
            if len(rules) >= RULES_MAX:
                raise self._error(
                    self._peek(),
                    f"more than {RULES_MAX} rules",
                    "load facts into a base relation instead",
                )
            rules.append(self._goal() if self._accept("?-") else self._rule())
        if not rules:
            raise self._error(self._peek(), "the program is empty", "write at least one rule")
        return Program(tuple(rules))

    def _rule(self) -> Rule:
        at = self._peek().at
        predicate = self._predicate()
        head = self._arguments(predicate, self._head_term)
        if self._accept(":-"):
            body = self._body()
        else:
            body = ()
            self._expect(".", f"after the head of {predicate}", "end a fact with '.', or write :-")
        return Rule(predicate, tuple(head), body, at, self._source(), self._file)

    def _goal(self) -> Rule:
        at = self._peek().at
        body = self._body()
        seen: dict[str, Term] = {}
        for literal in body:
            terms = (
                literal.arguments if isinstance(literal, Atom) else (literal.left, literal.right)
            )
            for term in terms:
                for variable in variables(term):
                    seen.setdefault(variable.name, variable)
        if len(seen) > ARITY_MAX:
            raise self._error(
                self._peek(), f"a goal with more than {ARITY_MAX} variables", "name fewer; use _"
            )
        head: tuple[Term, ...] = tuple(seen.values()) or (Constant(1, at),)
        return Rule(GOAL, head, body, at, self._source(), self._file)

    def _body(self) -> tuple[Literal, ...]:
        body = [self._literal()]
        while self._accept(","):
            if len(body) >= BODY_LITERALS_MAX:
                raise self._error(
                    self._peek(),
                    f"more than {BODY_LITERALS_MAX} literals in a body",
                    "split the rule with a helper predicate",
                )
            body.append(self._literal())
        self._expect(".", "after a literal", "separate literals with ',' and end the rule with '.'")
        return tuple(body)

    def _literal(self) -> Literal:
        token = self._peek()
        if token.kind is TokenKind.NAME and token.text == "not":
            self._take()
            if self._peek().kind is not TokenKind.NAME:
                raise self._error(
                    self._peek(),
                    "'not' applies to an atom only",
                    "turn a comparison round instead: not X < Y is X >= Y",
                )
            return self._atom(negated=True, at=token.at)
        if token.kind is TokenKind.NAME and token.text in _AGGREGATES:
            raise self._error(
                token,
                f"aggregate {token.text} in a body",
                "put it in the head of a helper rule and use that predicate here",
            )
        if token.kind is TokenKind.NAME:
            return self._atom(negated=False, at=token.at)
        left = self._expression(0)
        operator = self._take()
        if operator.text not in _COMPARISONS:
            raise self._error(
                operator,
                f"expected a comparison (= != < <= > >=), found {_show(operator)}",
                "a body literal is an atom p(...), not p(...), or a comparison",
            )
        return Comparison(_COMPARISONS[operator.text], left, self._expression(0), token.at)

    def _atom(self, *, negated: bool, at: Place) -> Atom:
        predicate = self._predicate()
        found = self._arguments(predicate, self._named_term)
        names = tuple(name for name, _ in found if name is not None)
        arguments = tuple(term for _, term in found)
        if not names:
            return Atom(predicate, arguments, negated, at)
        if len(names) != len(found):
            raise self._error(
                self._tokens[self._next - 1],
                f"arguments of {predicate} with and without names",
                "name every argument that is given, or give all of them in order",
            )
        return Atom(predicate, arguments, negated, at, names)

    def _named_term(self) -> tuple[str | None, Term]:
        token = self._peek()
        if token.kind is TokenKind.NAME and self._tokens[self._next + 1].text == ":":
            self._next += 2
            return token.text, self._body_term()
        return None, self._body_term()

    def _predicate(self) -> str:
        token = self._take()
        if token.kind is not TokenKind.NAME or token.text in _RESERVED:
            raise self._error(
                token,
                f"expected a predicate, found {_show(token)}",
                "a predicate starts with a-z and is not one of " + ", ".join(sorted(_RESERVED)),
            )
        return token.text

    def _arguments(self, predicate: str, one: Callable[[], _T]) -> list[_T]:
        if self._peek().text != "(":
            raise self._error(
                self._peek(),
                f"predicate {predicate} without arguments",
                f"predicates have 1 to {ARITY_MAX} arguments; write {predicate}(1) for a flag",
            )
        self._take()
        if self._peek().text == ")":
            raise self._error(
                self._peek(),
                f"predicate {predicate} with an empty argument list",
                f"predicates have 1 to {ARITY_MAX} arguments; write {predicate}(1) for a flag",
            )
        arguments = [one()]
        while self._accept(","):
            if len(arguments) >= ARITY_MAX:
                raise self._error(
                    self._peek(), f"more than {ARITY_MAX} arguments", "split the relation"
                )
            arguments.append(one())
        self._expect(")", f"in the arguments of {predicate}", "separate arguments with ','")
        return arguments

    def _head_term(self) -> Term | Aggregate:
        token = self._peek()
        if token.kind is not TokenKind.NAME or token.text not in _AGGREGATES:
            return self._expression(0)
        self._take()
        kind = _AGGREGATES[token.text]
        self._expect("(", f"after {token.text}", f"write {token.text}(...)")
        if kind is AggregateKind.COUNT and self._accept("*"):
            arguments: list[Term] = []
        else:
            arguments = [self._expression(0)]
            while self._accept(","):
                arguments.append(self._expression(0))
        self._expect(")", f"in {token.text}", "close the aggregate with ')'")
        if kind is not AggregateKind.COUNT and len(arguments) != 1:
            raise self._error(
                token,
                f"{kind.value} takes 1 argument, got {len(arguments)}",
                "only count takes several terms",
            )
        return Aggregate(kind, tuple(arguments), token.at)

    def _body_term(self) -> Term:
        token = self._peek()
        if token.kind is TokenKind.ANONYMOUS:
            self._take()
            return Anonymous(token.at)
        return self._expression(0)

    def _expression(self, depth: int) -> Term:
        left = self._product(depth)
        while self._peek().text in ("+", "-") and self._peek().kind is TokenKind.SYMBOL:
            token = self._take()
            left = Operation(Arithmetic(token.text), left, self._product(depth), token.at)
            self._check_depth(left, token)
        return left

    def _product(self, depth: int) -> Term:
        left = self._factor(depth)
        while self._peek().text in ("*", "//", "mod") and self._peek().kind is not TokenKind.VALUE:
            token = self._take()
            left = Operation(Arithmetic(token.text), left, self._factor(depth), token.at)
            self._check_depth(left, token)
        return left

    def _factor(self, depth: int) -> Term:
        token = self._take()
        if depth > TERM_DEPTH_MAX:
            raise self._too_deep(token)
        if token.text == "(" and token.kind is TokenKind.SYMBOL:
            inner = self._expression(depth + 1)
            self._expect(")", "in an expression", "close the parenthesis")
            return inner
        if token.text == "-" and token.kind is TokenKind.SYMBOL:
            operand = self._peek()
            if operand.kind is TokenKind.VALUE and isinstance(operand.value, int):
                self._take()
                return self._constant(operand, -operand.value, token.at)
            zero = Constant(0, token.at)
            return Operation(Arithmetic.SUBTRACT, zero, self._factor(depth + 1), token.at)
        if token.kind is TokenKind.VARIABLE:
            return Variable(token.text, token.at)
        if token.kind is TokenKind.PARAMETER:
            return Parameter(token.text[1:], token.at)
        if token.kind is TokenKind.VALUE and token.value is not None:
            return self._constant(token, token.value, token.at)
        if token.kind is TokenKind.ANONYMOUS:
            raise self._error(
                token, "'_' outside the arguments of an atom", "name the variable (X)"
            )
        if token.kind is TokenKind.NAME:
            if token.text in _AGGREGATES:
                message = f"aggregate {token.text} inside an expression"
                fix = "an aggregate is a whole argument of a rule's head"
            elif self._peek().text == "(":
                message = f"compound term {token.text}(...) is not part of the language"
                fix = "use one column for each part"
            else:
                message = f"{token.text} is not a term"
                fix = f'write "{token.text}" for text, a capital letter for a variable'
            raise self._error(token, message, fix)
        raise self._error(
            token,
            f"expected a term, found {_show(token)}",
            "a variable, value, $name or expression",
        )

    def _constant(self, token: Token, value: int | str | bytes, at: Place) -> Constant:
        if isinstance(value, int) and not -_INT_MAX - 1 <= value <= _INT_MAX:
            raise self._error(
                token, f"integer {token.text} does not fit 64 bits", "use -2^63 to 2^63 - 1"
            )
        return Constant(value, at)

    def _check_depth(self, term: Term, token: Token) -> None:
        if _depth(term) > TERM_DEPTH_MAX:
            raise self._too_deep(token)

    def _too_deep(self, token: Token) -> DatalogError:
        return self._error(
            token,
            f"an expression nested more than {TERM_DEPTH_MAX} deep",
            "name a part of it: T = ..., and go on with T in a helper rule",
        )

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind is not TokenKind.END:
            self._next += 1
        return token

    def _accept(self, symbol: str) -> bool:
        token = self._peek()
        if token.kind is TokenKind.SYMBOL and token.text == symbol:
            self._next += 1
            return True
        return False

    def _expect(self, symbol: str, where: str, fix: str) -> None:
        if not self._accept(symbol):
            raise self._error(
                self._peek(), f"expected '{symbol}' {where}, found {_show(self._peek())}", fix
            )

    def _source(self) -> str:
        return rule_text(self._text[self._rule_start : self._tokens[self._next - 1].end])

    def _error(self, token: Token, message: str, fix: str) -> DatalogError:
        source = rule_text(self._text[self._rule_start : token.end])
        at = token.at
        return DatalogError([Diagnostic(self._file, at.line, at.column, source, message, fix)])


def _depth(term: Term) -> int:
    if isinstance(term, Operation):
        return 1 + max(_depth(term.left), _depth(term.right))
    return 0


def _show(token: Token) -> str:
    return "the end of the text" if token.kind is TokenKind.END else repr(token.text)
