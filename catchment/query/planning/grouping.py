"""GROUP BY: one window over the event time, and the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from catchment.errors import TimelineError
from catchment.query.assembly import DEFAULT_GAPS, Assembly, CalendarPeriods, GrowingWindows, Sessions
from catchment.query.planning.calls import is_aggregate, resolve_inputs
from catchment.query.planning.scope import Scope
from catchment.query.sql.dialect import render, show
from catchment.query.sql.statements import Stream
from catchment.query.sql.tokens import SqlText
from catchment.timeline import WindowSpec
from catchment.units import parse_duration

WINDOW_FORM = "window(event_time, 'size' [, 'slide' [, 'offset']])"
SESSION_FORM = "session_window(event_time, 'gap')"
GROWING_FORM = "cumulate(event_time, 'step', 'size')"
CALENDAR_FORM = "calendar_window(event_time, 'day', 'Europe/Berlin'), or 'week' or 'month'"
ASSEMBLED = {"SESSION_WINDOW": SESSION_FORM, "CUMULATE": GROWING_FORM, "CALENDAR_WINDOW": CALENDAR_FORM}
# A window is the merge of its slices: with more slides per window, closing windows would cost too much.
MAX_SLIDES = 10_000


@dataclass(frozen=True)
class Grouping:
    """The window call as it was written, the windows it means, and the key expressions (resolved)."""

    call: exp.Expr
    window: WindowSpec
    keys: tuple[exp.Expr, ...]
    assembly: Assembly | None = None  # where windows are not of one size: then `window` are the slices of them


def read_grouping(
    select: exp.Select,
    scope: Scope,
    streams: Mapping[str, Stream],
    is_branch: bool = False,
    max_session_us: int | None = None,
) -> Grouping:
    """Return the GROUP BY of a SELECT, its ordinals and aliases resolved.

    `streams` are those that it reads, by their names in the plan: the window is over the event time of one of them.
    In a branch of UNION ALL a key may be constant: it tells the branches apart.
    """
    grouping = _read_items(select, scope, streams, is_branch)
    if window_name(grouping.call) == "WINDOW":
        return grouping
    assembly = _read_assembly(grouping.call, scope, streams, max_session_us)
    return replace(grouping, window=WindowSpec.tumbling(assembly.slice_us), assembly=assembly)


def _read_items(select: exp.Select, scope: Scope, streams: Mapping[str, Stream], is_branch: bool) -> Grouping:
    group = select.args.get("group")
    if group is None and select.args.get("distinct") is not None:
        return _read_distinct(select, scope, streams, is_branch)
    if group is None:
        why = "records are paired within windows: " if len(streams) > 1 else ""
        raise scope.text.error("there is no GROUP BY", select, hint=f"{why}add GROUP BY {WINDOW_FORM}, keys...")
    kinds = {type(item).__name__.lower() for item in group.expressions}
    for name in ("grouping_sets", "groupingsets", "cube", "rollup", "totals", "all"):
        if group.args.get(name) or name in kinds:
            raise scope.text.error(
                f"GROUP BY {name.replace('_', ' ').upper()} is not possible",
                group,
                hint=f"list the keys: GROUP BY {WINDOW_FORM}, keys...",
            )
    items = [_whole_window(_resolve_item(item, select, scope)) for item in group.expressions]
    return _group_by(items, group, scope, streams, is_branch)


def _read_distinct(select: exp.Select, scope: Scope, streams: Mapping[str, Stream], is_branch: bool) -> Grouping:
    """Return the grouping that SELECT DISTINCT means: by the window that it names and by every other column."""
    items: dict[str, exp.Expr] = {}
    for selected in select.selects:
        item = _whole_window(selected.unalias())
        if any(is_aggregate(node) for node in item.walk()):
            raise scope.text.error(
                f"{show(item)} is an aggregate, and there is no GROUP BY", item, hint=f"add GROUP BY {WINDOW_FORM}"
            )
        items.setdefault(render(item), item)
    return _group_by(list(items.values()), select, scope, streams, is_branch)


def _whole_window(item: exp.Expr) -> exp.Expr:
    """Return the window that a bound of it stands for: window(ts, '1 minute').start."""
    return item.this if isinstance(item, exp.Dot) and window_name(item.this) else item


def _group_by(
    items: list[exp.Expr], group: exp.Expr, scope: Scope, streams: Mapping[str, Stream], is_branch: bool
) -> Grouping:
    windows = [item for item in items if window_name(item) is not None]
    if len(windows) != 1:
        found, way_out = ("no window", "add") if not windows else (f"{len(windows)} windows", "keep only")
        clause = "GROUP BY" if isinstance(group, exp.Group) else "SELECT DISTINCT"
        truncated = next((i for i in items if isinstance(i, exp.TimestampTrunc | exp.DateTrunc)), None)
        example = f", in place of {show(truncated)}" if truncated is not None and not windows else ""
        raise scope.text.error(f"{clause} has {found}", group, hint=f"{way_out} one {WINDOW_FORM}{example}")
    spec = _read_window(windows[0], scope, streams)
    keys = {render(key): key for key in (_key(item, scope, is_branch) for item in items if item is not windows[0])}
    return Grouping(windows[0], spec, tuple(keys.values()))


def window_name(node: exp.Expr) -> str | None:
    """Return the name of a window function that this node calls."""
    name = str(node.this).upper() if isinstance(node, exp.Anonymous) else None
    return name if name == "WINDOW" or name in ASSEMBLED else None


def _resolve_item(item: exp.Expr, select: exp.Select, scope: Scope) -> exp.Expr:
    """Return what an ordinal or an alias of the SELECT list stands for; input columns win over aliases."""
    if isinstance(item, exp.Literal) and not item.is_string:
        ordinal = int(item.name) if item.name.isdigit() else 0
        if not 1 <= ordinal <= len(select.selects):
            raise scope.text.error(
                f"GROUP BY {item.name} points at no column",
                item,
                hint=f"the SELECT list has the columns 1 to {len(select.selects)}",
            )
        return select.selects[ordinal - 1].unalias()
    if isinstance(item, exp.Column) and len(item.parts) == 1 and not scope.knows(item.name):
        named = next((s for s in select.selects if s.alias and s.alias.lower() == item.name.lower()), None)
        return named.unalias() if named is not None else item
    return item.unnest()


def _key(item: exp.Expr, scope: Scope, is_branch: bool) -> exp.Expr:
    key = resolve_inputs(item, scope, "a key of GROUP BY")
    if not is_branch and not list(key.find_all(exp.Column)):
        raise scope.text.error(
            f"the key {render(key)} is the same for every record",
            item,
            hint="group by columns or expressions of columns",
        )
    return key


def _read_window(call: exp.Expr, scope: Scope, streams: Mapping[str, Stream]) -> WindowSpec:
    name = window_name(call)
    assert name is not None
    if name != "WINDOW":
        return WindowSpec.tumbling(1)  # its slices are known when it is read as a whole
    arguments = call.expressions
    if not 2 <= len(arguments) <= 4:
        raise scope.text.error(f"window(...) has {len(arguments)} argument(s)", call, hint=f"write {WINDOW_FORM}")
    _check_event_time(arguments[0], scope, streams)
    lengths = [_duration(a, scope.text) for a in arguments[1:]]
    size = lengths[0]
    slide = lengths[1] if len(lengths) > 1 else size
    offset = lengths[2] if len(lengths) > 2 else 0
    try:
        spec = WindowSpec(size, slide, offset)
    except TimelineError as cause:
        raise scope.text.error(cause.message, call, hint=cause.hint or f"write {WINDOW_FORM}") from cause
    if size // slide > MAX_SLIDES:
        raise scope.text.error(
            f"a window would slide {size // slide} times over each record",
            call,
            hint=f"choose a slide of at least the size over {MAX_SLIDES}",
        )
    return spec


def _read_assembly(call: exp.Expr, scope: Scope, streams: Mapping[str, Stream], max_session_us: int | None) -> Assembly:
    """Return how windows that are not of one size are assembled."""
    arguments = call.expressions
    name = window_name(call) or ""
    if len(arguments) != (2 if name == "SESSION_WINDOW" else 3):
        raise scope.text.error(f"{show(call)} has {len(arguments)} argument(s)", call, hint=f"write {ASSEMBLED[name]}")
    if len(streams) > 1:
        raise scope.text.error(
            f"{show(call)} is for views of one stream", call, hint=f"streams are joined in {WINDOW_FORM}"
        )
    _check_event_time(arguments[0], scope, streams)
    try:
        if name == "CALENDAR_WINDOW":
            return _read_calendar(call, scope.text)
        lengths = [_duration(a, scope.text) for a in arguments[1:]]
        if name == "SESSION_WINDOW":
            return Sessions(lengths[0], max_session_us or DEFAULT_GAPS * lengths[0])
        return GrowingWindows(*lengths)
    except TimelineError as cause:
        raise scope.text.error(cause.message, call, hint=cause.hint) from cause


def _read_calendar(call: exp.Expr, text: SqlText) -> CalendarPeriods:
    _, unit, zone = call.expressions
    if not (unit.is_string and zone.is_string):
        raise text.error(f"{show(call)} is no calendar window", call, hint=f"write {CALENDAR_FORM}")
    return CalendarPeriods(unit.name.lower(), zone.name)


def _check_event_time(argument: exp.Expr, scope: Scope, streams: Mapping[str, Stream]) -> None:
    column = scope.resolve(argument) if isinstance(argument, exp.Column) else argument
    times = {render(exp.column(s.event_time, table=name, quoted=True)) for name, s in streams.items()}
    if render(column) not in times:
        known = {s.name: s.event_time for s in streams.values()}
        times_of = ", ".join(f"of stream {name!r} is {time!r}" for name, time in known.items())
        raise scope.text.error(
            f"the window is over {show(argument)}, not over the event time",
            argument,
            hint=f"the event time {times_of}",
        )


def _duration(argument: exp.Expr, text: SqlText) -> int:
    written = argument.name if isinstance(argument, exp.Literal) and argument.is_string else None
    if isinstance(argument, exp.Interval):
        written = f"{argument.name} {argument.text('unit')}"
    if written is None:
        raise text.error(f"{show(argument)} is not a duration", argument, hint="write a constant such as '1 minute'")
    try:
        return parse_duration(written)
    except TimelineError as cause:
        raise text.error(cause.message, argument, hint=cause.hint or "write a duration such as '1 minute'") from cause
