"""When sites are moved to other routes: by what links are measured to carry, and what goes over them.

The time of a route is that of its links, one after another: half the measured round trip, and a segment at the measured
goodput, the slower the more of the link is in use (a queue: over one minus the utilisation, by the rates that streams
are measured to have). A link that is down takes `UNUSABLE_US`. What was not measured is as declared; a route over links
of which nothing is known is compared only with one that is down.

A search changes the next site of one site or relay after another, as long as everything that goes by it arrives in half
the time (`BETTER`) and nothing else is slowed down by more than `WORSE`. What it finds is done when it has found the
same for `HOLD_US`. A site that was moved stays for `FIRST_STAY_US` at least, and twice as long each time; then its
former link, of which nothing is measured any more, counts again as declared. So a link that is slow for good costs a
move there and back each hour at most, and one that flaps moves nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.routes import SEGMENT_BYTES, LinkName, Routes, carry_us
from catchment.timeline import SECOND_US

BETTER = 2.0  # how many times sooner another route must carry a segment
WORSE = 1.25  # by how much others may be slowed down for that
HOLD_US = 30 * SECOND_US  # how long it must have been found before a site is moved
FIRST_STAY_US = 300 * SECOND_US  # how long a site that was moved stays at least; doubles with each move
LONGEST_STAY_US = 3600 * SECOND_US
UNUSABLE_US = 600 * SECOND_US  # the time of a link that is down
FULL = 0.95  # the utilisation of a link beyond which its queue only grows
MAX_STEPS = 16  # sites that are moved at once
MAX_TRIED = 2_000  # routes that one search looks at

Traffic = Callable[[Routes], Mapping[LinkName, float]]  # bytes per second on each link, if routes were these


@dataclass(frozen=True)
class MeasuredLink:
    """What a sender has measured of its link."""

    goodput_bytes_per_s: float | None
    round_trip_s: float | None
    is_down: bool = False  # it is not connected, and something waits for it


@dataclass(frozen=True)
class RouteMove:
    """Sites or relays that are to be moved, and what it does for the site that gains most."""

    hops: Mapping[str, str]
    site: str
    route: tuple[str, ...]
    moved_route: tuple[str, ...]
    reason: str
    before_s: float | None = None  # per segment, as far as it was predicted
    after_s: float | None = None


@dataclass(frozen=True)
class RouteTimes:
    """How long routes take to carry a segment."""

    project: Project
    measured: Mapping[LinkName, MeasuredLink]
    traffic: Traffic
    sites: Collection[str]  # whose routes count

    def of(self, routes: Routes) -> dict[str, int | None]:
        """Return the time of each site's route; None where nothing is known of a link on it."""
        loads = self.traffic(routes)
        return {site: self._time_us(routes, site, loads) for site in self.sites if routes.reaches(site)}

    def if_unknown_links_work(self, routes: Routes) -> dict[str, int]:
        """Return the time of each site's route, if links of which nothing is known carry anything at once."""
        loads = self.traffic(routes)

        def link_us(link: LinkName) -> int:
            return self._link_us(link, loads) or carry_us(None, self._latency_us(link))

        return {site: sum(map(link_us, routes.route(site))) for site in self.sites if routes.reaches(site)}

    def slowest_link(self, routes: Routes, site: str) -> LinkName:
        """Return the link of a route that takes longest."""
        loads = self.traffic(routes)
        return max(routes.route(site), key=lambda link: self._link_us(link, loads) or 0)

    def _time_us(self, routes: Routes, site: str, loads: Mapping[LinkName, float]) -> int | None:
        total_us = 0
        for link in routes.route(site):
            link_us = self._link_us(link, loads)
            if link_us is None:
                return None
            total_us += link_us
        return total_us

    def _link_us(self, link: LinkName, loads: Mapping[LinkName, float]) -> int | None:
        known = self.measured.get(link)
        if known is not None and known.is_down:
            return UNUSABLE_US
        bandwidth = self.project.links[link].bandwidth_bytes_per_s
        if known is not None and known.goodput_bytes_per_s:
            bandwidth = known.goodput_bytes_per_s
        if bandwidth is None:
            return None
        used = loads.get(link, 0.0) / bandwidth
        queue = 1 / (1 - used) if used < FULL else (1 + used) / (1 - FULL)
        return carry_us(bandwidth, self._latency_us(link)) + round(SEGMENT_BYTES / bandwidth * (queue - 1) * SECOND_US)

    def _latency_us(self, link: LinkName) -> int:
        known = self.measured.get(link)
        if known is not None and known.round_trip_s is not None:
            return round(known.round_trip_s / 2 * SECOND_US)
        return self.project.links[link].latency_us


