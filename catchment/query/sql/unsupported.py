"""What a continuous query cannot contain, and what to write in its place."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from catchment.query.sql.dialect import show
from catchment.query.sql.tokens import SqlText

_LATER = "results are a table: do it when you read them"
REFUSED_CLAUSES = {
    "offset": ("OFFSET", _LATER),
    "sort": ("SORT BY", _LATER),
    "qualify": ("QUALIFY", "use HAVING on aggregates"),
    "pivots": ("PIVOT", "use sum(...) FILTER (WHERE ...) for each column"),
    "cluster": ("CLUSTER BY", "the engine distributes the work"),
    "distribute": ("DISTRIBUTE BY", "the engine distributes the work"),
    "into": ("INTO", "results go to the view's own table"),
    "hint": ("a hint", "the engine chooses how to join"),
    "kind": ("SELECT AS", "list the columns"),
}
REFUSED_NODES: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Query: ("a subquery in an expression", "a subquery stands in FROM; of tables use JOIN"),
    exp.Lambda: ("a lambda", "use plain expressions"),
    exp.Parameter: ("a parameter", "write its value"),
    exp.Placeholder: ("a parameter", "write its value"),
}
RANKING = ("ROW_NUMBER", "RANK", "DENSE_RANK")
AS_OF = (
    "leave it out: records find the rows that the table has when they are read; for the rows of their own time write "
    "ON s.x = t.x AND s.ts >= t.valid_from AND s.ts < t.valid_to"
)
# Their values change when a record is read again, so that answers over them could not be repaired.
UNREPEATABLE = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.Rand, exp.Randn, exp.Uuid)
UNREPEATABLE_NAMES = frozenset(
    {"NOW", "CURDATE", "RANDOM", "SHUFFLE", "SPARK_PARTITION_ID", "INPUT_FILE_NAME", "UNIFORM", "RANDSTR"}
    | {"MONOTONICALLY_INCREASING_ID", "CURRENT_USER", "VERSION", "LOCALTIMESTAMP"}
)


def refuse_unsupported(select: exp.Select, text: SqlText) -> None:
    """Refuse a SELECT that a continuous query cannot be, with a hint at what to write instead."""
    _refuse_clauses(select, text)
    for node in select.walk():
        if isinstance(node, exp.Select) and node is not select:
            _refuse_clauses(node, text)
        if isinstance(node, exp.Explode):
            _check_explode(node, text)
        if isinstance(node, exp.Alias) and not isinstance(node.parent, exp.Select):
            raise text.error("a name (AS) stands inside an expression", node, hint="name whole columns of SELECT")
        if isinstance(node, exp.Window):
            raise text.error("OVER (...) is not possible in a view", node, hint=_over_hint(node))
        if isinstance(node, exp.Table) and node.args.get("version") is not None:
            raise text.error("FOR SYSTEM_TIME AS OF is not possible in a view", node, hint=AS_OF)
        kind = next((k for k in REFUSED_NODES if isinstance(node, k)), None)
        if kind and node is not select and not _is_relation(node):
            found, way_out = REFUSED_NODES[kind]
            raise text.error(f"{found} is not possible in a view", node, hint=way_out)
    for node in _unrepeatable(select):
        raise text.error(
            f"{show(node)} gives another value each time a record is read",
            node,
            hint="use the columns of the record, such as its event time",
        )


def _over_hint(node: exp.Window) -> str:
    """Return what to write in place of a function over other rows."""
    if show(node.this).upper().startswith(RANKING):
        return (
            "for the first rows of each window write ORDER BY ... LIMIT n behind GROUP BY, for the newest value of "
            "each key last(x) or max_by(x, y)"
        )
    return "windows are made with GROUP BY window(event_time, 'size' [, 'slide'])"


def _check_explode(node: exp.Expr, text: SqlText) -> None:
    """Refuse what makes several rows of a record where rows are not made."""
    place = node.parent.parent if isinstance(node.parent, exp.Alias | exp.Aliases) else node.parent
    if isinstance(place, exp.Lateral):
        return
    is_grouped = isinstance(place, exp.Select) and place.args.get("group") is not None
    if not isinstance(place, exp.Select) or is_grouped:
        raise text.error(
            f"{show(node)} is not possible here",
            node,
            hint="write FROM stream LATERAL VIEW explode(array) t AS element, and use element",
        )


def _is_relation(node: exp.Expr) -> bool:
    """Return whether a query stands where a relation does: in FROM, in JOIN or in WITH."""
    if not isinstance(node, exp.Query):
        return False
    parent = node.parent
    if isinstance(parent, exp.Subquery | exp.SetOperation):
        return _is_relation(parent)
    return isinstance(parent, exp.From | exp.CTE) or (isinstance(parent, exp.Join) and parent.this is node)


def _refuse_clauses(select: exp.Select, text: SqlText) -> None:
    for name, (clause, way_out) in REFUSED_CLAUSES.items():
        value = select.args.get(name)
        if value:
            at = value[0] if isinstance(value, list) else value
            raise text.error(
                f"{clause} is not possible in a view", at if isinstance(at, exp.Expr) else select, hint=way_out
            )


def _unrepeatable(select: exp.Select) -> Iterator[exp.Expr]:
    for node in select.walk():
        named = isinstance(node, exp.Anonymous) and str(node.this).upper() in UNREPEATABLE_NAMES
        if named or isinstance(node, UNREPEATABLE):
            yield node
