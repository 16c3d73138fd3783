"""Open a folder of feeds: show who would compute what, and run its devices and a cloud in this process.

Messages go over an in-process bus and time is virtual, so a run is as fast as the processor; devices, bus and cloud
are the real ones. What is in the folder, recorded streams or a made-up world, is what the command line runs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.feeds.cloud.choose_hosts import STRATEGIES, expected_rates
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD, predict
from catchment.feeds.device.spool import spool_for
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.template import FeedTemplate
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.messages import Notice
from catchment.feeds.runs.measured_run import FeedRun, RunOptions, play_side_by_side
from catchment.feeds.runs.workload import Workload, placement_rule
from catchment.serve.feed_workload import graph_of, load_workload
from catchment.units import format_duration

if TYPE_CHECKING:
    import pandas as pd

DIRECTIONS = ("messages_up", "messages_down", "bytes_up", "bytes_down")


def local_cloud(workload: Workload) -> Cloud:
    """Make a cloud in this process with the views of a workload, none of them deployed."""
    retention = workload.retention
    router = Router(compile_feeds(workload.program), retention.cloud, spool_for(retention.cloud))
    return Cloud(graph_of(workload), router, workload.feed_rates, placement_rule(workload))


def explain_workload(workload: Workload) -> dict[str, Any]:
    """Say how many messages each strategy takes, and where its views are computed.

    Where there is no recording, feeds have the rates that are expected of devices that have reported none.
    """
    graph = graph_of(workload)
    rates = expected_rates(graph, workload.feed_rates)
    workload.retention.check(graph, workload.feed_rates)
    strategies = {}
    for name, choose in STRATEGIES.items():
        hosts = placement_rule(workload, choose).place(graph, rates, workload.feed_rates)
        traffic = predict(graph, hosts, rates)
        strategies[name] = {
            "messages_up": sum(traffic.up.values()),
            "messages_down": sum(traffic.down.values()),
            "cost": workload.costs.of_messages(traffic.up, traffic.down),
            "views_at_cloud": sum(h == CLOUD for h in hosts.values()),
            "views_on_devices": sum(h != CLOUD for h in hosts.values()),
        }
    return {
        "data": workload.source,
        "devices": len(workload.rates) or len(graph.devices),
        "feeds": len(graph.feeds),
        "views": len(graph.views),
        "strategies": strategies,
        "feed_views": [_explain_template(t, graph) for t in workload.program.templates.values()],
    }


def _explain_template(template: FeedTemplate, graph: ViewGraph) -> dict[str, Any]:
    """Say what one feed view joins, for how long its events live, and how many views it makes."""
    return {
        "name": template.name,
        "inputs": {i.alias: f"{i.source} for {format_duration(i.lifetime_us)}" for i in template.inputs},
        "notifies": template.name not in graph.program.consumed,
        "window": None if template.window is None else format_duration(template.window.window_us),
        "views": sum(view.template == template.name for view in graph.views.values()),
    }


@dataclass(frozen=True)
class FeedRuns:
    """What one run of feeds per strategy measured, and what the devices of the first were told."""

    reports: Sequence[Mapping[str, Any]]
    notices: Sequence[Notice]

    def to_pandas(self) -> pd.DataFrame:
        """Return messages and bytes per second, predicted and measured, by strategy and direction."""
        import pandas as pd

        rows = [
            {
                "strategy": report["strategy"],
                "per second": direction.replace("_", " "),
                "predicted": phase["predicted"][direction],
                "measured": phase["measured"][direction],
            }
            for report in self.reports
            for phase in report["phases"][-1:]
            for direction in DIRECTIONS
        ]
        return pd.DataFrame(rows).set_index(["strategy", "per second"])

    def __repr__(self) -> str:
        return "\n".join(map(_outcome, self.reports))

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{_outcome(report)}</p>" for report in self.reports)
        return f"{said}{self.to_pandas().to_html(float_format='{:,.1f}'.format)}"


def _outcome(report: Mapping[str, Any]) -> str:
    return (
        f"{report['strategy']}: {report['views_on_devices']:,} of {report['views']:,} views on devices; "
        f"{report['notices']:,} notices, {report['expected']:,} due by recomputation, "
        f"{report['lost']} lost, {report['invented']} invented"
    )


class Feeds:
    """A folder of feeds: `feeds.sql`, its reference tables, and recorded streams or a made-up world."""

    def __init__(self, folder: str | Path, *, users: int | None = None, seed: int | None = None) -> None:
        self.folder = Path(folder)
        self._users = users
        self._seed = seed

    def explain(self) -> pd.DataFrame:
        """Return what each strategy would send per second and where it would compute views, before anything runs."""
        import pandas as pd

        workload = load_workload(self.folder, self._users, self._seed, needs_records=False)
        return pd.DataFrame(explain_workload(workload)["strategies"]).T

    def run(self, *, seconds: int = 60, strategies: Sequence[str] = ("ours", "cloud")) -> FeedRuns:
        """Run the devices and a cloud for so many seconds of the devices' time, once per strategy.

        Every notice is compared with a naive recomputation over all records.
        """
        runs = [self._prepare(RunOptions(seconds, strategy)) for strategy in strategies]
        for _ in play_side_by_side(runs, paced=False):
            pass
        return FeedRuns([run.report() for run in runs], list(runs[0].fleet.notices))

    def _prepare(self, options: RunOptions) -> FeedRun:
        workload = self._load()
        cloud = local_cloud(workload)
        return FeedRun(cloud.graph, workload, cloud, options)

    def _load(self) -> Workload:
        return load_workload(self.folder, self._users, self._seed)

    def __repr__(self) -> str:
        return f"<feeds of {self.folder}>"
