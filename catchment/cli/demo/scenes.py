"""The scenes of the demo: what goes wrong on a wide-area network, and what the answers say about it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from catchment.cli.demo.director import Scene, Wait
from catchment.cli.demo.outside import WINDOW_S
from catchment.cli.demo.stage import Shown, Stage, clock

SUBMITTED = """\
CREATE MATERIALIZED VIEW errors AS
  SELECT window.start, country, count(*) AS failed
  FROM requests WHERE code >= 400
  GROUP BY window(ts, '10 minutes'), country;
"""
FLOOD_ROWS = 250_000  # at the prior cost of a row more than a site can take in half a second
CALM_ROWS = 100  # of a batch between floods
REST_AT_ONCE = 6  # windows: when every scene was shown, an hour of the log arrives at once
FLOODS = 3  # each twice as large as the one before, until the site sheds


@dataclass(frozen=True)
class Length:
    """How many windows pass between scenes, and after the last one (None: all that the log has); rows of a flood."""

    between: int = 4
    after: int | None = None
    flood_rows: int = FLOOD_ROWS


def scenes(stage: Stage, length: Length) -> Iterator[Scene]:
    """Yield the scenes in their order."""
    yield first_answers(stage)
    yield stage.feed_windows(length.between)
    yield late_burst(stage, "asia")
    yield stage.feed_windows(length.between)
    yield cut_off(stage, "eu")
    yield stage.feed_windows(length.between)
    yield submit_a_view(stage)
    yield stage.feed_windows(length.between)
    yield overload(stage, "us", length.flood_rows)
    yield rest_of_the_log(stage, length)


def first_answers(stage: Stage) -> Scene:
    """Let records arrive until the first window is published."""
    start_s = stage.next_window_s
    stage.say("records arrive at us, eu and asia; each site sends only partial aggregates")
    for site in filter(stage.project.is_light, stage.project.sites):
        stage.say(f"{site} is a light site: it sends its records, compressed, and the center evaluates them")
    if (yield from stage.feed_until(lambda: stage.is_whole(start_s), "the first answer")):
        requests = stage.requests(start_s)
        stage.say(f"first answer: {clock(start_s)} had {requests:,} requests, exact: every site has passed its end")


def late_burst(stage: Stage, site: str) -> Scene:
    """Hold back half of a site's records of one window, and deliver them after it was published."""
    start_s = stage.next_window_s
    stage.say(f"LATE BURST  half of what {site} logs in {clock(start_s)} is stuck on its way to the site")
    yield from stage.feed(hold_at=site)
    published = yield from stage.feed_until(
        lambda: stage.status_of(start_s) is not None, f"publishing {clock(start_s)}"
    )
    if not published:
        return
    before = stage.requests(start_s)
    revision = stage.windows()[start_s]["revision"]
    stage.say(f"{clock(start_s)} is published with {before:,} requests; nobody knows yet that some are late")
    late = stage.outside.deliver_held(site)
    stage.say(f"{late:,} late records arrive at {site}")
    merged = yield from stage.feed_until(
        lambda: stage.windows()[start_s]["revision"] > revision, "merging the late records"
    )
    if not merged:
        return
    after = stage.requests(start_s)
    why = next(r["reason"] for r in stage.windows()[start_s]["history"] if r["revision"] > revision)
    stage.say(f"{clock(start_s)} is revised: {before:,} -> {after:,} requests ({why})")
    stage.shown.append(
        Shown(
            f"{late:,} records came late", f"{clock(start_s)}: {before:,} requests", f"{after:,}, exact, a new revision"
        )
    )


def cut_off(stage: Stage, site: str) -> Scene:
    """Cut a site off until a window is published without it; then let it return."""
    stage.links.sites.add(site)
    stage.say(f"CUT OFF  the link of {site} is down; the site goes on reading and keeps what it cannot send")
    try:
        seen = yield from stage.feed_until(lambda: _without(stage, site) is not None, f"publishing without {site}")
        start_s = _without(stage, site)
        if not seen or start_s is None:
            return
        coverage = stage.windows()[start_s]["coverage"]
        before = stage.requests(start_s)
        first = f"{before:,} requests, about {coverage:.0%} of all"
        stage.say(f"{clock(start_s)} is on_time, without {site}: {first}")
    finally:
        stage.links.sites.discard(site)
    stage.say(f"the link of {site} is up again")
    if (yield from stage.feed_until(lambda: stage.is_whole(start_s), f"making {clock(start_s)} exact")):
        after = stage.requests(start_s)
        stage.say(f"{clock(start_s)} on_time -> exact: {before:,} -> {after:,} requests")
        stage.shown.append(Shown(f"{site} was cut off", f"{clock(start_s)}: {first}", f"{after:,}, exact"))


