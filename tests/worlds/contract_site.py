"""A site whose marks come from slack controllers, on the real core and journal, and the oracle of its answers."""

from __future__ import annotations

import pyarrow as pa

from catchment.progress.events import Ticked
from catchment.quality.contract import Contract, watched_quantities
from catchment.site import events as site_events
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack import SlackPlan
from catchment.timeline import END_OF_TIME_US, SECOND_US, WindowSpec
from tests.worlds.world import Center, Site, lifted, make_fragment

WINDOW = WindowSpec.tumbling(SECOND_US)


FRAGMENT = make_fragment(WINDOW)


Row = tuple[str, int, int]  # source, event time, value


def plan(controller: str = "adaptive") -> SlackPlan:
    return SlackPlan("q", controller, WINDOW, watched_quantities(FRAGMENT.aggregates), Contract(0.05), 3600 * SECOND_US)


def observed(rows: list[Row]) -> pa.Table:
    """What the group-by of a site would give: one row a (source, slice)."""
    groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for source, at, value in rows:
        groups.setdefault((source, at // SECOND_US * SECOND_US), []).append((at, value))
    return pa.table(
        {
            "source": pa.array([s for s, _ in groups], pa.string()),
            "slice_us": pa.array([s for _, s in groups], pa.int64()),
            "newest_us": pa.array([max(t for t, _ in g) for g in groups.values()], pa.int64()),
            "oldest_us": pa.array([min(t for t, _ in g) for g in groups.values()], pa.int64()),
            "count": pa.array([len(g) for g in groups.values()], pa.int64()),
            "total_0": pa.array([float(sum(v for _, v in g)) for g in groups.values()], pa.float64()),
            "square_0": pa.array([float(sum(v * v for _, v in g)) for g in groups.values()], pa.float64()),
        }
    )


class ContractSite(Site):
    """A site whose marks come from controllers."""

    def open(self) -> None:
        self.open_with(site_events.FragmentAdded(self.fragment, policy_by_name(self.policy), slacks=(plan(),)))

    def take(self, rows: list[Row]) -> None:
        absorbed = lifted(self.fragment, [(at, source, value) for source, at, value in rows])
        events = [absorbed, site_events.Observed("q", "q", observed(rows))]
        self.host.submit("s", events, batch=self.batches)
        self.batches += 1
        self.core.validate()

    def tick(self) -> None:
        if self.core.is_waiting(self.clock.now_us()):
            self.host.submit("tick", [Ticked()])
        self.core.validate()

    def end(self) -> None:
        self.host.submit("s", [site_events.LowMarkRaised("s", END_OF_TIME_US, ended=True)], batch=self.batches)
        self.batches += 1


def summed(rows: list[Row]) -> dict[tuple[int, str], tuple[int, int]]:
    """The oracle: count and sum per second and source."""
    answer: dict[tuple[int, str], tuple[int, int]] = {}
    for source, at, value in rows:
        place = at // SECOND_US * SECOND_US, source
        n, total = answer.get(place, (0, 0))
        answer[place] = n + 1, total + value
    return answer


def deliver(site: Site, center: Center) -> None:
    for pending in list(site.outbox.pending()):
        center.inbox.accept(site.pending_bytes(pending.sequence))
        site.outbox.ack(pending.sequence)
    center.consume()
