"""Answers as tables for people, narrow enough for 80 columns; no cell is taken for markup.

Rows that are too wide for the terminal are shown one below the other, a line per column.

What all rows have in common is shown once: the date above the times, the length of windows in the title. What is left
out (microseconds, bounds of zero) is in the JSON form, which is complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from catchment.center.results.columns import ENGINE_COLUMNS
from catchment.cli.output import console
from catchment.units import format_duration

Row = Mapping[str, Any]
Column = tuple[str, list[str], bool]  # header, cells, and whether they are numbers

MIN_TEXT_WIDTH = 12  # a column of text is folded in a table down to this many characters, not below


def result_table(rows: Sequence[Row], title: str) -> RenderableType:
    """Show rows of a result: the window, the columns of the view with their bounds, and the status."""
    return plain_table(_with_bounds(rows), title + window_length(rows))


def result_columns(rows: Sequence[Row]) -> list[Column]:
    """Return what `result_table` shows of some rows, as texts, for those who draw the table themselves."""
    shown = _with_bounds(rows)
    return [_column(name, [row[name] for row in shown]) for name in (shown[0] if shown else ())]


def _with_bounds(rows: Sequence[Row]) -> list[Row]:
    own = [c for c in (rows[0] if rows else ()) if c not in ENGINE_COLUMNS and not _repeats_window(rows, c)]
    common = {c: _common_kind([_kind(row, c) for row in rows]) for c in own}
    headers = {c: f"{c}\n{_words(common[c])}".strip() for c in own}
    return [
        {
            "window": row["window_start"],
            **{headers[c]: _Bounded(row[c], row["bound"].get(c, 0.0), _kind(row, c), common[c]) for c in own},
            "status": _status(row),
        }
        for row in rows
    ]


def window_table(rows: Sequence[Row], title: str) -> RenderableType:
    """Show windows: their revision, status and reason."""
    shown = [
        {
            "window": row["window_start"],
            "rev": row["revision"],
            "status": _status(row),
            "why": row["reason"],
            "published": row["published_at"].replace(microsecond=0),
        }
        for row in rows
    ]
    return plain_table(shown, title + window_length(rows))


def plain_table(rows: Sequence[Row], title: str) -> RenderableType:
    """Show rows as a table, one below the other where they are too wide for it, or only the title if there are none."""
    if not rows:
        return Text(f"{title}: nothing", style="bold")
    columns = [_column(name, [row[name] for row in rows]) for name in rows[0]]
    if _table_width(columns) > console.width:
        return _one_below_the_other(rows, title)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header, _, number in columns:
        table.add_column(Text(header), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for line in zip(*(cells for _, cells, _ in columns), strict=True):
        table.add_row(*(Text(text) for text in line))
    return Group(Text(title, style="bold"), table)


def hide_engine_columns(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of a whole result with the view's own columns, the window and the status only."""
    if not rows or not set(rows[0]) >= ENGINE_COLUMNS:
        return rows
    hidden = ENGINE_COLUMNS - {"status"}
    if not any(_repeats_window(rows, name) for name in rows[0] if name not in ENGINE_COLUMNS):
        hidden -= {"window_start"}
    return [{name: value for name, value in row.items() if name not in hidden} for row in rows]


def _table_width(columns: Sequence[Column]) -> int:
    """Return the width of a table whose columns of text are folded as far as they may be."""
    widths = []
    for header, cells, number in columns:
        natural = max(cell_len(text) for text in (*header.split("\n"), *cells))
        widths.append(natural if number else min(natural, MIN_TEXT_WIDTH))
    return sum(widths) + 2 * (len(widths) - 1)


def _one_below_the_other(rows: Sequence[Row], title: str) -> RenderableType:
    parts: list[RenderableType] = [Text(title, style="bold")]
    for number, row in enumerate(rows, start=1):
        parts.append(Rule(f"row {number}", align="left", style="dim", characters="─"))
        lines = Table(box=None, show_header=False, pad_edge=False)
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for name, value in row.items():
            lines.add_row(Text(name, style="bold"), Text(cell(value)))
        parts.append(lines)
    return Group(*parts)


