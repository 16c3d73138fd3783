"""A view whose notices are all known at the cloud, so that they can be a table of the project.

It is planned as two views: `NAME__matches` has its matches, computed wherever that is cheapest, and NAME reads those at
the cloud, which notifies users and keeps each notice.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from catchment.feeds.language.lifetimes import Lifetimes
from catchment.feeds.language.plan_template import read_outputs
from catchment.feeds.language.statements import ViewStatement
from catchment.feeds.language.view_scope import FeedCatalog, FeedScope, make_column
from catchment.query.feed_matches import matches_name

MATCHES = "matches"  # the alias of the matches


def split_collected(view: ViewStatement, catalog: FeedCatalog) -> tuple[ViewStatement, ViewStatement]:
    """Return the view that has the matches, and the one that notifies users of them at the cloud."""
    columns = [make_column(MATCHES, name) for name in read_outputs(FeedScope(view, catalog))]
    select = exp.select(*columns).from_(exp.to_table(matches_name(view.name), alias=MATCHES))
    matches = replace(view, name=matches_name(view.name), notify_every_us=None)
    return matches, replace(view, select=select, lifetimes=Lifetimes(for_all_us=0))
