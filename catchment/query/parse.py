"""SQL text to statements.

The heads of statements (CREATE STREAM ..., WITH (...)) are read here, token by token; column types and SELECTs
are handed to sqlglot together with their tokens, so that every line number is one of the file. What cannot be read
is a QueryError that says where, what was found and what is possible there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from catchment.errors import QueryError
from catchment.options import IDENTIFIER
from catchment.query.dialect import CatchmentSpark
from catchment.query.source import SqlText
from catchment.query.statements import Column, DropView, Explain, Statement, Stream, Table, View
from catchment.query.types import POSSIBLE_TYPES, arrow_type, read_type
from catchment.query.with_options import read_stream_options, read_table_options, read_view_options

FORMS = (
    "CREATE STREAM name (columns) WITH (...), CREATE TABLE name (columns) WITH (...), "
    "CREATE MATERIALIZED VIEW name [WITH (...)] AS SELECT ..., DROP MATERIALIZED VIEW name, EXPLAIN name"
)
OPTION_FORM = "options are written WITH (name = 'value', name = 0.5, ...)"


def parse_file(path: Path) -> tuple[Statement, ...]:
    """The statements of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise QueryError("this file is not UTF-8 text", where=str(path)) from cause
    return parse_sql(text, str(path))


def parse_sql(text: str, file: str = "<sql>") -> tuple[Statement, ...]:
    """The statements of a text; `file` is the name that errors give it."""
    source = SqlText(text, file)
    try:
        tokens = CatchmentSpark().tokenize(text)
    except TokenError as cause:
        raise source.error(
            "a string, a quoted name or a comment is opened and never closed",
            _last_opening(text),
            hint="close it with the mark that opened it",
        ) from cause
    return tuple(_Reader(source, tuple(part)).statement() for part in _split(tokens))


def parse_statement(text: str, file: str = "<sql>") -> Statement:
    """The only statement of a text."""
    statements = parse_sql(text, file)
    if len(statements) != 1:
        raise QueryError(f"one statement is wanted, {len(statements)} were found", where=file)
    return statements[0]


def _split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def _last_opening(text: str) -> int:
    """The mark after which nothing can be read: the first that leaves the text before it readable."""
    marks = [i for i, c in enumerate(text) if c in "'\"`" or text.startswith("/*", i)]
    for mark in marks:
        try:
            CatchmentSpark().tokenize(text[:mark])
        except TokenError:
            continue
        try:
            CatchmentSpark().tokenize(text[: _next_mark(marks, mark) + 1])
        except TokenError:
            if mark == marks[-1] or all(_unreadable(text[: m + 1]) for m in marks if m > mark):
                return mark
    return marks[-1] if marks else 0


def _next_mark(marks: list[int], mark: int) -> int:
    later = [m for m in marks if m > mark]
    return later[0] if later else mark


def _unreadable(text: str) -> bool:
    try:
        CatchmentSpark().tokenize(text)
    except TokenError:
        return True
    return False