class _Bounded:
    """A value and its error, None if unknown, with the kind of its bound unless the header says it."""

    def __init__(self, value: Any, error: float | None, kind: str, common: str) -> None:
        self.value = value
        self.error = error
        self.is_exact = error == 0 and kind in ("", "exact")
        self.words = "" if kind == common else _words(kind)

    def __str__(self) -> str:
        if self.is_exact:
            return cell(self.value)
        error = "unknown" if self.error is None else f"{100 * self.error:.2g}%"
        is_estimate = self.words.startswith("estimate")
        scale = self.words.removeprefix("estimate").strip()
        words = [cell(self.value), "estimate" if is_estimate else "", f"±{error}", scale]
        return " ".join(word for word in words if word)


def _kind(row: Row, column: str) -> str:
    """Return what kind of bound a value has, such as 'estimated rank'; nothing where the row does not say."""
    return str((row.get("bound_kind") or {}).get(column) or "")


def _common_kind(kinds: Sequence[str]) -> str:
    """Return the kind of all bounds of a column, if they have one; an unknown bound is of any kind."""
    known = {kind for kind in kinds if kind and kind != "unknown"}
    return known.pop() if len(known) == 1 else ""


def _words(kind: str) -> str:
    """Return what people are told of a kind: 'estimate rank' of 'estimated rank', nothing of 'proved'."""
    word, _, scale = kind.partition(" ")
    return " ".join(w for w in ("estimate" if word == "estimated" else "", scale) if w)


def _column(name: str, values: Sequence[Any]) -> Column:
    plain = [v.value if isinstance(v, _Bounded) else v for v in values]
    known = [v for v in plain if v is not None]
    if known and all(isinstance(v, datetime) for v in known):
        day, cells = _instants(plain)
        return f"{name}\n{day}" if day else name, cells, False
    number = bool(known) and all(isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in known)
    return name, [cell(v) for v in values], number


def _instants(values: Sequence[datetime | None]) -> tuple[str | None, list[str]]:
    """Format times no finer than necessary; return their date apart if all have the same."""
    known = [v for v in values if v is not None]
    days = {v.date() for v in known}
    fine = "%H:%M" if all(v.second == v.microsecond == 0 for v in known) else "%H:%M:%S"
    if any(v.microsecond for v in known):
        fine = "%H:%M:%S.%f"
    form = fine if len(days) == 1 else f"%Y-%m-%d {fine}"
    return str(days.pop()) if len(days) == 1 else None, ["-" if v is None else v.strftime(form) for v in values]


def cell(value: Any) -> str:
    """Format a value for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case {"item": item, "count": count}:
            return f"{item if isinstance(item, int) else cell(item)}:{cell(count)}"  # an item is a name, not a number
        case dict():
            return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
        case list():
            return " ".join(cell(v) for v in value)
    return str(value)


def _repeats_window(rows: Sequence[Row], column: str) -> bool:
    return any(all(row[column] == row[edge] for row in rows) for edge in ("window_start", "window_end"))


def window_length(rows: Sequence[Row]) -> str:
    """Say how long the windows are, which is the same for all windows of a view."""
    if not rows:
        return ""
    length = rows[0]["window_end"] - rows[0]["window_start"]
    return f" ({format_duration(round(length.total_seconds() * 1e6))} each, UTC)"


def _status(row: Row) -> str:
    lacking = [*row["missing_sites"], *(row.get("missing_sources") or ())]
    missing = f", no {', '.join(lacking)}" if lacking else ""
    coverage = "" if row["coverage"] == 1 else f" {row['coverage']:.0%}"
    return f"{row['status']}{coverage}{missing}"