def _without(stage: Stage, site: str) -> int | None:
    """Return the newest window that was published without a site."""
    lacking = [s for s, row in stage.windows().items() if row["status"] == "on_time" and site in row["missing_sites"]]
    return max(lacking, default=None)


def submit_a_view(stage: Stage) -> Scene:
    """Submit a view to the system that runs."""
    from catchment.deploy.submit import submit_text

    (made,) = submit_text(stage.project, SUBMITTED)["queries"]
    shared = made["shared_with"]
    cost = f"answered from what {' and '.join(shared)} sends: no byte more" if shared else "sends a fragment of its own"
    stage.say(f"SUBMIT  a view of errors by country, while everything runs: {cost}")
    if (yield from stage.feed_until(lambda: bool(stage.windows("errors")), "the first answer of the new view")):
        first_s = min(stage.windows("errors"))
        stage.say(f"errors has answered {clock(first_s)}")
        stage.shown.append(Shown("a view was submitted", f"{clock(first_s)}: its first answer", cost))


def overload(stage: Stage, site: str, flood_rows: int) -> Scene:
    """Flood a site until it samples; show the bound, and the exact answer once it has caught up."""
    stage.before_flood = stage.outside.shipped.copy(), stage.bytes_sent
    start_s = stage.next_window_s
    rows = yield from _flood_until_shed(stage, site, start_s, flood_rows)
    if rows is None:
        return
    what = f"publishing {clock(start_s)}"
    if not (yield from stage.feed_until(lambda: stage.status_of(start_s) is not None, what)):
        return
    first = stage.windows()[start_s]["history"][0]
    answer = stage.largest_row(start_s)
    stage.say(f"{clock(start_s)} is {first['status']}, from {first['coverage']:.0%} of its records; {answer}")
    if (yield from stage.feed_until(lambda: stage.is_whole(start_s), "repairing what was shed")):
        exact = stage.largest_row(start_s)
        stage.say(f"{clock(start_s)} on_time -> exact; {exact}: {site} has read again what it left out")
        stage.shown.append(
            Shown(f"{rows:,} records at once at {site}", f"{clock(start_s)} {answer}", f"{exact}, exact")
        )


def _flood_until_shed(stage: Stage, site: str, start_s: int, flood_rows: int) -> Generator[Wait, bool, int | None]:
    """Let more and more records arrive at once until the site samples them; return how many these were."""
    yield from stage.feed()
    before = _shed_batches(stage, site)

    def sheds() -> bool:
        return _shed_batches(stage, site) > before

    for n in range(FLOODS):
        rows: int = flood_rows * 2**n
        yield from _let_it_calm_down(stage, site, start_s)
        stage.say(f"OVERLOAD  {rows:,} requests for {clock(start_s)} arrive at {site} at once")
        stage.outside.flood(site, start_s, rows)
        yield Wait(lambda: sheds() or _has_read(stage, site), "reading the flood")
        if sheds():
            stage.say(f"{site} samples what it cannot take, notes what it owes, and answers in time")
            return rows
    stage.say(f"skipped: {site} took all of it without shedding")
    return None


def _let_it_calm_down(stage: Stage, site: str, start_s: int) -> Scene:
    """Wait until a site has read everything, and then one small batch: load is measured against the batch before."""
    yield Wait(lambda: _has_read(stage, site), "reading what has arrived")
    stage.outside.flood(site, start_s, CALM_ROWS)
    yield Wait(lambda: _has_read(stage, site), "reading a small batch")


def _shed_batches(stage: Stage, site: str) -> int:
    return int(stage.site(site).get("shedding", {}).get("requests", {}).get("shed_batches", 0))


def _has_read(stage: Stage, site: str) -> bool:
    return bool(stage.site(site).get("rows", 0) >= stage.outside.fed_rows[site])


def rest_of_the_log(stage: Stage, length: Length) -> Scene:
    """Let the rest of the log arrive, and wait until it is answered."""
    left = stage.windows_left if length.after is None else length.after
    if left:
        stage.say(f"the rest of the log arrives: {left * WINDOW_S / 3600:.3g} hours of it")
    yield from stage.feed_windows(left, at_once=REST_AT_ONCE)
    last_s = stage.outside.windows[-1 - stage.windows_left] - WINDOW_S  # the newest one stays open: no record is beyond
    yield Wait(lambda: all(stage.is_whole(s) for s in stage.outside.windows if s <= last_s), "the last answers")