@dataclass
class _Reader:
    """Reads the tokens of one statement from left to right."""

    source: SqlText
    tokens: tuple[Token, ...]
    position: int = 0

    def statement(self) -> Statement:
        head = self.word("CREATE", "DROP", "EXPLAIN", possible=FORMS)
        if head == "EXPLAIN":
            return self.explain()
        if head == "DROP":
            return self.drop()
        kind = self.word("STREAM", "TABLE", "MATERIALIZED", possible=FORMS)
        if kind == "MATERIALIZED":
            return self.view()
        return self.relation(kind)

    @property
    def start(self) -> int:
        return self.tokens[0].start

    def explain(self) -> Explain:
        if self.peek() == "MATERIALIZED":
            self.position += 1
            self.word("VIEW", possible="EXPLAIN MATERIALIZED VIEW name")
        name = self.name("view")
        self.end()
        return Explain(name, self.source.at(self.start))

    def drop(self) -> DropView:
        self.word("MATERIALIZED", possible="DROP MATERIALIZED VIEW name")
        self.word("VIEW", possible="DROP MATERIALIZED VIEW name")
        name = self.name("view")
        self.end()
        return DropView(name, self.source.at(self.start))

    def relation(self, kind: str) -> Stream | Table:
        name = self.name(kind.lower())
        columns = self.columns(name)
        given, places = self.options(required=True)
        self.end()
        where = self.source.at(self.start)

        def place(option: str | None) -> str:
            return self.source.at(places[option]) if option in places else where

        try:
            if kind == "TABLE":
                return Table(name, columns, read_table_options(given, name, place), where)
            own, connector = read_stream_options(given, name, place)
            return Stream(
                name,
                columns,
                own["event_time"],
                connector,
                own["sites"],
                own["slack"],
                own["max_jump"],
                own["history"],
                where,
            )
        except QueryError as cause:
            raise cause if cause.where else QueryError(cause.message, where=where, hint=cause.hint) from cause

    def view(self) -> View:
        self.word("VIEW", possible="CREATE MATERIALIZED VIEW name")
        name = self.name("view")
        given, places = self.options(required=False)
        where = self.source.at(self.start)
        self.word("AS", possible="WITH (...) or AS SELECT ...")
        options = read_view_options(
            given, name, lambda o: self.source.at(places[o]) if o in places else where
        )
        return View(name, self.select(), options, self.source, where)

    def select(self) -> exp.Select:
        rest = list(self.tokens[self.position :])
        if not rest:
            raise self.unexpected("SELECT ...")
        try:
            parsed = CatchmentSpark().parser().parse(rest, self.source.text)[0]
        except ParseError as cause:
            raise self.explained(cause, rest) from cause
        if not isinstance(parsed, exp.Select):
            raise self.source.error(
                f"a view is defined by one SELECT, not by {rest[0].text.upper()} ...",
                rest[0].start,
                hint="possible: SELECT ... FROM stream ... GROUP BY window(...), ...",
            )
        return parsed

    def explained(self, cause: ParseError, rest: list[Token]) -> QueryError:
        """sqlglot's complaint, placed at the token it stumbled over."""
        detail = cause.errors[0] if cause.errors else {}
        line, column = detail.get("line"), detail.get("col")
        here = next((t for t in rest if t.line == line and t.col == column), rest[-1])
        found = str(detail.get("highlight") or here.text)
        reason = str(detail.get("description") or cause).rstrip(".")
        return self.source.error(
            f"this SELECT cannot be read at {found!r}: {reason}",
            here.start,
            hint="possible: SELECT expressions FROM stream [JOIN table ON ...] [WHERE ...] "
            "GROUP BY window(event_time, 'size'), keys [HAVING ...]",
        )

    def columns(self, owner: str) -> tuple[Column, ...]:
        found = [self.column(part, owner) for part in self.group("(name TYPE, ...)")]
        if not found:
            raise self.source.error(
                f"{owner!r} has no columns", self.start, hint="declare them: (name TYPE, ...)"
            )
        return tuple(found)

    def column(self, part: Sequence[Token], owner: str) -> Column:
        name = self.checked_name(part[0], f"a column of {owner!r}")
        if len(part) < 2:
            raise self.source.error(
                f"column {name!r} has no type", part[0].start, hint=f"possible: {POSSIBLE_TYPES}"
            )
        text = self.source.text[part[1].start : part[-1].end + 1]
        type_ = arrow_type(read_type(text))
        if type_ is None:
            raise self.source.error(
                f"column {name!r} has the unknown type {text!r}",
                part[1].start,
                hint=f"possible: {POSSIBLE_TYPES}",
            )
        return Column(name, type_)

    def options(self, required: bool) -> tuple[dict[str, Any], dict[str | None, int]]:
        """The values of WITH (...), and where each begins."""
        if not required and self.peek() != "WITH":
            return {}, {}
        self.word("WITH", possible="WITH (name = value, ...)")
        values: dict[str, Any] = {}
        places: dict[str | None, int] = {}
        for part in self.group("(name = value, ...)"):
            name = part[0].text.lower()
            if len(part) < 3 or part[1].text != "=":
                raise self.source.error(f"the option {name!r} has no value", part[0].start, hint=OPTION_FORM)
            if name in values:
                raise self.source.error(
                    f"the option {name!r} is given twice", part[0].start, hint="keep one of them"
                )
            values[name], places[name] = self.value(part[2:], name), part[0].start
        return values, places

    def value(self, part: Sequence[Token], name: str) -> Any:
        sign = -1 if part[0].text == "-" and len(part) == 2 else 1
        token = part[-1]
        if len(part) != (1 if sign == 1 else 2) or token.text in ("(", ")"):
            found = self.source.text[part[0].start : token.end + 1]
            raise self.source.error(
                f"the option {name!r} has the value {found}",
                part[0].start,
                hint=f"a value is one text, number or word; {OPTION_FORM}",
            )
        if token.token_type == TokenType.NUMBER:
            return sign * (
                float(token.text) if "." in token.text or "e" in token.text.lower() else int(token.text)
            )
        if token.token_type == TokenType.STRING:
            return token.text
        return {"true": True, "false": False}.get(token.text.lower(), token.text)

    def group(self, form: str) -> list[Sequence[Token]]:
        """The parts between commas of what stands in parentheses here."""
        if self.peek() != "(":
            raise self.unexpected(form)
        opened, depth = self.tokens[self.position], 0
        parts: list[Sequence[Token]] = []
        part: list[Token] = []
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            depth += _nesting(token)
            if depth == 0:
                return [*parts, part] if part else parts
            if depth == 1 and token.text == "," and token.token_type == TokenType.COMMA:
                if not part:
                    raise self.source.error(
                        "nothing stands before this comma", token.start, hint=f"possible: {form}"
                    )
                parts, part = [*parts, part], []
            elif token is not opened:
                part.append(token)
        raise self.source.error("this parenthesis is never closed", opened.start, hint=f"possible: {form}")

    def name(self, what: str) -> str:
        if self.position >= len(self.tokens):
            raise self.unexpected(f"the name of a {what}")
        self.position += 1
        return self.checked_name(self.tokens[self.position - 1], f"a {what}")

    def checked_name(self, token: Token, what: str) -> str:
        if token.token_type == TokenType.STRING or not IDENTIFIER.fullmatch(token.text):
            raise self.source.error(
                f"{token.text!r} cannot be the name of {what}",
                token.start,
                hint="a name is made of letters, digits and _, starts with no digit and has at most 63 characters",
            )
        return str(token.text)

    def peek(self) -> str | None:
        return self.tokens[self.position].text.upper() if self.position < len(self.tokens) else None

    def word(self, *words: str, possible: str) -> str:
        if self.peek() not in words:
            raise self.unexpected(possible)
        self.position += 1
        return str(self.tokens[self.position - 1].text.upper())

    def end(self) -> None:
        if self.position < len(self.tokens):
            raise self.unexpected("the end of the statement (;)")

    def unexpected(self, possible: str) -> QueryError:
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            return self.source.error(
                f"{token.text!r} was not expected", token.start, hint=f"possible: {possible}"
            )
        after = self.tokens[-1]
        return self.source.error(
            f"the statement ends after {after.text!r}", after.start, hint=f"possible next: {possible}"
        )


def _nesting(token: Token) -> int:
    opens = (TokenType.L_PAREN, TokenType.LT)
    closes = (TokenType.R_PAREN, TokenType.GT)
    return 1 if token.token_type in opens else -1 if token.token_type in closes else 0
