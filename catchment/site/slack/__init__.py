"""How long a site waits for late records before it closes a window: slack controllers.

A query states how wrong an early answer may be; a controller chooses how long to wait for it. It works for one stream
and one measured quantity of a query; its sources are whatever the stream's disorder is between: devices, partitions,
files.

How one window is closed:

1. `query.QuerySlack.observe` takes the rows of a micro-batch, per (source, slice), and gives each controller of the
   query its `batch.SourceBatch`.
2. `controller.SlackController.observe` notes them in its `observations.Observations`: how far, how fast and how late
   each source is (`sources`), and what each slice holds since when (`slice_arrivals`).
3. `advance` asks the controller's rule about the next window in order, as long as event time is beyond its end.
4. A rule (`rules`) decides: `rules.progress` estimates what each source still lacks (`missing`), and from that the
   chance that the answer violates the contract (`catchment.quality.missing_part`). It closes the window if the chance
   is small, if the `violation_budget` can afford it, if nothing more is worth waiting for, or after the longest wait.
5. The controller enacts the decision: the low mark rises, the budget is charged, the window is remembered.
6. When every controller of the query has closed the window, `QuerySlack` queues a `Closing` for the center: why it
   closed, what each quantity is believed to lack, and which sources lack records.
7. Once no more records are expected, the controller compares what was published with what came (`settle`): the budget
   and the rule learn from it.

To drive a controller alone, call it once per micro-batch, with the clock as an argument:

    controller = parse_slack("adaptive").build(SlackTask(window, measure, contract))
    controller.observe(batch, now_us)
    for decision in controller.advance(now_us):  # windows that close now, in order
        ...
    controller.low_mark_us                       # every window that ends at or before it is closed
"""

from catchment.site.slack.batch import SourceBatch
from catchment.site.slack.controller import SlackController
from catchment.site.slack.names import DEFAULT_SLACK, SlackConfig, parse_slack, slack_names
from catchment.site.slack.query import QuerySlack, SlackPlan, watched_values
from catchment.site.slack.rules.base import CloseDecision
from catchment.site.slack.task import SlackTask

__all__ = [
    "DEFAULT_SLACK",
    "CloseDecision",
    "QuerySlack",
    "SlackConfig",
    "SlackController",
    "SlackPlan",
    "SlackTask",
    "SourceBatch",
    "parse_slack",
    "slack_names",
    "watched_values",
]
