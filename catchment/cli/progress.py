"""The progress of a run: a table that updates in place, or a line every few seconds where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from catchment.cli.output import notes

LINE_EVERY_S = 5.0


def when(instant_us: int | None) -> str:
    """Format an instant for people."""
    if instant_us is None:
        return "-"
    if instant_us > 2**60:
        return "all"
    if instant_us < -(2**60):
        return "the beginning"
    return datetime.fromtimestamp(instant_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(count: float | None) -> str:
    """Format a number of bytes for people."""
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Rates:
    """Rows per second of each site, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[float, int]]] = {}

    def of(self, site: str, rows: int) -> float:
        seen = self._seen.setdefault(site, [])
        seen.append((time.monotonic(), rows))
        del seen[:-20]
        span = seen[-1][0] - seen[0][0]
        return (seen[-1][1] - seen[0][1]) / span if span > 0 else 0.0


def status_table(status: Mapping[str, Any], rates: Rates | None = None) -> RenderableType:
    """Show sites and queries as they are now, with their rates while they run."""
    heads = ("site", "rows", *(("rows/s",) if rates else ()), "newest event", "sent", "waiting", "link")
    sites = Table(*heads, box=None, pad_edge=False)
    for name, site in status["sites"].items():
        rate = [f"{rates.of(name, site['rows']):,.0f}"] if rates else []
        sites.add_row(
            name,
            f"{site.get('rows', 0):,}",
            *rate,
            when(site.get("newest_event_us")),
            size(site.get("bytes_sent", 0)),
            _waiting(site),
            Text(_link(site)),
        )
    notices = (
        *_low_disks(status),
        *_ways(status),
        *_moved(status),
        *_readers(status["sites"]),
        *_quarantined(status["sites"]),
        *_implausible_times(status["sites"]),
        *_broken_statements(status["sites"]),
        *_pasts(status["sites"]),
        *_ending_certificates(status["sites"]),
    )
    parts: list[RenderableType] = [sites, *notices, *_shedding(status["sites"]), *_deferral(status)]
    if any(site.get("fragments") for site in status["sites"].values()):
        parts += ["", _releases(status["sites"])]
    if status.get("relays"):
        parts += ["", _relays(status["relays"])]
    if status["center"]:
        parts += ["", *_answers(status["center"])]
    for sink, told in status.get("sinks", {}).items():
        parts += ["", Text(f"for {sink}:"), *_exits(sink, status["sites"])]
        if told.get("relays"):
            parts.append(_relays(told["relays"]))
        parts += _answers(told["center"]) if told.get("center") else []
    return Group(*parts)


def _answers(center: Mapping[str, Any]) -> list[RenderableType]:
    """Show how far the queries are that are answered at the center, or at another sink."""
    queries = Table("query", "closed up to", "slowest site", "open slices", box=None, pad_edge=False)
    for name, query in center["queries"].items():
        slowest = min(query["marks_us"], key=lambda s: query["marks_us"][s] or -(2**62))
        queries.add_row(name, when(query["closed_us"]), slowest, str(query["open_slices"]))
    return [queries, *_suspensions(center["queries"]), *_center_notices(center)]


