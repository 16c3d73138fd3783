"""What the center logs of the views that come and go, and of the windows that it publishes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from catchment.center.events import (
    Action,
    ComposedAdded,
    Event,
    Expired,
    QueryAdded,
    QueryDropped,
    QueryMoved,
)
from catchment.center.shards.parts import count_rows
from catchment.log_fields import about

_log = logging.getLogger(__name__)


def log_deployment(event: Event) -> None:
    """Log that a view begins, ends, or is answered from another fragment."""
    match event:
        case QueryAdded(query, _) | ComposedAdded(query):
            _log.info("view %s runs", query.name, extra=about(query=query.name))
        case QueryDropped(name):
            _log.info("view %s is dropped; its answers are kept", name, extra=about(query=name))
        case QueryMoved(name, derivation, _):
            _log.info("view %s is answered from %s", name, derivation.fragment, extra=about(query=name))


def log_windows(actions: Sequence[Action]) -> None:
    """Log what an entry has published; after a restart, what may have been logged before too."""
    for action in actions:
        if isinstance(action, Expired):
            told = "%d partials came after the repair horizon, and are registered, not merged"
            of = about(query=action.query, window_us=action.window.start_us)
            _log.info(told, count_rows(action.rows), extra=of)
        elif _log.isEnabledFor(logging.DEBUG):
            told = "revision %d is %s, with %.1f%% of the records: %s"
            of = about(query=action.query, window_us=action.window.start_us)
            _log.debug(told, action.revision, action.status, 100 * action.coverage, action.reason, extra=of)
