"""What people write in Flink and RisingWave, read as what it means here.

Windows as table functions, `FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), INTERVAL '1' MINUTE))` or `FROM TUMBLE(s, ts,
INTERVAL '1 MINUTE')` with `GROUP BY window_start, window_end`; windows as grouping functions, `GROUP BY TUMBLE(ts,
...)` with `TUMBLE_START(...)`; rows of arrays, `CROSS JOIN UNNEST(array) AS t(element)`; and `percentile_cont(p) WITHIN
GROUP (ORDER BY x)`. HOP, CUMULATE and SESSION are read in the same two ways. The places of what was written are kept,
so that a mistake is shown where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from catchment.query.sql.dialect import render, show
from catchment.query.sql.tokens import SqlText

TUMBLE, HOP, CUMULATE, SESSION = "TUMBLE", "HOP", "CUMULATE", "SESSION"
# How each is written as a table function, after the relation and its event time.
_FORMS = {
    TUMBLE: "TUMBLE(stream, event_time, size [, offset])",
    HOP: "HOP(stream, event_time, slide, size [, offset])",
    CUMULATE: "CUMULATE(stream, event_time, step, size)",
    SESSION: "SESSION(stream, event_time, gap)",
}
_LENGTHS = {TUMBLE: (1, 2), HOP: (2, 3), CUMULATE: (2, 2), SESSION: (1, 1)}  # how many durations each has
_BOUNDS = {"window_start": "start", "window_end": "end"}  # the columns that a table function adds
_ENDS = {"START": "start", "END": "end"}  # what follows the name of a grouping function where its bounds are asked for
# What makes rows of arrays, and the form that gives a record without elements one row all the same.
_OUTER_FORMS = {exp.Explode: "explode_outer", exp.Posexplode: "posexplode_outer"}


def readable_tokens(tokens: Sequence[Token]) -> list[Token]:
    """Return tokens that the parser can read: without TABLE before a name, and SESSION as the name of a function."""
    found = []
    for number, token in enumerate(tokens):
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        before = tokens[number - 1] if number else None
        is_argument = before is not None and before.token_type == TokenType.L_PAREN
        is_called = following is not None and following.token_type == TokenType.L_PAREN
        if token.text.upper() == "TABLE" and is_argument and not is_called:
            continue
        if token.text.upper() == SESSION and is_called:
            token = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
        found.append(token)
    return found


def read_other_engines(select: exp.Select, text: SqlText) -> exp.Select:
    """Return a SELECT in which the forms of other engines are those of this one."""
    for query in list(select.find_all(exp.Select)):
        _read_table_function(query, text)
        _read_grouping_functions(query, text)
        _read_rows_of_arrays(query, text)
    made = select.transform(_read_percentile, copy=False)
    assert isinstance(made, exp.Select)
    return made


def _read_table_function(query: exp.Select, text: SqlText) -> None:
    """Read a window that is a table function in FROM: its relation, and the bounds that it adds as columns."""
    clause = query.args.get("from_")
    if not isinstance(clause, exp.From):
        return
    table = clause.this
    call = table.this if isinstance(table, exp.Table) else None
    if isinstance(call, exp.Anonymous) and str(call.this).upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    name = _name(call)
    if name is None or not isinstance(call, exp.Anonymous) or not isinstance(table, exp.Table):
        return
    relation, *rest = call.expressions
    if not isinstance(relation, exp.Column) or not rest:
        raise text.error(f"{name} does not say which stream it is over", call, hint=f"write {_FORMS[name]}")
    window = _window(name, [_event_time(rest[0]), *rest[1:]], call, text)
    alias = table.args.get("alias")
    for item in list(query.selects):
        if isinstance(item, exp.Column) and _is_bound(item):
            item.replace(exp.alias_(item.copy(), item.name))
    clause.set("this", exp.Table(this=relation.this.copy(), alias=alias))
    group = query.args.get("group")
    if group is not None:
        kept = [item for item in group.expressions if not _is_bound(item)]
        if len(kept) < len(group.expressions):
            group.set("expressions", [window, *kept])
    for column in [c for c in query.find_all(exp.Column) if _is_bound(c) and c.find_ancestor(exp.Select) is query]:
        column.replace(_bound(_BOUNDS[column.name.lower()]))


def _read_grouping_functions(query: exp.Select, text: SqlText) -> None:
    """Read windows that are functions of GROUP BY, and those that ask for their bounds."""
    group = query.args.get("group")
    given = [item for item in group.expressions if _name(item) not in (None, CUMULATE)] if group is not None else []
    written = {_written(call) for call in given}
    for call in list(query.find_all(exp.Anonymous)):
        function, _, end = str(call.this).upper().rpartition("_")
        if function not in _FORMS or function == CUMULATE or end not in _ENDS:
            continue
        if (function, *_written(call)[1:]) not in written:
            raise text.error(
                f"{show(call)} is about no window of GROUP BY",
                call,
                hint="give it the arguments of the one in GROUP BY",
            )
        call.replace(_bound(_ENDS[end]))
    for call in given:
        call.replace(_window(str(call.this).upper(), call.expressions, call, text, is_grouping=True))


def _written(call: exp.Expr) -> tuple[str, ...]:
    """Return a call as text: its name and its arguments."""
    return (str(call.this).upper(), *(render(argument) for argument in call.expressions))


def _read_rows_of_arrays(query: exp.Select, text: SqlText) -> None:
    """Read joins with UNNEST(array) AS t(element) or with LATERAL explode(array) as rows that each record gives."""
    for join in query.args.get("joins") or ():
        rows = _rows_of_unnest(join) if isinstance(join.this, exp.Unnest) else join.this
        if not isinstance(rows, exp.Lateral):
            continue
        condition = join.args.get("on")
        if condition is not None and not (isinstance(condition, exp.Boolean) and condition.this):
            raise text.error(
                f"the rows of an array are not joined on {show(condition)}",
                condition,
                hint="write ON true, and the condition in WHERE",
            )
        if join.side == "LEFT" and type(rows.this) in _OUTER_FORMS:
            rows.set("this", exp.func(_OUTER_FORMS[type(rows.this)], rows.this.this))
        join.replace(exp.Join(this=rows, kind="CROSS"))


def _rows_of_unnest(join: exp.Join) -> exp.Lateral | None:
    """Return what UNNEST(array) AS t(element) means in Spark's words; None where it means something else."""
    unnest = join.this
    alias = unnest.args.get("alias")
    if len(unnest.expressions) != 1 or unnest.args.get("offset") or alias is None or not (alias.this or alias.columns):
        return None
    named = exp.TableAlias(this=alias.this or exp.to_identifier("unnested"), columns=list(alias.columns))
    return exp.Lateral(this=exp.Explode(this=unnest.expressions[0].copy()), alias=named)