def _exits(sink: str, sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what each site has sent towards a sink beside the center, was spared to send, and what waits for it."""
    exits = Table("site", "to", "sent", "spared", "waiting", "link", box=None, pad_edge=False)
    for name, site in sites.items():
        told = site.get("sinks", {}).get(sink)
        if told is not None:
            link = "up" if told["connected"] else f"down: {(told['last_error'] or '')[:60]}"
            sizes = (size(told.get(key, 0)) for key in ("bytes_sent", "spared_bytes", "queued_bytes"))
            exits.add_row(name, told["to"], *sizes, Text(link))
    if exits.row_count:
        yield exits


def _moved(status: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what sites and relays send to others than the first on their routes, because they were moved."""
    for name, role in (*status["sites"].items(), *(status.get("relays") or {}).items()):
        for told in role.get("exits", {}).values():
            link = "up" if told["connected"] else f"down: {(told['last_error'] or '')[:60]}"
            waiting = f", {size(told['queued_bytes'])} wait" if told["queued_bytes"] else ""
            yield Text(f"{name} was moved to {told['to']}: {size(told['bytes_sent'])} sent{waiting}, link {link}")


def ago(since_us: int | None) -> str:
    """Format how long ago an instant of the clock was, for people."""
    if since_us is None:
        return "an unknown time"
    seconds = max(0, time.time_ns() // 1_000 - since_us) // 1_000_000
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _link(role: Mapping[str, Any]) -> str:
    """Say how the link of a role does; of one that is gone, since when."""
    state = role.get("state", "running")
    if state == "never started":
        heard = role.get("heard_at_us")
        return "not run here" if heard is None else f"not run here; heard {ago(heard)} ago"
    error = (role.get("last_error") or "")[:60]
    if state == "silent":
        return f"silent for {ago(role.get('reported_at_us'))}" + (f", after: {error}" if error else "")
    if state != "running":
        return str(state)
    if role.get("connected"):
        return "up"
    since = role.get("link_down_since_us")
    return f"down for {ago(since)}: {error}".rstrip(": ") if since is not None else error or "down"


def _ways(status: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Say which way the segments of a role take that has several, since when and why, and what the others gave."""
    for name, role in (*status["sites"].items(), *status.get("relays", {}).items()):
        ways = role.get("ways") or {}
        known = ways.get("known", ())
        if len(known) > 1 and (ways["used"] != known[0]["way"] or ways["congested"]):
            others = ", ".join(_other_way(way) for way in known if way["way"] != ways["used"])
            used = " -> ".join(ways["used"])
            yield Text(f"{name}: sends {used} for {ago(ways['since_us'])}, because {ways['reason']}; {others}")


def _other_way(way: Mapping[str, Any]) -> str:
    name = " -> ".join(way["way"])
    if way["last_error"]:
        return f"{name} fails: {way['last_error'].splitlines()[0][:80]}"
    probed = way["probed_bytes_per_s"]
    if probed is not None:
        return f"{name} gave {size(round(probed))}/s {way['probed_s_ago']:.0f} s ago"
    return f"{name} was not probed"


def _waiting(role: Mapping[str, Any]) -> str:
    """Say what waits at a site: rows in its cache, and bytes in its outbox, with how long some have waited."""
    rows = f"{role.get('pending_rows', 0):,} rows"
    queued = role.get("queued_bytes")
    if not queued:
        return rows
    since = role.get("queued_since_us")
    return f"{rows}, {size(queued)}" + (f" for {ago(since)}" if since is not None else "")


def _quarantined(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the sites that have read records that could not be used."""
    for name, site in sites.items():
        if site.get("quarantined"):
            yield Text(f"{name}: {site['quarantined']:,} records could not be used (catchment show quarantine)")


def _broken_statements(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the sources that sent records after they had stated that none would come, and statements not believed."""
    for name, site in sites.items():
        for stream, stated in site.get("stated", {}).items():
            if stated["late_records"]:
                who = ", ".join(f"{source} {count:,}" for source, count in stated["late_after_stated"].items())
                told = f"{stated['late_records']:,} records of {stream} came after their source had stated its progress"
                yield Text(f"{name}: {told}: {who}")
            if stated["implausible"]:
                yield Text(
                    f"{name}: {stated['implausible']:,} statements of progress of {stream} are ahead of the clock, and "
                    "are not believed"
                )


def _center_notices(center: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Say what was refused, of which site and why, what came too late, and whether the center itself is silent."""
    if center.get("state") == "silent":
        yield Text(f"the center is silent for {ago(center.get('reported_at_us'))}")
    for name, site in center.get("sites", {}).items():
        refused = ", ".join(f"{count:,} {reason}" for reason, count in site.get("refused", {}).items())
        if refused:
            yield Text(f"{name}: refused at the center: {refused}")
        if site.get("left_out_records"):
            yield Text(
                f"{name}: {site['left_out_records']:,} records left out: it does not count for their event times"
            )
    for name, query in center.get("queries", {}).items():
        late = ", ".join(f"{site} {count:,}" for site, count in query.get("unmerged_of_sites", {}).items())
        if late:
            yield Text(f"{name}: records that came too late to be merged: {late} (catchment show late {name})")
    yield from (Text(warning) for warning in center.get("warnings", ()))


def _suspensions(queries: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the views that are suspended, where and why."""
    for name, query in queries.items():
        for site, suspension in query.get("suspended", {}).items():
            yield Text(f"{name} is suspended at {site}: {suspension['reason']} (catchment show queries tells more)")


def _relays(relays: Mapping[str, Any]) -> RenderableType:
    """Show how many partials each relay received and sent on."""
    table = Table("relay", "to", "partials in", "out", "waiting", "sent", "link", box=None, pad_edge=False)
    for name, relay in relays.items():
        table.add_row(
            name,
            relay["to"],
            f"{relay['rows_in']:,}",
            f"{relay['rows_out']:,}",
            f"{relay['pending_rows']:,} rows",
            size(relay["bytes_sent"]),
            Text(_link(relay)),
        )
    return table


def _releases(sites: Mapping[str, Any]) -> RenderableType:
    """Show what left each site for each fragment, and why."""
    table = Table("site", "fragment", "policy", "updates", "why they left", box=None, pad_edge=False)
    for site, found in sites.items():
        for name, fragment in found.get("fragments", {}).items():
            ranked = sorted(fragment["reasons"].items(), key=lambda item: -item[1])
            why = ", ".join(f"{reason} {count:,}" for reason, count in ranked)
            table.add_row(site, name, fragment["policy"], f"{fragment['updates']:,}", Text(why or "-"))
    return table


def _readers(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the streams that are not being read, and why."""
    for name, site in sites.items():
        for stream, reader in site.get("streams", {}).items():
            if reader["state"] in ("stalled", "retrying", "failed", "never started"):
                why = f": {reader['reason']}" if reader["reason"] else ""
                since = f", last progress {when(reader['last_progress_us'])}" if reader["last_progress_us"] else ""
                yield Text(f"{name}: stream {stream} is {reader['state']}{since}{why}")


def _implausible_times(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the sites that have read records whose event times are far from their stream."""
    for name, site in sites.items():
        count = site.get("implausible_times", 0)
        if count:
            yield Text(f"{name}: {count:,} records with event times far from their stream; they moved no window")


def _pasts(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Say how far fragments that begin in the past have read it, while they do."""
    for name, site in sites.items():
        for fragment, told in site.get("fragments", {}).items():
            past = told.get("backfill")
            if past and past["read_batches"] < past["batches"]:
                yield Text(
                    f"{name}: {fragment} reads its past, {past['read_batches']:,} of {past['batches']:,} batches"
                )


def _low_disks(status: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the roles that wait for room on their disk."""
    roles = {**status["sites"], **(status.get("relays") or {}), "center": status["center"] or {}}
    for name, role in roles.items():
        disk = role.get("disk")
        if disk is not None and disk["low_since_us"] is not None:
            free = f"{size(disk['free_bytes'])} of free disk, less than {size(disk['floor_bytes'])}"
            yield Text(f"{name}: waits for room since {when(disk['low_since_us'])}: {free}", style="bold red")


def _ending_certificates(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Name the sites whose certificate ends soon."""
    from catchment.deploy.processes.expiry import WARN_BEFORE_US, days_left

    now_us = time.time_ns() // 1_000
    for name, site in sites.items():
        expires_us = site.get("certificate_expires_us")
        if expires_us is not None and expires_us - now_us < WARN_BEFORE_US:
            ends = f"its certificate ends in {days_left(expires_us, now_us)} days ({when(expires_us)})"
            yield Text(f"{name}: {ends}: catchment keys rotate {name}")


def _shedding(sites: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Show what is shed where, how much and why, and what is still owed; nothing if nothing is shed or owed."""
    states = [(n, s, d) for n, site in sites.items() for s, d in site.get("shedding", {}).items()]
    shown = [(n, s, d) for n, s, d in states if d["shedding"] or d["owed_batches"]]
    if shown:
        table = Table("site", "stream", "load", "behind", "share kept", "owed", "why", box=None, pad_edge=False)
        for site, stream, shed in shown:
            rates = ", ".join(f"{view} {rate:.3g}" for view, rate in shed["rates"].items()) or "all"
            table.add_row(
                site,
                stream,
                f"{shed['load']:.2f}",
                f"{shed['backlog_rows']:,} rows",
                rates,
                f"{shed['owed_batches']:,} batches",
                Text(shed["reason"]),
            )
        yield from ("", table)


def _deferral(status: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Show where groups are deferred, and what waits there; nothing if nothing is deferred."""
    places = {"center": status["center"] or {}, **status.get("relays", {})}
    known = {place: role["deferral"] for place, role in places.items() if role.get("deferral")}
    shown = {place: d for place, d in known.items() if d["deferring"] or d["waiting_parts"]}
    if shown:
        table = Table("merges too slowly", "load", "share merged now", "waiting", box=None, pad_edge=False)
        for place, deferral in shown.items():
            shares = ", ".join(f"{name} {share:.3g}" for name, share in deferral["shares"].items()) or "all"
            table.add_row(place, f"{deferral['load']:.2f}", shares, size(deferral["waiting_bytes"]))
        yield from ("", table)


@contextmanager
def watching(quiet: bool) -> Iterator[Any]:
    """Give a function that shows a status; when quiet, it shows nothing."""
    rates = Rates()
    last = [0.0]
    if quiet:
        yield lambda status: None
    elif notes.is_terminal:
        with Live(console=notes, refresh_per_second=4, transient=True) as live:
            yield lambda status: live.update(status_table(status, rates))
    else:

        def line(status: Mapping[str, Any]) -> None:
            now = {n: rates.of(n, s["rows"]) for n, s in status["sites"].items()}
            if time.monotonic() - last[0] >= LINE_EVERY_S:
                last[0] = time.monotonic()
                notes.print(_line(status, now), highlight=False, soft_wrap=True)

        yield line


def _line(status: Mapping[str, Any], rates: Mapping[str, float]) -> str:
    sites = "; ".join(
        f"{n} {s['rows']:,} rows ({rates[n]:,.0f}/s), {size(s['bytes_sent'])} sent" for n, s in status["sites"].items()
    )
    closed = "; ".join(
        f"{n} closed up to {when(q['closed_us'])}" for n, q in (status["center"] or {"queries": {}})["queries"].items()
    )
    return " | ".join(part for part in (sites, closed) if part)
