"""Options of a view that are for views of one stream, and refused of others by name."""

from __future__ import annotations

from catchment.errors import QueryError
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import ANY, ON_DEMAND

NOT_SAMPLED = "a sample of pairs needs the same keys of every stream, site and batch at one rate; "


def check_options(view: View, what: str, why: str = "", may_have_contract: bool = False) -> None:
    """Refuse options that are possible for views of one stream only; `what` says what this view does, `why` why not."""
    options = view.options
    refused = {
        "max_error": options.max_error is not None and not may_have_contract,
        "slack": options.slack is not None and not may_have_contract,
        "shed": options.shed == ANY,
        "repair": options.repair == ON_DEMAND,
    }
    for name in (n for n, given in refused.items() if given):
        raise QueryError(
            f"view {view.name!r} {what}, and {name} is for views of one",
            where=view.where,
            hint=f"{why}leave it out: such a view waits by the slack of its streams, is not sampled, and merges late "
            "records",
        )
