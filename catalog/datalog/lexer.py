"""Program text to tokens. Refuses by name what other Datalogs write and this one does not have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from pagetrail.catalog.datalog.errors import DatalogError, Diagnostic
from pagetrail.catalog.datalog.model import Place, Value

PROGRAM_CHARS_MAX = 1 << 20


class TokenKind(Enum):
    """What a token is."""

    NAME = auto()
    VARIABLE = auto()
    ANONYMOUS = auto()
    PARAMETER = auto()
    VALUE = auto()
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """One token. ``value`` is set for VALUE; ``start`` and ``end`` are offsets in the text."""

    kind: TokenKind
    text: str
    value: Value | None
    at: Place
    start: int
    end: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|%[^\n]*)
      | (?P<float>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))
      | (?P<bytes>0[xX][0-9A-Za-z_]*)
      | (?P<integer>[0-9][0-9A-Za-z_]*)
      | (?P<name>[a-z][A-Za-z0-9_]*)
      | (?P<variable>[A-Z][A-Za-z0-9_]*)
      | (?P<anonymous>_[A-Za-z0-9_]*)
      | (?P<parameter>\$[A-Za-z0-9_]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<refused><>|==|\\\+|&&|\|\||!(?!=)|\#[a-z]*|:~|->|<-|/(?!/)|\*\*|[;|{}\[\]'&^~@?](?!-))
      | (?P<symbol>:-|\?-|<=|>=|!=|//|[<>=+\-*(),.:])
    """,
    re.VERBOSE,
)

_REFUSED = {
    "<>": ("'<>' is not an operator", "write !="),
    "==": ("'==' is not an operator", "write ="),
    "!": ("'!' is not negation here", "write not p(...)"),
    "\\+": ("'\\+' is not negation here", "write not p(...)"),
    "&&": ("'&&' is not a connective", "separate literals with a comma"),
    "||": ("disjunction is not part of the language", "write one rule for each alternative"),
    "|": ("disjunction is not part of the language", "write one rule for each alternative"),
    ";": ("disjunction is not part of the language", "write one rule for each alternative"),
    "{": ("choice and sets are not part of the language", "write plain rules"),
    "}": ("choice and sets are not part of the language", "write plain rules"),
    "[": ("lists are not part of the language", "use a relation with one row for each element"),
    "]": ("lists are not part of the language", "use a relation with one row for each element"),
    "'": ("text is not written in single quotes", 'write "..."'),
    ":~": ("weak constraints are not part of the language", "write plain rules"),
    "->": ("implication arrows are not part of the language", "write head :- body."),
    "<-": ("'<-' is not the rule arrow", "write head :- body."),
    "/": ("'/' is not an operator", "write // for division that floors"),
    "**": ("powers are not part of the language", "multiply"),
}

_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}


def tokenize(text: str, file: str) -> list[Token]:
    """Split ``text``; the last token is END. Raises DatalogError at the first bad character."""
    if len(text) > PROGRAM_CHARS_MAX:
        raise _error(
            file,
            Place(1, 1),
            f"the program has {len(text)} characters, at most {PROGRAM_CHARS_MAX} are read",
            "split it, or load data into a base relation",
        )
    tokens: list[Token] = []
    position, line, line_start = 0, 1, 0
    while position < len(text):
        at = Place(line, position - line_start + 1)
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unknown(text, position, file, at)
        group, source = str(match.lastgroup), match.group()
        if group == "space":
            breaks = source.count("\n")
            if breaks:
                line += breaks
                line_start = position + source.rindex("\n") + 1
        else:
            kind, value = _classify(group, source, file, at)
            tokens.append(Token(kind, source, value, at, position, match.end()))
        position = match.end()
    tokens.append(
        Token(TokenKind.END, "", None, Place(line, position - line_start + 1), position, position)
    )
    return tokens


def _classify(group: str, source: str, file: str, at: Place) -> tuple[TokenKind, Value | None]:
    if group == "name":
        return TokenKind.NAME, None
    if group == "variable":
        return TokenKind.VARIABLE, None
    if group == "symbol":
        return TokenKind.SYMBOL, None
    if group == "anonymous":
        if source == "_":
            return TokenKind.ANONYMOUS, None
        raise _error(
            file,
            at,
            f"{source} is neither a variable nor '_'",
            "start a variable with a capital letter; only '_' alone is anonymous",
        )
    if group == "parameter":
        if re.fullmatch(r"\$[A-Za-z][A-Za-z0-9_]*", source):
            return TokenKind.PARAMETER, None
        raise _error(file, at, f"{source!r} is not a parameter", "write $name")
    if group == "integer":
        if source.isdigit():
            return TokenKind.VALUE, int(source) if len(source) <= 20 else 1 << 70
        raise _error(file, at, f"{source!r} is not an integer", "write decimal digits only")
    if group == "bytes":
        digits = source[2:]
        if source[1] == "x" and len(digits) % 2 == 0 and re.fullmatch("[0-9a-fA-F]*", digits):
            return TokenKind.VALUE, bytes.fromhex(digits)
        raise _error(
            file,
            at,
            f"{source!r} is not a byte string",
            "write 0x and an even number of hex digits",
        )
    if group == "text":
        return TokenKind.VALUE, _unescape(source, file, at)
    if group == "float":
        raise _error(
            file,
            at,
            f"{source} is a float, and floats are not part of the language",
            "scale to an integer unit (_ppm, _ns, _bytes)",
        )
    if source.startswith("#"):
        raise _error(
            file,
            at,
            f"directives such as {source!r} are not part of the language",
            "aggregates are written in the head: total(X, sum(Y)) :- r(X, Y).",
        )
    message, fix = _REFUSED.get(
        source, (f"{source!r} is not part of the language", "see the grammar in docs/datalog.md")
    )
    raise _error(file, at, message, fix)


def _unescape(source: str, file: str, at: Place) -> str:
    out: list[str] = []
    body = iter(source[1:-1])
    for character in body:
        if character == "\\":
            escape = next(body)
            if escape not in _ESCAPES:
                raise _error(
                    file, at, f"unknown escape '\\{escape}' in text", 'use \\", \\\\, \\n or \\t'
                )
            character = _ESCAPES[escape]
        if character == "\0" or "\ud800" <= character <= "\udfff":
            raise _error(
                file,
                at,
                f"text may not hold U+{ord(character):04X}",
                "write it as bytes (0x...) or pass it as a parameter",
            )
        out.append(character)
    return "".join(out)


def _unknown(text: str, position: int, file: str, at: Place) -> DatalogError:
    character = text[position]
    if character == '"':
        return _error(
            file, at, "text that does not end on its line", 'close it with "; write \\n for a break'
        )
    return _error(
        file,
        at,
        f"unexpected character {character!r}",
        "see the grammar in docs/datalog.md; names start with a-z, variables with A-Z",
    )


def _error(file: str, at: Place, message: str, fix: str) -> DatalogError:
    return DatalogError([Diagnostic(file, at.line, at.column, "", message, fix)])
