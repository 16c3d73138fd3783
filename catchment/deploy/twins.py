"""Twins: fragments of a site that differ only in the sink that they are sent to. Records are reduced once for all.

Each is cached, released and acknowledged by itself, because the links to their sinks differ. What one pass over a
micro-batch gives for the first is given to the others too. Where more depends on a fragment than its partials (it is
suspended, sets records aside, is sampled, or observed by slack controllers) it is evaluated by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.query.fragment import Fragment
from catchment.site.events import Absorbed, Event
from catchment.site.suspension import BatchSkipped, FragmentSuspended

Twins = Mapping[str, tuple[str, ...]]  # a fragment that is evaluated -> those that take what it gives


def find_twins(plans: Iterable[FragmentPlan], apart: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return which fragments are evaluated for others, of those of one stream that is not shed, and for which ones.

    Those in `apart` are evaluated by themselves.
    """
    evaluated: dict[Fragment, str] = {}  # what is evaluated, whatever its name -> the name under which it is
    found: dict[str, tuple[str, ...]] = {}
    for plan in plans:
        name = plan.fragment.name
        if name in apart or plan.watches or plan.max_errors is not None:
            continue
        same = evaluated.setdefault(plan.fragment.unnamed, name)
        if same != name:
            found[same] = (*found.get(same, ()), name)
    return found


def with_twins(events: Iterable[Event], twins: Twins) -> Iterator[Event]:
    """Yield the events of a micro-batch, those of evaluated fragments also for the fragments that take the same."""
    for event in events:
        yield event
        if isinstance(event, Absorbed | FragmentSuspended | BatchSkipped):
            yield from (replace(event, fragment=name) for name in twins.get(event.fragment, ()))