def find_faster_routes(routes: Routes, times: RouteTimes, links: Collection[LinkName]) -> Routes:
    """Return routes by which sites arrive much sooner, changing one next site after another to one of these links."""
    current = routes
    tried = 0
    for _ in range(MAX_STEPS):
        now = times.of(current)
        best: tuple[int, Routes] | None = None
        for site, to in sorted(links):
            if current.hops.get(site, to) == to or tried >= MAX_TRIED:
                continue
            tried += 1
            candidate = _moved(current, site, to)
            total_us = None if candidate is None else _total_if_better(current, now, candidate, times)
            if candidate is not None and total_us is not None and (best is None or total_us < best[0]):
                best = total_us, candidate
        if best is None:
            return current
        current = best[1]
    return current


def _moved(routes: Routes, site: str, to: str) -> Routes | None:
    try:
        return routes.moved({site: to})
    except ConfigError:  # it would go in a circle
        return None


def _total_if_better(
    current: Routes, now: Mapping[str, int | None], candidate: Routes, times: RouteTimes
) -> int | None:
    """Return the summed time of all sites by other routes, if all that change are much faster and no other suffers."""
    then = times.of(candidate)
    assumed = times.if_unknown_links_work(candidate)
    total_us = 0
    is_any_moved = False
    for site, now_us in now.items():
        is_moved = current.route(site) != candidate.route(site)
        then_us = assumed[site] if now_us is not None and now_us >= UNUSABLE_US else then[site]
        if is_moved and (now_us is None or then_us is None or now_us < BETTER * then_us):
            return None
        if now_us is not None and then_us is not None and then_us > WORSE * now_us:
            return None
        is_any_moved = is_any_moved or is_moved
        total_us += assumed[site]
    return total_us if is_any_moved else None


@dataclass
class RouteMover:
    """Decides when the sites of one sink are moved; to be asked regularly."""

    _found: frozenset[tuple[str, str]] = frozenset()
    _found_us: int = 0  # since when
    _stays: dict[str, tuple[int, int]] = field(default_factory=dict)  # site -> until when it stays, and for how long

    def choose(self, routes: Routes, times: RouteTimes, links: Collection[LinkName], now_us: int) -> RouteMove | None:
        """Return which sites to move now, if any."""
        believed = RouteTimes(times.project, self._believe(routes, times.measured, now_us), times.traffic, times.sites)
        free = [link for link in links if not self._stays_at_us(link[0], now_us)]
        found = find_faster_routes(routes, believed, free)
        hops = {site: to for site, to in found.hops.items() if routes.hops[site] != to}
        wanted = frozenset(hops.items())
        if wanted != self._found:
            self._found, self._found_us = wanted, now_us
        if not hops or now_us - self._found_us < HOLD_US:
            return None
        return _describe(routes, found, hops, believed)

    def note_moved(self, hops: Collection[str], now_us: int) -> None:
        """Let sites that were moved stay where they are now for a while."""
        self._found = frozenset()
        for site in hops:
            _, before_us = self._stays.get(site, (0, 0))
            stay_us = min(max(2 * before_us, FIRST_STAY_US), LONGEST_STAY_US)
            self._stays[site] = (now_us + stay_us, stay_us)

    def _stays_at_us(self, site: str, now_us: int) -> bool:
        return now_us < self._stays.get(site, (0, 0))[0]

    def _believe(
        self, routes: Routes, measured: Mapping[LinkName, MeasuredLink], now_us: int
    ) -> dict[LinkName, MeasuredLink]:
        """Return what is believed of links: of one that is not in use, that it is down, or what was measured lately."""
        return {
            link: known
            for link, known in measured.items()
            if known.is_down or routes.hops.get(link[0]) == link[1] or self._stays_at_us(link[0], now_us)
        }


def _describe(routes: Routes, found: Routes, hops: Mapping[str, str], times: RouteTimes) -> RouteMove:
    now, then = times.of(routes), times.if_unknown_links_work(found)
    moved = [site for site in then if routes.route(site) != found.route(site)]
    gain = {site: (now[site] or 0) - then[site] for site in moved}
    site = max(sorted(gain), key=lambda name: gain[name])
    slow = times.slowest_link(routes, site)
    known = times.measured.get(slow)
    state = "is down" if known is not None and known.is_down else "is slow"
    return RouteMove(
        hops,
        site,
        sites_on(routes, site),
        sites_on(found, site),
        f"the link {slow[0]} -> {slow[1]} {state}",
        (now[site] or 0) / SECOND_US,
        then[site] / SECOND_US,
    )


def sites_on(routes: Routes, site: str) -> tuple[str, ...]:
    """Return the sites on a route, with the center."""
    return (site, *(to for _, to in routes.route(site)))
