"""The views of a project become what is deployed: all at its first run, and those that changed between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import BytesOf, share
from catchment.query.catalog import Catalog
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import DropView


def current_catalog(declared: Catalog, deployed: Deployed | None) -> Catalog:
    """Return the declared views with those that were submitted, without those that were dropped.

    A declared view that was replaced, or dropped and made again, is what was submitted. Streams are no longer born at
    sites that were retired.
    """
    if deployed is None:
        return declared
    declared = declared.without_sites(deployed.orders.retired)
    replaced = [name for name in deployed.submitted if deployed.definitions.get(name, 1) > 1]
    dropped = [DropView(name) for name in (*deployed.dropped, *replaced) if name in declared.views]
    submitted = [sql for name, sql in deployed.submitted.items() if name not in declared.views or name in replaced]
    added = [statement for sql in submitted for statement in parse_sql(sql, "submitted")]
    return declared.add(*dropped, *added)


def deploy_first(queries: Iterable[SharedQuery], strength: Strength, bytes_of: BytesOf) -> Deployed:
    """Return the first deployment of a project, in which all queries are shared at once."""
    return Deployed(share(queries, strength, bytes_of))


def deploy_again(deployed: Deployed, queries: Sequence[SharedQuery], strength: Strength) -> Deployed:
    """Return the deployment after views were added to the project, or removed from it, between two runs."""
    wanted = {q.view or q.name for q in queries}
    changed = replace(deployed, sharing=replace(deployed.sharing, strength=strength))
    for name in [v for v in deployed.views if v not in wanted]:
        changed = changed.drop(name)
    changed = changed.with_sites(queries)
    for query in (q for q in queries if q.name not in deployed.sharing.queries):
        changed = changed.add(query)
    return changed
