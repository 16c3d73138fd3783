"""The SELECT at the end of a statement, parsed together with its tokens, so that every place is one of the file."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token

from catchment.errors import QueryError
from catchment.query.sql.dialect import CatchmentSpark
from catchment.query.sql.other_engines import read_other_engines, readable_tokens
from catchment.query.sql.tokens import Cursor, SqlText

_HEADS = ("SELECT", "WITH", "(")
# Besides its own errors, sqlglot raises these where arguments of a function are missing.
_UNREADABLE = (ParseError, ValueError, TypeError, AttributeError, IndexError, KeyError)


def read_select(cursor: Cursor, form: str) -> exp.Select:
    """Read the SELECT that the rest of a statement is; `form` says in errors what is possible."""
    tokens = cursor.rest
    source = cursor.source
    if not tokens:
        raise cursor.error_here("SELECT ...")
    head = tokens[0].text.upper()
    try:
        parsed = CatchmentSpark().parser().parse(readable_tokens(tokens), source.text)[0] if head in _HEADS else None
    except _UNREADABLE as cause:
        raise _unreadable(cause, tokens, source, form) from cause
    if isinstance(parsed, exp.Union) and parsed.args.get("with_") is None:
        parsed = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=parsed)))
    if not isinstance(parsed, exp.Select) or not parsed.selects:
        found = "several of them" if isinstance(parsed, exp.Query) else head
        found = "one without columns" if isinstance(parsed, exp.Select) else found
        raise source.error(f"a view is one SELECT, not {found}", tokens[0].start, f"possible: {form}")
    return read_other_engines(parsed, source)


def _unreadable(cause: Exception, tokens: list[Token], source: SqlText, form: str) -> QueryError:
    """Return sqlglot's error, at the token that it names, if it names one."""
    detail = cause.errors[0] if isinstance(cause, ParseError) and cause.errors else {}
    place = (detail.get("line"), detail.get("col"))
    here = next((t for t in tokens if (t.line, t.col) == place), tokens[0])
    reason = str(detail.get("description") or "Required").rstrip(".")
    reason = "something is missing here" if reason.startswith("Required") else reason
    return source.error(f"this SELECT cannot be read at {here.text!r}: {reason}", here.start, f"possible: {form}")