def _read_percentile(node: exp.Expr) -> exp.Expr:
    """Return percentile(x, p) for percentile_cont(p) WITHIN GROUP (ORDER BY x)."""
    if not isinstance(node, exp.WithinGroup) or not isinstance(node.this, exp.Anonymous):
        return node
    order = node.expression.expressions if isinstance(node.expression, exp.Order) else []
    rank = node.this.expressions
    if str(node.this.this).lower() != "percentile_cont" or len(order) != 1 or len(rank) != 1:
        return node
    (by,) = order
    if by.args.get("desc"):
        return node
    return exp.Anonymous(this="percentile", expressions=[by.this, rank[0]])


def _window(
    name: str, arguments: Sequence[exp.Expr], call: exp.Expr, text: SqlText, is_grouping: bool = False
) -> exp.Anonymous:
    """Return the window of this engine that a window of another one means: event time, then its durations."""
    if not _LENGTHS[name][0] <= len(arguments) - 1 <= _LENGTHS[name][1]:
        form = _FORMS[name].replace("stream, ", "") if is_grouping else _FORMS[name]
        raise text.error(f"{name} lacks a duration, or has too many", call, hint=f"write {form}")
    time, *lengths = (a.copy() for a in arguments)
    if name == SESSION:
        return exp.Anonymous(this="session_window", expressions=[time, *lengths])
    if name == CUMULATE:
        return exp.Anonymous(this="cumulate", expressions=[time, *lengths])
    if name == HOP:
        slide, size, *offset = lengths
        return exp.Anonymous(this="window", expressions=[time, size, slide, *offset])
    size, *offset = lengths
    return exp.Anonymous(this="window", expressions=[time, size, *([size.copy(), *offset] if offset else [])])


def _event_time(argument: exp.Expr) -> exp.Expr:
    """Return the column that DESCRIPTOR(ts) names, or the argument as it is."""
    if isinstance(argument, exp.Anonymous) and str(argument.this).upper() == "DESCRIPTOR" and argument.expressions:
        argument = argument.expressions[0]
    return argument


def _name(call: object) -> str | None:
    name = str(call.this).upper() if isinstance(call, exp.Anonymous) else None
    return name if name in _FORMS else None


def _is_bound(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name.lower() in _BOUNDS


def _bound(end: str) -> exp.Column:
    return exp.column(end, table="window")
