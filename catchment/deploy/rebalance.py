"""Rebalancing moves queries to other fragments, and sites to other routes: the center decides and writes a deployment.

Open slices are finished by the fragment that began them: `catchment.center.fragment_sources` says where the new
fragment takes over, sites learn until which slice the old one is wanted, and it ends when the windows that it feeds are
final.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from catchment.center.core import CenterCore
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.recent_records import Samples, read_samples
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.routes.measured_routes import are_all_heard, read_measured_links
from catchment.deploy.routes.move_routes import move_routes
from catchment.deploy.routes.route_log import note_move
from catchment.deploy.routes.route_mover import RouteMover, RouteTimes
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import PlanError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.link_traffic import bytes_over_links, check_contracts, traffic_over
from catchment.optimizer.sharing.measured_statistics import apply_measurements
from catchment.optimizer.sharing.reoptimize import SharingReoptimizer
from catchment.optimizer.sharing.share import BytesOf, SharingState
from catchment.optimizer.sharing.statistics import Statistics, fill_with_guesses, load_statistics
from catchment.timeline import SECOND_US

_log = logging.getLogger(__name__)

CHECK_EVERY_US = 10 * SECOND_US
SAMPLE_EVERY_US = 60 * SECOND_US  # records are read from history again
FIRST_CHECK_US = 60 * SECOND_US  # rates measured while everything starts up are misleading


@dataclass
class Rebalancer:
    """Checks every `CHECK_EVERY_US`, from what the sites have measured, whether another sharing would send less.

    It is about the queries that are answered at the center, or at another sink; a sink that has joined from a machine
    of its own changes nothing.
    """

    watcher: DeploymentWatcher
    sink: str = ""
    reoptimizer: SharingReoptimizer = field(default_factory=SharingReoptimizer)
    mover: RouteMover = field(default_factory=RouteMover)
    next_us: int | None = None
    samples: Samples = field(default_factory=dict)
    next_sample_us: int = 0

    def step(self, core: CenterCore, now_us: int) -> None:
        """End the fragments that queries have left; move queries if that now pays."""
        deployment = self._deployment
        deployed = deployment.deployed
        if deployment.project.joined is not None:
            return
        if deployed.repairs:
            self._end_repairs(core)
        if deployed.leaving:
            self._end_left_fragments(core)
        if self.next_us is None:
            self.next_us = now_us + FIRST_CHECK_US
        if now_us < self.next_us or not deployment.project.defaults.reoptimize or deployed.repairs:
            return
        self.next_us = now_us + CHECK_EVERY_US
        stream_us = newest_event_us(deployment)
        if stream_us is None:
            return
        if now_us >= self.next_sample_us:
            self.next_sample_us = now_us + SAMPLE_EVERY_US
            self.samples = read_samples(deployment)
        statistics = known_statistics(deployment, self.samples)
        bytes_of = bytes_over_links(deployment.routes, statistics)
        target = self.reoptimizer.choose_move(deployed, bytes_of, stream_us)
        if target is not None and _keeps_contracts(deployment, target):
            self._change(lambda now: now.move(target) if now.version == deployed.version else now)
        elif deployment.project.defaults.reroute:
            self._move_routes(statistics, now_us)

    def _move_routes(self, statistics: Statistics, now_us: int) -> None:
        """Move sites to other routes, if that has paid for a while."""
        deployment = self._deployment
        deployed = deployment.deployed
        if not deployed.may_move or not are_all_heard(deployment, now_us):
            return  # a site that is away would not begin what takes the new routes
        measured = read_measured_links(deployment, now_us)
        if not measured:
            return
        sharing = deployed.lasting if are_rates_known(deployment) else replace(deployed.lasting, fragments={})
        times = RouteTimes(
            deployment.project,
            measured,
            lambda routes: traffic_over(routes, sharing, statistics),
            [site for site in deployment.sites if site != deployment.project.center],
        )
        links = [
            (link.origin, link.destination)
            for link in deployment.project.running_links
            if not deployment.project.is_light(link.origin) and link.destination in deployment.possible_ends
        ]
        move = self.mover.choose(deployment.routes, times, links, now_us)
        made = deployed if move is None else move_routes(deployment, move.hops)
        if move is not None and made is not deployed:
            self._change(lambda now: made if now.version == deployed.version else now)
            self.mover.note_moved(move.hops, now_us)
            note_move(deployment.project.state_folder, move, now_us)
            _log.info("%s is moved to %s: %s", move.site, " -> ".join(move.moved_route), move.reason)

    def _end_repairs(self, core: CenterCore) -> None:
        """Drop the views that have computed all the windows again that they were to."""
        for name, repair in self._deployment.deployed.repairs.items():
            running = core.queries.get(name)
            if repair.is_second_round:
                continue  # `deploy.repairing.second_rounds` ends it
            if running is not None and running.windows.is_final_until(repair.until_us):
                self._change(partial(without_repair, name))

    def _end_left_fragments(self, core: CenterCore) -> None:
        ends = core.fragment_ends()
        needed = core.fragments
        self._change(lambda now: now.with_ends(ends).retire(needed))

    def _change(self, make: Callable[[Deployed], Deployed]) -> None:
        deployed = self._deployment.deployed
        if make(deployed) is not deployed:
            whole = self.watcher.deployment.deployed
            self.watcher.store.change(lambda now: change_at_sink(now or whole, self.sink, make))

    @property
    def _deployment(self) -> Deployment:
        """What is answered at the sink that it is about."""
        return self.watcher.deployment.part_at(self.sink)


def change_at_sink(whole: Deployed, sink: str, make: Callable[[Deployed], Deployed]) -> Deployed:
    """Return what is deployed with what is deployed at one sink changed; at the center, if none is named."""
    if not sink:
        return make(whole)
    part = whole.at_sink(sink)
    made = make(part)
    return whole if made is part else whole.with_sinks({**whole.sinks, sink: made})


def without_repair(name: str, deployed: Deployed) -> Deployed:
    """Return the deployment without a view that computes windows of another one again."""
    return deployed.drop(name) if name in deployed.repairs else deployed


def _keeps_contracts(deployment: Deployment, target: SharingState) -> bool:
    """Return whether every link could carry another sharing, as far as a view with a contract needs it."""
    try:
        check_contracts(deployment.project, target, load_statistics(deployment.project, deployment.catalog))
    except PlanError as error:
        _log.warning("queries do not move, because then %s", error.message)
        return False
    return True


def known_statistics(deployment: Deployment, samples: Samples | None = None) -> Statistics:
    """Return the declared statistics, updated by what the sites in the project's state folder have measured.

    `samples` are the newest records of each stream, if they were read already.
    """
    found = read_samples(deployment) if samples is None else samples
    return apply_measurements(
        fill_with_guesses(load_statistics(deployment.project, deployment.catalog), deployment.catalog),
        deployment.deployed.sharing.fragments,
        site_statistics(deployment),
        found,
    )


def known_bytes(deployment: Deployment) -> BytesOf | None:
    """Return what fragments send by declared or measured rates; None where the rate of a stream is only guessed.

    By a guess queries are shared when they are planned together, but nothing that runs is changed.
    """
    if not deployment.project.defaults.reoptimize or not are_rates_known(deployment):
        return None
    return bytes_over_links(deployment.routes, known_statistics(deployment))


def are_rates_known(deployment: Deployment) -> bool:
    """Return whether the rate of every stream that is read is declared or measured."""
    declared = load_statistics(deployment.project, deployment.catalog).streams
    reports = site_statistics(deployment).values()
    measured = {s for report in reports for s, rate in report["rows_per_s"].items() if rate is not None}
    read = {side.fragment.stream for side in deployment.sides}
    return read <= declared.keys() | measured


def site_statistics(deployment: Deployment) -> Mapping[str, Mapping[str, Any]]:
    """Return the statistics that each site last wrote down of its streams."""
    return {site: status["statistics"] for site, status in _statuses(deployment).items() if "statistics" in status}


def newest_event_us(deployment: Deployment) -> int | None:
    """Return the newest event time that any site has read: rates and losses are per second of event time."""
    return max((s["newest_event_us"] for s in _statuses(deployment).values() if s["newest_event_us"]), default=None)


def _statuses(deployment: Deployment) -> Mapping[str, Mapping[str, Any]]:
    found = {site: read_status(deployment.project.site_folder(site)) for site in deployment.sites}
    return {site: status for site, status in found.items() if status is not None}
