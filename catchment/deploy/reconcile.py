"""Reconciling compares what runs at a site or a relay with what is deployed, and yields the changes.

Nothing restarts and nothing waits. A fragment that begins during a run states the first instant from which on its site
computes every record: just after the newest event time that was read before. That instant is exact only between two
micro-batches of a stream, so callers hold the batch lock of the stream. One that begins in the past states where that
is, and reads the micro-batches before from history. One that others hand over to begins at the next slice that starts
in all of them, and these end there: no record of a site is in both, wherever other sites begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from catchment.center.roster import next_common_boundary
from catchment.deploy.deployment import Deployment
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.query.view_start import ViewStart
from catchment.relay.events import Carried
from catchment.site import events as site_events
from catchment.site.backfill import PastBatches
from catchment.site.core import SiteCore
from catchment.site.events import FragmentAdded, FragmentBounded, FragmentDropped
from catchment.site.fragment import RunningFragment
from catchment.timeline import START_OF_TIME_US


def site_changes(
    core: SiteCore, stream: str, plans: Iterable[FragmentPlan], newest_us: int | None, batches: int = 0
) -> Iterator[site_events.Event]:
    """Yield the events that bring the fragments of one stream to what is deployed; none if they already run so.

    `newest_us` is the newest event time that was read of the stream, `batches` how many micro-batches that were.
    """
    wanted = {p.fragment.name: p for p in plans if p.fragment.stream == stream}
    here = {f.name for f in core.definitions if f.stream == stream}
    yield from (FragmentDropped(name) for name in sorted(here - wanted.keys()))
    begins = _Begins(core, wanted, here, newest_us)
    for name, plan in wanted.items():
        running = core.running(name) if name in here else None
        if running is None or not _runs_as_planned(running, plan):
            begin_us = begins.find_us(name) if plan.begun and running is None else None
            past = None if begin_us is None else _past(begin_us, newest_us, batches, plan)
            from_us = START_OF_TIME_US if begin_us is None or not plan.ends else begin_us
            yield FragmentAdded(
                plan.fragment,
                plan.policy,
                plan.weight,
                begin_us,
                plan.slacks,
                past,
                plan.goes_by_stream,
                from_us,
                plan.exit_name,
            )
        if plan.until_us is not None and (running is None or running.until_us > plan.until_us):
            yield FragmentBounded(name, plan.until_us)
    for name in (n for n, plan in wanted.items() if n not in here and plan.begun):
        yield from (FragmentBounded(old, begins.find_us(name), name) for old in wanted[name].ends if old in wanted)


@dataclass(frozen=True)
class _Begins:
    """Where fragments begin that do not run here yet."""

    core: SiteCore
    wanted: Mapping[str, FragmentPlan]
    here: Collection[str]
    newest_us: int | None

    def find_us(self, name: str) -> int:
        """Return where a fragment begins: where it takes over from others, at a slice of all of them.

        It does not begin before one of these does, which may yet have to.
        """
        plan = self.wanted[name]
        begin_us = _begin_us(self.newest_us, plan.start)
        olds = [old for old in plan.ends if old in self.wanted]
        if not olds:
            return begin_us
        slicings = [self.wanted[n].fragment.slicing for n in (name, *olds)]
        return next_common_boundary(slicings, max([begin_us, *map(self._first_us, olds)]))

    def _first_us(self, name: str) -> int:
        """Return the instant before which a fragment takes nothing."""
        if name in self.here:
            return self.core.running(name).from_us
        return self.find_us(name) if self.wanted[name].begun else START_OF_TIME_US


def _runs_as_planned(running: RunningFragment, plan: FragmentPlan) -> bool:
    here = running.policy, running.weight, running.slacks, running.goes_by_stream
    return here == (plan.policy, plan.weight, plan.slacks, plan.goes_by_stream)


def _begin_us(newest_us: int | None, start: ViewStart | None) -> int:
    """Return the first instant that lies after every record read so far, or where in the past the fragment begins.

    It is the start of time if nothing was read.
    """
    if start is not None:
        return start.resolve_us(newest_us)
    return START_OF_TIME_US + 1 if newest_us is None else newest_us + 1


def _past(begin_us: int, newest_us: int | None, batches: int, plan: FragmentPlan) -> PastBatches | None:
    """Return what was read before of a fragment that begins at an instant; None if nothing of it counts.

    A fragment that begins in the past may want records of earlier batches wherever event time is: those ahead of the
    wall clock do not move it, and are not the newest that was read.
    """
    is_behind = newest_us is None or begin_us > newest_us
    if not batches or (is_behind and plan.start is None):
        return None
    until_us = begin_us + 1 if newest_us is None else max(newest_us, begin_us) + 1
    if plan.until_us is not None and plan.until_us < until_us:
        return PastBatches(batches, begin_us, plan.until_us, is_bounded=True) if plan.until_us > begin_us else None
    return PastBatches(batches, begin_us, until_us)


def carried_by(deployment: Deployment, relay: str) -> Iterator[Carried]:
    """Yield the fragments that a relay passes on, each with the sites that it comes from."""
    for plan, sites in deployment.fragment_plans():
        routes = deployment.routings.of_fragment(plan.fragment.name)
        senders = ((site, routes.sender(relay, site)) for site in sites)
        origins = tuple((site, sender) for site, sender in senders if sender is not None)
        if origins:
            exit_name = deployment.routings.relay_exit(plan.fragment.name, relay)
            yield Carried(plan.fragment, plan.policy, origins, plan.weight, exit_name)
