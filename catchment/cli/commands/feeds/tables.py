"""Tables of the feeds commands: the progress of a run, and what it measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from catchment.cli.output import notes
from catchment.cli.progress import size

LINE_EVERY_S = 5.0
_WAYS = (
    ("messages_up", "messages up /s"),
    ("messages_down", "messages down /s"),
    ("bytes_up", "bytes up /s"),
    ("bytes_down", "bytes down /s"),
)

Show = Callable[[list[dict[str, Any]], int, int | None], None]


@contextmanager
def follow_runs(quiet: bool) -> Iterator[Show]:
    """Give a function that shows how runs are doing; quiet shows a line now and then at most."""
    if notes.is_terminal and not quiet:
        with Live(console=notes, refresh_per_second=2, transient=True) as shown:
            yield lambda boards, second, end: shown.update(_now_table(boards, second, end))
    else:
        last = [time.monotonic()]

        def line(boards: list[dict[str, Any]], second: int, end: int | None) -> None:
            if time.monotonic() - last[0] >= LINE_EVERY_S:
                last[0] = time.monotonic()
                notes.print(_line(boards, second, end), highlight=False, soft_wrap=True)

        yield line


def _line(boards: list[dict[str, Any]], second: int, end: int | None) -> str:
    parts = []
    for board in boards:
        now = board["history"][-1] if board["history"] else dict.fromkeys(("messages_up", "messages_down"), 0.0)
        parts.append(
            f"{board['strategy']}: {now['messages_up']:,.1f} up/s {now['messages_down']:,.1f} down/s, "
            f"{board['views_at_cloud']:,} views at the cloud, {at_edges(board)}"
            f"{board['views_on_devices']:,} on devices, "
            f"{board['moving']:,} moving, {board['notices']:,} notices"
        )
    return f"second {second:,}{f' of {end:,}' if end else ''} | " + " | ".join(parts)


def at_edges(board: Mapping[str, Any]) -> str:
    """Return how many views edge clouds compute, for a line of text; nothing where there are none."""
    return f"{board['views_at_edges']:,} at edge clouds, " if board["edges"] else ""


def _now_table(boards: list[dict[str, Any]], second: int, end: int | None) -> Table:
    table = Table(title=f"second {second:,}{f' of {end:,}' if end else ''}", title_justify="left", box=None)
    heads = ("", "up /s", "down /s", "bytes /s", "at cloud", "on devices", "moving", "notices")
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    for board in boards:
        now = board["history"][-1] if board["history"] else {way: 0.0 for way, _ in _WAYS}
        table.add_row(
            board["strategy"],
            f"{now['messages_up']:,.1f}",
            f"{now['messages_down']:,.1f}",
            size(now["bytes_up"] + now["bytes_down"]),
            f"{board['views_at_cloud']:,}",
            f"{board['views_on_devices']:,}",
            f"{board['moving']:,}",
            f"{board['notices']:,}",
        )
    return table


def render_runs(answer: Mapping[str, Any]) -> RenderableType:
    """Show predicted and measured traffic of each run, the comparison, and who computes what."""
    runs = answer["runs"]
    parts: list[RenderableType] = [part for run in runs for part in (_traffic_table(run), _outcome(run))]
    return Group(*parts, *([_saving(runs)] if len(runs) > 1 else []))


def _traffic_table(run: Mapping[str, Any]) -> Table:
    title = f"{run['strategy']}: {run['devices']} devices, {run['views']} views, {run['seconds']} s ({run['data']})"
    table = Table(title=title, title_justify="left")
    for heading in ("phase", "", "predicted", "measured", "off"):
        table.add_column(heading, justify="right" if heading in ("predicted", "measured", "off") else "left")
    for phase in run["phases"]:
        for key, label in _WAYS:
            predicted, measured, off = (phase[part][key] for part in ("predicted", "measured", "off"))
            table.add_row(phase["phase"], label, f"{predicted:,.1f}", f"{measured:,.1f}", f"{off:.1%}")
    return table


def _outcome(run: Mapping[str, Any]) -> str:
    lines = [
        f"views: {run['views_at_cloud']:,} at the cloud, {run['views_on_devices']:,} on "
        f"{run['devices_that_compute']:,} devices; "
        f"{run['views_moved']:,} moved in {run['redeployments']} redeployments",
        f"notifications: {run['notices']:,}",
    ]
    if "expected" in run:
        lines[1] += f"; naive recomputation {run['expected']:,}, lost {run['lost']}, invented {run['invented']}"
    return "\n".join(lines) + "\n"


def _saving(runs: list[Mapping[str, Any]]) -> str:
    totals = {}
    for run in runs:
        last = run["phases"][-1]["measured"]
        totals[run["strategy"]] = (last["messages_up"] + last["messages_down"], last["bytes_up"] + last["bytes_down"])
    (ours, our_bytes), (cloud, cloud_bytes) = totals["ours"], totals["cloud"]
    if not ours or not our_bytes:
        return "nothing had to be sent"
    times = f"{cloud / ours:.2f} times the messages and {cloud_bytes / our_bytes:.2f} times the bytes"
    return f"all at the cloud sends {times}"


def render_explained(answer: Mapping[str, Any]) -> RenderableType:
    """Show what each strategy would send."""
    title = f"{answer['devices']} devices, {answer['views']} views ({answer['data']})"
    table = Table(title=title, title_justify="left")
    for heading in ("strategy", "up /s", "down /s", "cost /s", "at cloud", "on devices"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for name, found in answer["strategies"].items():
        table.add_row(
            name,
            f"{found['messages_up']:,.1f}",
            f"{found['messages_down']:,.1f}",
            f"{found['cost']:,.1f}",
            f"{found['views_at_cloud']:,}",
            f"{found['views_on_devices']:,}",
        )
    return Group(_feed_views_table(answer["feed_views"]), table)


def _feed_views_table(found: list[Mapping[str, Any]]) -> Table:
    """Show what each feed view joins; a view over many inputs is shown as its parts."""
    table = Table(title="feed views", title_justify="left")
    for heading in ("name", "joins", "for", "views"):
        table.add_column(heading, justify="right" if heading == "views" else "left")
    for view in found:
        joins = ", ".join(f"{alias}: {source}" for alias, source in view["inputs"].items())
        notices = "notices" if view["window"] is None else f"notices per {view['window']}"
        table.add_row(view["name"], joins, notices if view["notifies"] else "other views", f"{view['views']:,}")
    return table
