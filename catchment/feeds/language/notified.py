"""Whose match it is: a view that reads another view notifies only the user whom the lower row would have notified.

Both directions of a friendship are rows of one physical view, so a view above it gets the matches of both. Which of
them an event is of is said by one of its columns: the output that names the notified device, or `__who` where no
output does. A view whose first input is a view compares that column with the user whom its own row notifies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from catchment.feeds.language.expressions import conjunction
from catchment.feeds.language.template import NOTIFIED_COLUMN, WHO, FeedOutput, FeedTemplate
from catchment.query.sql.dialect import conjuncts, read_expression


def name_notified(template: FeedTemplate, lower: Mapping[str, FeedTemplate], device: str | None) -> FeedTemplate:
    """Return a view that others read, with an output that names the device that a match notifies.

    `device` is the column that names the device of its first input; None where that is a view.
    """
    first = template.inputs[0]
    column = device if first.is_stream else lower[first.source].who
    named = f"{first.alias}.{column}"
    known = next((output.name for output in template.outputs if output.sql == named), None)
    if known is not None:
        return replace(template, who=known)
    added = FeedOutput(WHO, named, first.device if first.is_stream else named)
    return replace(template, outputs=(*template.outputs, added), who=WHO)


def tie_to_notified(template: FeedTemplate, lower: Mapping[str, FeedTemplate]) -> FeedTemplate:
    """Return a view whose rows meet only the matches of their own user, where its first input is a view."""
    first = template.inputs[0]
    if first.is_stream:
        return template
    notified = f"{first.alias}.{NOTIFIED_COLUMN}"
    terms = list(conjuncts(read_expression(template.match))) if template.match else []
    tie = read_expression(f"{first.alias}.{lower[first.source].who} = {notified}")
    params = tuple(sorted({*template.params, notified}))
    return replace(template, match=conjunction([*terms, tie]), params=params)
