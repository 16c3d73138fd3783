"""Rows of arrays and maps: one record becomes one row per element.

It is written `LATERAL VIEW [OUTER] explode(array) t AS element`, or `, LATERAL explode(array) AS t(element)`, or, in a
SELECT without GROUP BY, `explode(array) AS element` among the columns, which is read as if it were the first.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from catchment.query.fragment import Explode
from catchment.query.planning.calls import fresh_name, resolve_inputs
from catchment.query.planning.scope import Scope, make_typed
from catchment.query.sql.dialect import show
from catchment.query.sql.statements import Column, DeclaredRelation, View

POSITION, ELEMENT, KEY, VALUE = "pos", "col", "key", "value"  # what Spark names the columns
_FORM = "write LATERAL VIEW explode(array) t AS element, or explode(map) t AS key, value"


def with_laterals(view: View) -> View:
    """Return a view in which what makes rows stands in FROM, not among the columns."""
    if not any(_item_of(select) is not None for select in view.select.find_all(exp.Select)):
        return view
    changed = view.select.copy()
    for select in list(changed.find_all(exp.Select)):
        _move_to_from(select, view)
    assert isinstance(changed, exp.Select)
    return replace(view, select=changed)


def _item_of(select: exp.Select) -> exp.Expr | None:
    return next((item for item in select.selects if isinstance(item.unalias(), exp.Explode)), None)


def _move_to_from(select: exp.Select, view: View) -> None:
    item = _item_of(select)
    if item is None:
        return
    laterals = list(select.args.get("laterals") or ())
    alias = fresh_name("exploded", [str(lateral.alias).lower() for lateral in laterals])
    names = (
        [i.name for i in item.args["expressions"]] if isinstance(item, exp.Aliases) else [item.alias] * bool(item.alias)
    )
    made = exp.Lateral(
        this=item.this if isinstance(item, exp.Alias | exp.Aliases) else item,
        view=True,
        outer=False,
        alias=exp.TableAlias(this=exp.to_identifier(alias), columns=[exp.to_identifier(name) for name in names]),
    )
    if not names:
        raise view.text.error(f"the rows of {show(item)} have no name", item, hint="write explode(array) AS element")
    columns = [exp.column(name, table=alias) for name in names]
    items = [column for i in select.selects for column in (columns if i is item else [i])]
    select.set("expressions", items)
    select.set("laterals", [*laterals, made])
    if _item_of(select) is not None:
        raise view.text.error(
            "a SELECT has two columns that make rows", _item_of(select), hint="write each as LATERAL VIEW explode(...)"
        )


def read_explode(lateral: exp.Lateral, scope: Scope, after: int) -> tuple[DeclaredRelation, Explode]:
    """Return the relation that a LATERAL names, and what makes its rows; it comes after so many look-ups."""
    call = lateral.this
    if not isinstance(call, exp.Explode):
        raise scope.text.error(f"LATERAL {show(call)} is not possible", lateral, hint=_FORM)
    resolved = resolve_inputs(call.this, scope, "explode")
    made = make_typed(resolved, scope.text, "what is exploded,", at=call)
    if not (pa.types.is_list(made.type) or pa.types.is_map(made.type)):
        raise scope.text.error(f"{show(call.this)} is neither an array nor a map", call, hint=_FORM)
    is_map = bool(pa.types.is_map(made.type))
    has_position = isinstance(call, exp.Posexplode)
    own = [(KEY, made.type.key_type), (VALUE, made.type.item_type)] if is_map else [(ELEMENT, made.type.value_type)]
    own = [(POSITION, pa.int32()), *own] if has_position else own
    given = [c.name for c in lateral.args["alias"].columns]
    if given and len(given) != len(own):
        raise scope.text.error(
            f"{show(call)} has {len(own)} column(s), and {len(given)} are named",
            lateral,
            hint=f"name {len(own)} of them",
        )
    columns = tuple((name, type_) for name, (_, type_) in zip(given or [n for n, _ in own], own, strict=True))
    outer = bool(lateral.args.get("outer")) or "outer" in type(call).__name__.lower()
    alias = str(lateral.alias)
    relation = DeclaredRelation(alias, tuple(Column(name, type_) for name, type_ in columns))
    return relation, Explode(alias, made.sql, columns, is_map, has_position, outer, after)
