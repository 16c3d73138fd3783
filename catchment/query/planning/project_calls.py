"""Calls of the project's own functions in a view: by the names that say which code they are, with typed arguments."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from catchment.functions.declared import ScalarFunction
from catchment.functions.installed import InstalledFunction
from catchment.functions.project_functions import ProjectFunctions
from catchment.query.sql.dialect import show
from catchment.query.sql.statements import View
from catchment.query.sql.tokens import SqlText
from catchment.query.types import read_type, sql_type


def with_installed_calls(view: View, functions: ProjectFunctions) -> View:
    """Return a view in which functions of the project are called by their installed names, on arguments of their types.

    The view as it was written stays what it is: this is how it is planned.
    """
    if not any(functions.find(str(call.this)) for call in view.select.find_all(exp.Anonymous)):
        return view
    select = view.select.transform(lambda node: _install(node, functions, view.text))
    assert isinstance(select, type(view.select))
    return replace(view, select=select)


def _install(node: exp.Expr, functions: ProjectFunctions, text: SqlText) -> exp.Expr:
    found = functions.find(str(node.this)) if isinstance(node, exp.Anonymous) else None
    if found is None:
        return node
    _check_arguments(node, found, text)
    types = [sql_type(type_) for type_ in found.declared.takes]
    given = [
        exp.cast(argument, type_, dialect="spark") for argument, type_ in zip(node.expressions, types, strict=True)
    ]
    node.set("this", found.installed_name)
    node.set("expressions", given)
    if isinstance(found.declared, ScalarFunction):
        node.type = read_type(sql_type(found.declared.returns))
    return node


def _check_arguments(call: exp.Expr, found: InstalledFunction, text: SqlText) -> None:
    takes = [sql_type(type_) for type_ in found.declared.takes]
    usage = f"write {found.name}({', '.join(takes)}); it is declared in {found.file}"
    if len(call.expressions) != len(takes):
        raise text.error(f"{found.name} has {len(call.expressions)} argument(s)", call, hint=usage)
    if any(isinstance(argument, exp.Distinct | exp.Star) for argument in call.expressions):
        raise text.error(f"{show(call)} is not possible", call, hint=usage)
