"""An explanation as lines that fit on a screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from catchment.project.option_kinds import REFERENCE
from catchment.units import format_bandwidth, format_duration, format_estimated_bandwidth

WIDTH = 100  # of a line
INDENT = 11  # of what is said about a view
FAR_S = 86_400.0  # an answer that comes a day after its window is of recorded event times, not late


def explanation_text(answer: Mapping[str, Any], width: int = WIDTH) -> str:
    """Return views, sites, links and the rates that all of it follows from; longer lines are folded."""
    blocks = [list(_view(view)) for view in answer["views"]]
    blocks.append(list(_sites(answer)))
    blocks.append(list(_links(answer)))
    blocks.append(list(_ways(answer)))
    blocks.append(list(_better_routes(answer)))
    blocks.append(list(_better_evaluation(answer)))
    blocks.append(list(rate_lines(answer)))
    blocks.append(
        [f"views are answered at {sink} too: catchment explain --sink {sink}" for sink in answer.get("sinks", ())]
    )
    return "\n\n".join("\n".join(_fold(line, width) for line in lines) for lines in blocks if lines)


def _better_routes(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would be faster by the links as they were measured, and what to do about it."""
    for told in answer.get("routes", ()):
        route, better = " -> ".join(told["route"]), " -> ".join(told["better"])
        yield (
            f"{told['site']} sends by {route}, {seconds(told['seconds'])} per segment as measured; "
            f"by {better} it would be {seconds(told['better_seconds'])}: it is moved when that has held for a while "
            f"(reroute = true), or now by: catchment sites move {told['site']} --to {told['better'][1]}"
        )
    for told in answer.get("moves", ()):
        at = datetime.fromtimestamp(told["at_us"] / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
        line = f"{told['site']} was moved at {at} from {' -> '.join(told['from'])} to {' -> '.join(told['to'])}: "
        line += told["reason"]
        if told["predicted_s"] is not None:
            line += f"; predicted per segment {seconds(told['predicted_s'])}"
            line += f" instead of {seconds(told['predicted_before_s'])}"
        if told["measured_s"] is not None:
            line += f"; measured now {seconds(told['measured_s'])}"
        yield line


def _better_evaluation(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield where records should be evaluated, and what to write into catchment.toml for it."""
    told = answer.get("evaluation")
    if not told:
        return
    use = ""
    if told["use"]:
        use = f" (shares of bandwidths in use add up to {told['better_use']:.1%} instead of {told['use']:.1%})"
    yield (
        f"if records were evaluated elsewhere, links would carry {rate(told['better_bytes_per_s'])} in all instead of "
        f"{rate(told['bytes_per_s'])}{use}; a site keeps its place once it has run"
    )
    for site in told["sites"]:
        name, now, place = site["site"], site["evaluated_at"], site["better"]
        here = "where they are born" if now == name else f"at {now}"
        yield f'  records of {name}, now evaluated {here}: [sites.{name}] compute = false, evaluate_at = "{place}"'


def _fold(line: str, width: int) -> str:
    """Return a line folded under its text, behind the word in front of it."""
    indent = INDENT if line.startswith("  ") and line[2:INDENT].strip() and line[INDENT - 1] == " " else 4
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def rate(bytes_per_s: float | None) -> str:
    """Return a rate with two significant digits: it is an estimate."""
    return "-" if bytes_per_s is None else format_estimated_bandwidth(bytes_per_s)


def seconds(value: float | None) -> str:
    """Return a duration with two significant digits."""
    if value is None or value == float("inf"):
        return "never: a link falls behind"
    if value < 1:
        return f"{float(f'{value * 1000:.2g}'):g} ms"
    return f"{float(f'{value:.2g}'):g} s" if value < 120 else f"{float(f'{value / 60:.2g}'):g} min"


def _view(view: Mapping[str, Any]) -> Iterator[str]:
    names = ", ".join(column["name"] for column in view["columns"])
    streams = dict.fromkeys(fragment["stream"] for fragment in view["fragments"])
    source = (" and " if view["join"] is None else " joined with ").join(streams)
    yield f"{view['view']}: {names}"
    windows = view.get("assembled") or f"windows of {_window(view['window'])}"
    yield f"  of {source}, {windows}, published at {view['sink']}"
    for side in view["sharing"].get("sides", (view["sharing"],)):
        yield f"  sends    {side['fragment']}: {side['why']}"
    yield f"  answer   {_answer(view)}"
    yield f"  error    {_error(view)}"
    if view["shed"] != "never sampled":
        yield f"  overload {view['shed']}"
    if view.get("measured") is not None:
        yield f"  measured {_measured(view['measured'])}"


def _window(window: Mapping[str, int]) -> str:
    size = format_duration(window["size_us"])
    return size if window["size_us"] == window["slide_us"] else f"{size} every {format_duration(window['slide_us'])}"


def _answer(view: Mapping[str, Any]) -> str:
    after = f"within about {seconds(view['predicted']['answered_after_s'])} after a window's end"
    if view["contract"] is not None:
        after += ", and as long as its contract needs"
    if view["freshness_us"] is not None:
        after += f"; without a site that is {format_duration(view['freshness_us'])} behind"
    return after


def _error(view: Mapping[str, Any]) -> str:
    sketches = {name: error for name, error in view["predicted"]["error"].items() if error}
    parts = [f"{name} ±{error:.2g}" if error else name for name, error in sketches.items()]
    told = f"sketches: {', '.join(parts)}; the rest exact" if parts else "exact when every site is in"
    if view["contract"] is not None:
        told += f"; at first at most {view['contract']['max_error']:.2g} at {view['contract']['confidence']:.0%}"
    return told


def _measured(measured: Mapping[str, Any]) -> str:
    latency = measured["latency_s"]
    windows = f"{measured['exact_windows']} of {measured['windows']} windows exact"
    if latency is None:
        soon = "nothing answered yet"
    elif latency["median"] > FAR_S:
        soon = "how soon cannot be told: the event times are not of today"
    else:
        soon = f"answered after {seconds(latency['median'])}, 95% within {seconds(latency['p95'])}"
    values = sum(column["values"] for column in measured["columns"])
    off = sum(column["mean_error"] * column["values"] for column in measured["columns"])
    bounds = f"; {values:,} values before that were off by {off / values:.2%} on average" if values else ""
    if measured["missed_share"] is not None:
        bounds += f", {measured['missed_share']:.1%} of the bounds missed"
    return f"{soon}; {windows}{bounds}"


def _sites(answer: Mapping[str, Any]) -> Iterator[str]:
    yield "sites compute"
    for evaluated, sites in _sites_by_fragments(answer).items():
        yield f"  {', '.join(sites)}: {evaluated}"


def _sites_by_fragments(answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the sites that do the same, by what they do."""
    found: dict[str, list[str]] = {}
    for site in answer["sites"]:
        parts = [f"{f['fragment']} for {', '.join(f['serves'])}" for f in site["fragments"]]
        found.setdefault("; ".join(parts) or "nothing", []).append(site["site"])
    return found


def _links(answer: Mapping[str, Any]) -> Iterator[str]:
    has_measured = any("measured_bytes_per_s" in link for link in answer["links"])
    names = [f"{link['from']} -> {link['to']}" for link in answer["links"]]
    width = max((len(name) for name in names), default=0)
    if answer["links"]:
        yield "links carry" + (", predicted and measured" if has_measured else "")
    for name, link in zip(names, answer["links"], strict=True):
        line = f"  {name:{width}}  {rate(link['bytes_per_s']):>14}"
        if has_measured:
            line += f"  {rate(link['measured_bytes_per_s']):>14}"
        if answer.get("sinks"):
            line += f"  of all sinks {rate(link['of_all_sinks_bytes_per_s'])}"
        if link.get("repeated_bytes_per_s"):
            line += f" ({rate(link['repeated_bytes_per_s'])} of it sent again for another sink)"
        if link.get("spared_bytes_per_s"):
            line += f" ({rate(link['spared_bytes_per_s'])} more for another sink are sent once)"
        if link["capacity_bytes_per_s"]:
            line += f"  {link['utilisation']:.1%} of {format_bandwidth(link['capacity_bytes_per_s'])}"
        if link["records"]:
            line += f"  records of {', '.join(link['records'])}, evaluated at {link['to']}"
        yield line


def _ways(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer.get("ways"):
        yield "ways around links, and how long each takes for a segment of 256 KiB"
    for end in answer.get("ways", ()):
        told = [f"{' -> '.join(way['way'])} {seconds(way['declared_s'])}" for way in end["ways"]]
        yield f"  {'; '.join(told)}"
        if end["used"] is not None:
            yield f"    now {' -> '.join(end['used'])}: {end['reason']}"


def rate_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rates that estimates follow from, and how they are known."""
    for known in answer["rates"]:
        each = sorted({round(rows) for rows in known["rows_per_s"].values()})
        told = f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,} to {each[-1]:,}" if each else "no"
        yield f"{known['stream']}: {told} rows/s per site of event time, {known['origin']}"
        if known.get("history") == REFERENCE:
            yield "  history refers to its files, which must stay as they are"
        measured = [rows for rows in known.get("measured_rows_per_s", {}).values() if rows is not None]
        if measured:
            yield f"  measured: {min(measured):,.0f} to {max(measured):,.0f} rows/s per site"
