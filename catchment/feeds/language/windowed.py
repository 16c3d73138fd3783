"""A view with a window: aggregates of its matches, per tumbling window and notified user.

    CREATE FEED VIEW meetings WITH (lifetime = '20 seconds', window = '1 hour') AS
    SELECT a.user, count(*) AS times, min(distance(...)) AS nearest FROM ... [GROUP BY a.user]

It is planned as two views: `name__matches` gives a match with the arguments of the aggregates, and `name` reads those.
The second is computed at the cloud, where the matches of all hosts come together (`device/window_notices.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from catchment.feeds.language.lifetimes import Lifetimes
from catchment.feeds.language.plan_template import read_outputs
from catchment.feeds.language.statements import ViewStatement
from catchment.feeds.language.template import WHO
from catchment.feeds.language.view_scope import FeedCatalog, FeedScope, make_column
from catchment.query.feed_matches import matches_name
from catchment.query.sql.dialect import show

MATCHES = "matches"  # the alias of the matches
AGGREGATES = ("count", "sum", "min", "max", "avg")


@dataclass(frozen=True)
class WindowedView:
    """The two views of a view with a window, and the function of each of its outputs; None is the user's own column."""

    matches: ViewStatement
    view: ViewStatement
    functions: tuple[str | None, ...]


def split_window(view: ViewStatement, catalog: FeedCatalog) -> WindowedView | None:
    """Return the two views of a view with a window; None where it has no window."""
    if view.window_us is None and not any(_aggregates_in(item) for item in view.select.expressions):
        return None
    scope = FeedScope(view, catalog)
    outputs = read_outputs(scope)
    aggregates = [node for node in outputs.values() if _aggregates_in(node)]
    if view.window_us is None:
        hint = "give the view a window, such as WITH (window = '1 minute')"
        raise scope.error(f"found {show(aggregates[0])!r} without a window", aggregates[0], hint=hint)
    if not aggregates or view.notify_every_us is not None:
        hint = "SELECT count(*) AS n, ... WITH (window = '1 minute'); there is one notice per window"
        raise scope.error("a view with a window needs an aggregate, and no notify_every", view.select, hint=hint)
    who = _user_column(scope)
    _check_group(scope, who)
    functions = tuple(_function(scope, node, who) for node in outputs.values())
    arguments = [_argument(node) for node in outputs.values()]
    return WindowedView(_matches_view(view, outputs, arguments, who), _upper_view(view, outputs), functions)


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES


def _aggregates_in(node: exp.Expr) -> bool:
    return any(_is_aggregate(call) for call in node.find_all(exp.Anonymous))


def _user_column(scope: FeedScope) -> exp.Column:
    """Return the column that names the notified user: the device of the first input."""
    select = scope.view.select
    tables = [item.this for item in [select.args.get("from_"), *(select.args.get("joins") or [])] if item is not None]
    inputs = [t for t in tables if isinstance(t, exp.Table) and t.name.lower() not in scope.catalog.tables]
    stream = scope.catalog.streams.get(inputs[0].name.lower()) if inputs else None
    if stream is None or stream.device is None or stream.born_at_cloud:
        raise scope.error("the first input of a view with a window must be a stream: its user is notified", select)
    return make_column((inputs[0].alias or inputs[0].name).lower(), stream.device)


def _check_group(scope: FeedScope, who: exp.Column) -> None:
    group = scope.view.select.args.get("group")
    for node in group.expressions if group is not None else []:
        if not _is_user(node, who):
            raise scope.error(f"found {show(node)!r} in GROUP BY; possible: {show(who)}", node)


def _is_user(node: exp.Expr, who: exp.Column) -> bool:
    return (
        isinstance(node, exp.Column)
        and node.name.lower() == who.name
        and (not node.table or node.table.lower() == who.table)
    )


def _function(scope: FeedScope, node: exp.Expr, who: exp.Column) -> str | None:
    if _is_user(node, who):
        return None
    if not _is_aggregate(node):
        possible = f"{show(who)}, count(*), or one of {', '.join(AGGREGATES)} of an expression"
        raise scope.error(f"found {show(node)!r} in SELECT; possible: {possible}", node)
    if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Distinct) or _aggregates_in(_argument(node)):
        raise scope.error(f"found {show(node)!r}; possible: an aggregate of one plain expression", node)
    if isinstance(node.expressions[0], exp.Star) and node.name.lower() != "count":
        raise scope.error(f"found {show(node)!r}; possible: count(*)", node)
    return str(node.name.lower())


def _argument(node: exp.Expr) -> exp.Expr:
    """Return what an aggregate is of; count(*) counts a constant."""
    if not _is_aggregate(node):
        return node
    (argument,) = node.expressions
    return exp.Literal.number(1) if isinstance(argument, exp.Star) else argument


def _matches_view(
    view: ViewStatement, outputs: dict[str, exp.Expr], arguments: list[exp.Expr], who: exp.Column
) -> ViewStatement:
    select = view.select.copy()
    named = [exp.alias_(argument.copy(), name) for name, argument in zip(outputs, arguments, strict=True)]
    select.set("expressions", [exp.alias_(who.copy(), WHO), *named])
    select.set("group", None)
    return replace(view, name=matches_name(view.name), select=select, window_us=None)


def _upper_view(view: ViewStatement, outputs: dict[str, exp.Expr]) -> ViewStatement:
    columns = [make_column(MATCHES, name) for name in _output_names(outputs)]
    select = exp.select(*columns).from_(exp.to_table(matches_name(view.name), alias=MATCHES))
    assert view.window_us is not None
    return replace(view, select=select, lifetimes=Lifetimes(for_all_us=view.window_us))


def _output_names(outputs: dict[str, exp.Expr]) -> Iterator[str]:
    yield WHO
    yield from outputs
