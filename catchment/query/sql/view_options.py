"""The options of a view: what it promises, where its results are wanted, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catchment.aggregates.bounded_sets import DEFAULT_MAX_DISTINCT
from catchment.project import option_kinds as kinds
from catchment.project.options import OptionKind, option, write_options
from catchment.query.view_start import ViewStart, view_start
from catchment.units import SECOND_US

IN_DEFAULTS = "as in [defaults] of catchment.toml"

# When what was shed of a view is repaired.
ALWAYS = "always"
ON_DEMAND = "on_demand"
NEVER = "never"
# Whether a view may be shed: only if every column then has a bound, in any case, or never.
BOUNDED = "bounded"
ANY = "any"
# What happens when an expression of a view fails on a record.
SUSPEND = "suspend"
QUARANTINE = "quarantine"
DEFAULT_REPAIR_MAX_BYTES = 16 * 2**20  # per window


def _repair() -> OptionKind:
    """Return the kind of option that says when shed records are repaired; on and off are always and never."""

    def read(value: Any) -> str:
        try:
            return ALWAYS if kinds.flag().read(value) else NEVER
        except ValueError:
            return str(kinds.choice(ALWAYS, ON_DEMAND, NEVER).read(value))

    return OptionKind("'always', 'on_demand' or 'never'", read)


_REPAIR = _repair()


def _sites() -> OptionKind:
    """Return the kind of option that is a set of sites: the order in which they are written does not matter."""
    names = kinds.site_names()
    return OptionKind(names.expected, lambda value: tuple(sorted(names.read(value))), names.write)


@dataclass(frozen=True)
class ViewOptions:
    """What a view promises and where; None leaves a setting to the project's defaults."""

    max_error: float | None = option(
        kinds.share(),
        None,
        doc="the contract: an on-time answer is off by this share or more in at most 1 - confidence of the windows",
        absent="no contract",
    )
    confidence: float = option(kinds.share(), 0.95, doc="the confidence of the contract; only with max_error")
    sink: tuple[str, ...] | None = option(
        kinds.site_names(),
        None,
        doc="the site where results are wanted, or several, such as 'center,tokyo': each answers by itself",
        absent="the center",
    )
    freshness_us: int | None = option(
        kinds.duration(positive=True),
        None,
        doc="how long a window waits for a missing site once another has passed its end",
        absent=IN_DEFAULTS,
    )
    policy: str | None = option(kinds.policy(), None, doc="when partial aggregates leave a site", absent=IN_DEFAULTS)
    emit_early_us: int | None = option(
        kinds.duration(none=True, positive=True),
        None,
        doc="how often to publish a window before it ends",
        absent="none: not before it ends",
    )
    repair: str = option(
        _REPAIR,
        ALWAYS,
        doc="when what was shed is repaired: always, on_demand (by `catchment repair NAME`) or never; on and off are "
        "always and never. Where nothing is shed, never registers and counts late records without merging them",
    )
    shed: str = option(
        kinds.choice(BOUNDED, ANY, NEVER),
        BOUNDED,
        doc="bounded: sampled only if every column then has a bound; any: sampled in any case; never",
    )
    weight: float = option(
        kinds.number(),
        1.0,
        doc="its share of a site's link among the views there (weight 2 gets twice that of weight 1), and how much its "
        "error counts when load is shed",
    )
    max_distinct: int = option(
        kinds.integer(2),
        DEFAULT_MAX_DISTINCT,
        doc="up to how many distinct values a row of count(DISTINCT x), median(x) and percentile(x, p) is exact; "
        "beyond it is an estimate, with its error in `bound`, until a second round makes it exact. Of each value 8 "
        "bytes travel, for a percentile also its count",
    )
    repair_max_bytes: int = option(
        kinds.size(),
        DEFAULT_REPAIR_MAX_BYTES,
        doc="how much the sites may send at the most to make the estimates of a final window exact, in a second round; "
        "where that would be more, the window stays an estimate and says so",
        name="repair_max_bytes",
    )
    max_session_us: int | None = option(
        kinds.duration(positive=True),
        None,
        doc="of a view with session_window: how long a session lasts at most; of a longer one the newest records count",
        absent="24 times the gap",
    )
    publish_every_us: int = option(
        kinds.duration(positive=True),
        10 * SECOND_US,
        doc="of a view without GROUP BY: the length of the windows, by event time, in which records are published",
    )
    slack: str | None = option(
        kinds.text("the name of a slack controller, such as 'adaptive', 'mp-k-slack' or 'fixed:5 s'"),
        None,
        doc="who decides how long windows wait: adaptive, progress, conformal, pd, mp-k-slack, fixed:5 s",
        absent="adaptive where there is a contract, else the stream's slack",
    )
    start: ViewStart | None = option(
        view_start(),
        None,
        doc="where a view that is added during a run begins: all, so long before the newest event time of its sites, "
        "or at a timestamp; what was read before is then answered from history",
        absent="with the first window that every site sees whole",
    )
    on_error: str = option(
        kinds.choice(SUSPEND, QUARANTINE),
        SUSPEND,
        doc="when an expression of the view fails on a record: suspend the view at that site, or set the record aside "
        "in quarantine and go on; where an answer cannot be finished, suspend it, or publish its columns as null",
    )
    max_errors: int = option(
        kinds.integer(),
        100,
        doc="with on_error = 'quarantine': records per window and site that may be set aside; with more, the view is "
        "suspended",
    )
    sites: tuple[str, ...] | None = option(
        _sites(),
        None,
        doc="the sites whose records it answers for, such as 'us,eu': it waits for them, and for no other site",
        absent="all sites of its streams",
    )

    def to_options(self) -> dict[str, Any]:
        """Return the options as they are written in WITH (...); a contract is written with its confidence."""
        written = write_options(self)
        written.pop("confidence", None)
        if self.max_error is None:
            return written
        return {"max_error": self.max_error, "confidence": self.confidence, **written}
