"""A view's contract, slack and repair options, as its sites and the center need them."""

from __future__ import annotations

from collections.abc import Sequence

from catchment.aggregates.shed_terms import terms_in
from catchment.center.query import RepairRule
from catchment.errors import CatchmentError, QueryError
from catchment.project.sections import Defaults
from catchment.quality.contract import (
    LATE_SHARE,
    Contract,
    per_site_contract,
    share_contract,
    watched_quantities,
)
from catchment.query.plan import QueryPlan
from catchment.query.sql.statements import Stream
from catchment.query.sql.view_options import ALWAYS, ANY, NEVER, ON_DEMAND, ViewOptions
from catchment.shedding.sheddable import ShedChoice
from catchment.site.slack import DEFAULT_SLACK, SlackPlan, parse_slack

WITHOUT_CONTRACT = ("mp-k-slack", "fixed")  # slack controllers that know how long to wait without a contract
DEFAULT_MAX_ERROR = 0.05  # reported against where such a controller runs without a contract


def contract_of(plan: QueryPlan) -> Contract | None:
    """Return the contract that the windows of a view close under; None if they close by the stream's slack alone."""
    options = plan.options
    if not has_contract(options):
        return None
    return Contract(options.max_error or DEFAULT_MAX_ERROR, options.confidence)


def has_contract(options: ViewOptions) -> bool:
    """Return whether slack controllers say when the windows of a view close, and what they then lack."""
    return options.max_error is not None or options.slack is not None


def late_delta(plan: QueryPlan, stream: Stream) -> float:
    """Return the chance that late records have of a view's 1 - confidence, whether or not it has a contract."""
    return _late_share(plan, stream, Contract(DEFAULT_MAX_ERROR, plan.options.confidence)).delta


def late_contract(plan: QueryPlan, stream: Stream) -> Contract | None:
    """Return the part of a view's contract that its slack controllers keep together, over all sites."""
    contract = contract_of(plan)
    return None if contract is None else _late_share(plan, stream, contract)


def _late_share(plan: QueryPlan, stream: Stream, contract: Contract) -> Contract:
    sketched = any(not aggregate.exact for aggregate in plan.fragment.aggregates)
    return share_contract(contract, sampled=may_be_sampled(plan, stream), sketched=sketched)


def may_be_sampled(plan: QueryPlan, stream: Stream) -> bool:
    """Return whether the records of a view may be sampled when its sites are overloaded."""
    terms = terms_in(plan.fragment.aggregates)
    is_allowed = plan.options.shed == ANY or all(t.bounded for t in terms)
    return stream.shed and bool(terms) and plan.options.shed != NEVER and is_allowed


def sampling_contract(options: ViewOptions) -> tuple[float | None, float]:
    """Return the error, if any, and the confidence that the samplers of a view keep: what late records leave them."""
    if not has_contract(options):
        return options.max_error, options.confidence
    error = None if options.max_error is None else (1.0 - LATE_SHARE) * options.max_error
    return error, 1.0 - (1.0 - LATE_SHARE) * (1.0 - options.confidence)


def slack_plan(plan: QueryPlan, stream: Stream, max_ahead_us: int) -> SlackPlan | None:
    """Return how each site of a view decides when to close a window; None if the stream's slack decides."""
    contract = late_contract(plan, stream)
    if contract is None:
        return None
    part, watched = per_site_contract(contract, watched_quantities(plan.fragment.aggregates), len(plan.scan.sites))
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
            f"view {plan.view!r} asks for repair on demand, which is for what was shed: {stream.name!r} is not shed",
            where=where,
            hint="late records are merged ('always') or registered and counted ('never')",
        )
    if name is None:
        return
    if name.strip().lower().endswith(":imputed"):
        raise QueryError(
            f"view {plan.view!r} asks for {name!r}: a site cannot publish records that it does not have",
            where=where,
            hint="leave out :imputed; it is for catchment simulate order",
        )
    try:
        family = parse_slack(name).name.partition(":")[0]
    except CatchmentError as cause:
        raise QueryError(f"view {plan.view!r}: {cause.message}", where=where, hint=cause.hint) from cause
    if plan.options.max_error is None and family not in WITHOUT_CONTRACT:
        raise QueryError(
            f"view {plan.view!r} asks for the slack {name!r}, which waits for a contract, and states none",
            where=where,
            hint="add max_error = 0.05, or choose slack = 'mp-k-slack' or 'fixed:5 s'",
        )


def shed_choice(plans: Sequence[QueryPlan]) -> ShedChoice:
    """Return how a fragment that serves these views may be shed: as the most demanding view allows.

    A view whose states have no terms beside them is answered from all records.
    """
    given = [p.options for p in plans]
    contracts = [sampling_contract(o) for o in given]
    errors = [error for error, _ in contracts if error is not None]
    repair = NEVER
    if not given or any(o.repair == ALWAYS for o in given):
        repair = ALWAYS
    elif any(o.repair == ON_DEMAND for o in given):
        repair = ON_DEMAND
    return ShedChoice(
        min(errors, default=None),
        max((confidence for _, confidence in contracts), default=ViewOptions().confidence),
        max((o.weight for o in given), default=1.0),
        bool(given) and all(o.shed == ANY for o in given),
        repair,
        tuple(p.name for p in plans),
        any(p.options.shed == NEVER or not terms_in(p.fragment.aggregates) for p in plans),
    )
