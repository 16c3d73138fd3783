"""A SQL text, the places in it, and its tokens read from left to right.

Every error says file:line:column, what was found there and what is possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from catchment.errors import QueryError
from catchment.query.sql.dialect import CatchmentSpark

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
NAME_FORM = "a name has letters, digits and _, starts with no digit and has at most 63 characters"
OPTION_FORM = "options are written WITH (name = 'value', name = 0.5, ...)"
_QUOTED = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`""", re.DOTALL)


@dataclass(frozen=True)
class SqlText:
    """One text and the name of the file that it stands in."""

    text: str = field(repr=False)
    file: str = "<sql>"

    def at(self, offset: int) -> str:
        """Return file:line:column of a character."""
        line = self.text.count("\n", 0, offset) + 1
        column = offset - (self.text.rfind("\n", 0, offset) + 1) + 1
        return f"{self.file}:{line}:{column}"

    def place(self, expression: exp.Expr | None) -> str:
        """Return file:line:column of the beginning of an expression, or of what it is part of if it has none."""
        while expression is not None:
            starts = [node.meta["start"] for node in expression.walk() if "start" in node.meta]
            if starts:
                return self.at(min(starts))
            expression = expression.parent
        return self.at(0)

    def error(self, message: str, at: exp.Expr | int | None, hint: str | None = None) -> QueryError:
        """Return an error at an expression or at a character."""
        where = self.at(at) if isinstance(at, int) else self.place(at)
        return QueryError(message, where=where, hint=hint)


@dataclass
class Cursor:
    """A position among the tokens of one statement."""

    source: SqlText
    tokens: Sequence[Token]
    position: int = 0

    @property
    def start(self) -> str:
        """Where the statement begins."""
        return self.source.at(self.tokens[0].start)

    @property
    def rest(self) -> list[Token]:
        return list(self.tokens[self.position :])

    def peek(self) -> str | None:
        return self.tokens[self.position].text.upper() if self.position < len(self.tokens) else None

    def word(self, *words: str, possible: str) -> str:
        """Read one of these words."""
        found = self.peek()
        if found is None or found not in words:
            raise self.error_here(possible)
        self.position += 1
        return found

    def words(self, text: str, possible: str) -> None:
        """Read these words, one after the other."""
        for word in text.split():
            self.word(word, possible=possible)

    def name(self, what: str) -> str:
        """Read the name of a stream, table or view."""
        if self.position >= len(self.tokens):
            raise self.error_here(f"the name of a {what}")
        self.position += 1
        return self.checked_name(self.tokens[self.position - 1], f"a {what}")

    def checked_name(self, token: Token, what: str) -> str:
        if token.token_type == TokenType.STRING or not IDENTIFIER.fullmatch(token.text):
            raise self.source.error(f"{token.text!r} cannot be the name of {what}", token.start, NAME_FORM)
        return str(token.text)

    def end(self) -> None:
        """Check that the statement ends here."""
        if self.position < len(self.tokens):
            raise self.error_here("the end of the statement (;)")

    def group(self, form: str) -> list[list[Token]]:
        """Read a list in parentheses, and return its parts between the commas."""
        if self.peek() != "(":
            raise self.error_here(form)
        opened = self.tokens[self.position]
        depth = 0
        parts: list[list[Token]] = [[]]
        for token in self.rest:
            self.position += 1
            depth += _nesting(token)
            if depth == 0:
                return self._checked_parts(parts, token, form)
            if depth == 1 and token.token_type == TokenType.COMMA:
                parts.append([])
            elif token is not opened:
                parts[-1].append(token)
        raise self.source.error("this parenthesis is never closed", opened.start, hint=f"possible: {form}")

    def _checked_parts(self, parts: list[list[Token]], closed: Token, form: str) -> list[list[Token]]:
        if parts == [[]]:
            return []
        if not all(parts):
            raise self.source.error("there is a comma too many in this list", closed.start, hint=f"possible: {form}")
        return parts

    def options(self) -> tuple[dict[str, Any], dict[str | None, str]]:
        """Read WITH (...), and return the values and where each stands."""
        self.word("WITH", possible="WITH (name = value, ...)")
        values: dict[str, Any] = {}
        places: dict[str | None, str] = {}
        for part in self.group("(name = value, ...)"):
            name = part[0].text.lower()
            at = part[0].start
            if len(part) < 3 or part[1].text != "=":
                raise self.source.error(f"the option {name!r} has no value", at, hint=OPTION_FORM)
            if name in values:
                raise self.source.error(f"the option {name!r} is given twice", at, hint="keep one of them")
            values[name] = self._value(part[2:], name)
            places[name] = self.source.at(at)
        return values, places

    def _value(self, part: list[Token], name: str) -> Any:
        token = part[-1]
        negative = len(part) == 2 and part[0].text == "-"
        if token.token_type == TokenType.NUMBER and (len(part) == 1 or negative):
            return (-1 if negative else 1) * _number(token.text)
        if len(part) == 1 and token.token_type == TokenType.STRING:
            return token.text
        if len(part) == 1 and IDENTIFIER.fullmatch(token.text):
            return {"true": True, "false": False}.get(token.text.lower(), token.text)
        found = self.source.text[part[0].start : token.end + 1]
        raise self.source.error(
            f"the option {name!r} has the value {found}",
            part[0].start,
            hint=f"a value is one text in quotes, one number or one word; {OPTION_FORM}",
        )

    def error_here(self, possible: str) -> QueryError:
        """Return an error that says what stands here, and what is possible."""
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            return self.source.error(f"{token.text!r} was not expected", token.start, f"possible: {possible}")
        last = self.tokens[-1]
        return self.source.error(f"the statement ends after {last.text!r}", last.start, f"possible next: {possible}")


def read_statements(source: SqlText) -> Iterator[Cursor]:
    """Yield a cursor at the beginning of each statement of a text."""
    try:
        tokens = CatchmentSpark().tokenize(source.text)
    except TokenError as cause:
        raise source.error(
            "a string, a quoted name or a comment is opened here and never closed",
            _find_unclosed(source.text),
            hint="close it with the mark that opened it",
        ) from cause
    part: list[Token] = []
    for token in tokens:
        if token.token_type != TokenType.SEMICOLON:
            part.append(token)
        elif part:
            yield Cursor(source, tuple(part))
            part = []
    if part:
        yield Cursor(source, tuple(part))


def _find_unclosed(text: str) -> int:
    """Return where the string, quoted name or comment begins that is never closed."""
    at = 0
    while at < len(text):
        found = _QUOTED.match(text, at)
        if found is None and (text[at] in "'\"`" or text.startswith("/*", at)):
            return at
        at = found.end() if found else at + 1
    return max(len(text) - 1, 0)


def _number(text: str) -> int | float:
    return float(text) if set(text.lower()) & {".", "e"} else int(text)


def _nesting(token: Token) -> int:
    """Return 1 for a token that opens a list, -1 for one that closes it: parentheses, and the brackets of types."""
    if token.token_type in (TokenType.L_PAREN, TokenType.LT):
        return 1
    return -1 if token.token_type in (TokenType.R_PAREN, TokenType.GT) else 0
