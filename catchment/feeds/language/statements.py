"""Statements of a feed program, split from its text: device streams, reference tables, feed views.

    CREATE STREAM name (column TYPE, ...) WITH (device = 'column');
    CREATE TABLE name (column TYPE, ...);
    CREATE FEED VIEW name [WITH (lifetime = '30 seconds', notify_every = '1 minute')] AS SELECT ...;

Every error says which line, what was found there and what is possible. Expressions keep the line that they
had in the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token

from catchment.errors import FeedError

COLUMN_TYPES = ("BIGINT", "INT", "DOUBLE", "STRING", "BOOLEAN")
MAX_TEXT_CHARS = 1_000_000


@dataclass(frozen=True)
class Declared:
    """A declared stream or table: its columns in order, with their types."""

    name: str
    columns: tuple[tuple[str, str], ...]
    line: int
    device: str | None = None  # the column that names the device; only streams have one

    def __post_init__(self) -> None:
        names = self.column_names
        if not names or len(set(names)) != len(names):
            raise FeedError(
                f"{self.name!r} has no columns or two of one name: {list(names)}", where=f"line {self.line}"
            )
        if self.device is not None and self.device not in names:
            raise FeedError(
                f"found device = {self.device!r}; possible: {', '.join(names)}", where=f"line {self.line}",
                hint="device names the column that says whose event it is",
            )  # fmt: skip

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    def type_of(self, column: str) -> str:
        return dict(self.columns)[column]


@dataclass(frozen=True, eq=False)
class ViewStatement:
    """A feed view as written: its name, its options and its parsed SELECT."""

    name: str
    options: dict[str, str]
    select: exp.Select
    line: int


Statement = Declared | ViewStatement


def read_statements(text: str) -> Iterator[Statement]:
    """The statements of a program, in order."""
    if len(text) > MAX_TEXT_CHARS:
        raise FeedError(f"the program has {len(text)} characters; at most {MAX_TEXT_CHARS} are read")
    for tokens in _split(_tokenize(text)):
        yield _Reader(text, tokens).statement()


def _tokenize(text: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(text, dialect="spark"))
    except SqlglotError as error:
        raise FeedError(f"cannot read the text: {error}") from error


def _split(tokens: list[Token]) -> Iterator[list[Token]]:
    current: list[Token] = []
    for token in tokens:
        if token.text == ";" and token.token_type.name == "SEMICOLON":
            if current:
                yield current
            current = []
        else:
            current.append(token)
    if current:
        yield current


class _Reader:
    """Reads one statement from its tokens."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def statement(self) -> Statement:
        self._expect("CREATE")
        kind = self._expect("STREAM", "TABLE", "FEED")
        if kind == "FEED":
            self._expect("VIEW")
            return self._view()
        return self._declared(kind)

    def _declared(self, kind: str) -> Declared:
        line = self.tokens[0].line
        name = self._name()
        columns = tuple(self._columns())
        options = self._options({"device"} if kind == "STREAM" else set())
        self._end()
        if kind == "STREAM" and "device" not in options:
            raise FeedError(
                f"stream {name!r} does not say which column names its device", where=f"line {line}",
                hint=f"CREATE STREAM {name} (...) WITH (device = '{columns[0][0]}')",
            )  # fmt: skip
        return Declared(name, columns, line, options.get("device"))

    def _view(self) -> ViewStatement:
        line = self.tokens[0].line
        name = self._name()
        options = self._options({"lifetime", "notify_every"})
        self._expect("AS")
        if self.at >= len(self.tokens):
            raise self._fault("SELECT")
        return ViewStatement(name, options, self._select(), line)

    def _select(self) -> exp.Select:
        start, end = self.tokens[self.at].start, self.tokens[-1].end
        blank = "\n" * (self.tokens[self.at].line - 1)  # so that lines are those of the whole text
        try:
            parsed = sqlglot.parse_one(blank + self.text[start : end + 1], dialect="spark")
        except SqlglotError as error:
            raise self._sql_fault(error) from error
        if not isinstance(parsed, exp.Select):
            raise self._fault("SELECT")
        return parsed

    def _sql_fault(self, error: SqlglotError) -> FeedError:
        details = error.errors if isinstance(error, ParseError) else []
        if not details:
            return FeedError(f"cannot read the SELECT: {error}", where=f"line {self.tokens[self.at].line}")
        found, description = details[0].get("highlight"), details[0].get("description")
        return FeedError(f"found {found!r}: {description}", where=f"line {details[0].get('line')}")

    def _columns(self) -> Iterator[tuple[str, str]]:
        self._expect("(")
        while True:
            name = self._name()
            yield name, self._expect(*COLUMN_TYPES)
            if self._expect(",", ")") == ")":
                return

    def _options(self, allowed: set[str]) -> dict[str, str]:
        if self._peek() != "WITH":
            return {}
        self._expect("WITH")
        self._expect("(")
        options: dict[str, str] = {}
        while True:
            key = self._expect(*sorted(o.upper() for o in allowed)).lower()
            self._expect("=")
            options[key] = self._take().text
            if self._expect(",", ")") == ")":
                return options

    def _peek(self) -> str | None:
        return self.tokens[self.at].text.upper() if self.at < len(self.tokens) else None

    def _take(self) -> Token:
        if self.at >= len(self.tokens):
            raise self._fault("more")
        self.at += 1
        return self.tokens[self.at - 1]

    def _name(self) -> str:
        token = self._take()
        if not token.text.replace("_", "a").isalnum():
            self.at -= 1
            raise self._fault("a name")
        return token.text.lower()

    def _expect(self, *possible: str) -> str:
        found = self._peek()
        if found not in possible:
            raise self._fault(", ".join(possible) or "nothing more")
        self.at += 1
        assert found is not None
        return found

    def _end(self) -> None:
        if self.at < len(self.tokens):
            raise self._fault("; or the end")

    def _fault(self, possible: str) -> FeedError:
        last = self.tokens[min(self.at, len(self.tokens) - 1)]
        found = repr(last.text) if self.at < len(self.tokens) else "the end of the statement"
        return FeedError(f"found {found}; possible: {possible}", where=f"line {last.line}")
