"""A view's contract, slack and repair options, as its sites and the center need them."""

from __future__ import annotations

from catchment.center.query import RepairRule
from catchment.errors import CatchmentError, QueryError
from catchment.project.config import Defaults
from catchment.quality.contract import Contract, per_site_contract, watched_quantities
from catchment.query.plan import QueryPlan
from catchment.query.sql.statements import Stream
from catchment.query.sql.view_options import NEVER, ON_DEMAND
from catchment.site.slack import DEFAULT_SLACK, SlackPlan, parse_slack

WITHOUT_CONTRACT = ("mp-k-slack", "fixed")  # slack controllers that know how long to wait without a contract
DEFAULT_CONTRACT = Contract(0.05, 0.95)  # reported against where such a controller runs without a contract


def contract_of(plan: QueryPlan, stream: Stream) -> Contract | None:
    """Return the contract that the windows of a view close under; None if they close by the stream's slack alone.

    On a stream that may be shed, the samplers keep the contract, and no slack controller runs: it would mistake shed
    records for late ones.
    """
    options = plan.options
    if stream.shed:
        return None
    if options.max_error is not None:
        return Contract(options.max_error, options.confidence)
    return DEFAULT_CONTRACT if options.slack is not None else None


def slack_plan(plan: QueryPlan, stream: Stream, max_ahead_us: int) -> SlackPlan | None:
    """Return how each site of a view decides when to close a window; None if the stream's slack decides."""
    contract = contract_of(plan, stream)
    if contract is None:
        return None
    part, watched = per_site_contract(contract, watched_quantities(plan.fragment.aggregates), len(stream.sites or ()))
    return SlackPlan(plan.name, plan.options.slack or DEFAULT_SLACK, plan.window, watched, part, max_ahead_us)


def repair_rule(plan: QueryPlan, stream: Stream, defaults: Defaults) -> RepairRule | None:
    """Return when late records are merged; None where the view asks for no repair.

    On a stream that may be shed, the option is about shed records, and late records are merged in any case.
    """
    if plan.options.repair == NEVER and not stream.shed:
        return None
    return RepairRule(spread_us=defaults.repair_spread_us, max_age_us=defaults.repair_after_us)


def find_source_key(plan: QueryPlan, source: str | None) -> str | None:
    """Return the name of the key that is the source column itself, if there is one."""
    if source is None:
        return None
    alias = plan.fragment.stream
    spellings = {source, f"`{source}`", f"{alias}.{source}", f"`{alias}`.`{source}`"}
    return next((k.name for k in plan.fragment.keys if k.sql in spellings), None)


def check_slack(plan: QueryPlan, stream: Stream, where: str) -> None:
    """Refuse a slack or a repair option that the view's stream does not support."""
    name = plan.options.slack
    if plan.options.repair == ON_DEMAND and not stream.shed:
        raise QueryError(
            f"view {plan.name!r} asks for repair on demand, which is for what was shed: {stream.name!r} is not shed",
            where=where,
            hint="late records are merged ('always') or registered and counted ('never')",
        )
    if name is None:
        return
    if stream.shed:
        raise QueryError(
            f"view {plan.name!r} asks for the slack {name!r} on the stream {stream.name!r}, which may be shed",
            where=where,
            hint="leave slack out: windows of such a stream close by the slack of the stream",
        )
    if name.strip().lower().endswith(":imputed"):
        raise QueryError(
            f"view {plan.name!r} asks for {name!r}: a site cannot publish records that it does not have",
            where=where,
            hint="leave out :imputed; it is for catchment simulate order",
        )
    try:
        family = parse_slack(name).name.partition(":")[0]
    except CatchmentError as cause:
        raise QueryError(f"view {plan.name!r}: {cause.message}", where=where, hint=cause.hint) from cause
    if plan.options.max_error is None and family not in WITHOUT_CONTRACT:
        raise QueryError(
            f"view {plan.name!r} asks for the slack {name!r}, which waits for a contract, and states none",
            where=where,
            hint="add max_error = 0.05, or choose slack = 'mp-k-slack' or 'fixed:5 s'",
        )
