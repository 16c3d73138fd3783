"""The names of a view's definitions: the first is named as the view is, the second `view@2`, and so on.

A view may be dropped and made again, or replaced, while answers and partials of an earlier definition are kept or still
on their way. Everything that is stored or sent is named by the definition, so that two of them are never mixed up;
people name the view, and mean its newest definition. `@` cannot be in the name of a view.
"""

from __future__ import annotations


def definition_name(view: str, number: int) -> str:
    """Return the name of the definition of a view that has a number, counted from 1."""
    return view if number == 1 else f"{view}@{number}"


def view_of(name: str) -> str:
    """Return the view that a definition is of."""
    return name.partition("@")[0]


def number_of(name: str) -> int:
    """Return which definition of its view it is."""
    _, _, number = name.partition("@")
    return int(number) if number else 1
