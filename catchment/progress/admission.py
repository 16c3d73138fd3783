"""Who may send what: the check that an inbox makes before a segment is stored and acknowledged.

A certificate or a token proves a name. What that name may do follows from the project: a site sends partials and facts
of the fragments whose streams are born there, and a site on the route of others sends theirs too. Whatever could not be
merged is refused here, because nothing can be refused once it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from catchment.errors import WireError
from catchment.project.routes import Routes
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import Counted, Relayed, Segment, Skipped, Updates


@dataclass(frozen=True)
class Admission:
    """The rules of one inbox: the fragments it takes, over which routes, and where each stream is born."""

    fragments: Mapping[str, Fragment]
    routes: Routes
    births: Mapping[str, Collection[str]]

    def check(self, segment: Segment) -> None:
        """Refuse a segment that its sender may not send, or that could not be merged; its site hears why."""
        if not self.routes.reaches(segment.origin):
            raise WireError(
                f"{segment.origin!r} is not a site of this project with a route to the center",
                hint="declare the site and its link in catchment.toml, here and there",
            )
        for message in segment.messages:
            if message.fragment not in self.fragments:
                raise WireError(
                    f"{segment.origin!r} sends fragment {message.fragment!r}; known here are {sorted(self.fragments)}",
                    hint="run the site and the center from the same queries",
                )
            fragment = self.fragments[message.fragment]
            if isinstance(message, Updates):
                self._check_partials(segment.origin, message, fragment)
            elif isinstance(message, Relayed):
                self._check_relayed(segment.origin, message, fragment)
            else:
                self._check_birth(segment.origin, segment.origin, fragment)
            stated = message.fact if isinstance(message, Relayed) else message
            if isinstance(stated, Skipped):
                _check_skipped(segment.origin, stated)

    def _check_partials(self, sender: str, updates: Updates, fragment: Fragment) -> None:
        if not any(self.routes.may_speak_for(sender, site) for site in self._births_of(fragment)):
            raise WireError(
                f"{sender!r} sends partials of {fragment.name!r}, but the stream {fragment.stream!r} is neither born "
                f"there nor does it come through there",
                hint="run every site from the same streams and links",
            )
        _check_updates(sender, updates, fragment)

    def _check_relayed(self, sender: str, relayed: Relayed, fragment: Fragment) -> None:
        if not self.routes.may_speak_for(sender, relayed.origin):
            raise WireError(
                f"{sender!r} states facts of {relayed.origin!r}, whose route to the center is not through it",
                hint="run every site from the same links",
            )
        self._check_birth(sender, relayed.origin, fragment)
        if isinstance(relayed.fact, Counted):
            _check_counts(sender, relayed.fact.records, fragment)

    def _check_birth(self, sender: str, site: str, fragment: Fragment) -> None:
        if site not in self._births_of(fragment):
            raise WireError(
                f"{sender!r} states facts of {fragment.name!r} at {site!r}, where the stream {fragment.stream!r} is "
                f"not born",
                hint="run every site from the same streams",
            )

    def _births_of(self, fragment: Fragment) -> Collection[str]:
        return self.births.get(fragment.stream, ())


def _check_updates(sender: str, updates: Updates, fragment: Fragment) -> None:
    if updates.table.schema.remove_metadata() != fragment.schema.remove_metadata():
        raise WireError(
            f"{sender!r} sends fragment {fragment.name!r} with columns {updates.table.schema.to_string()!r}, "
            f"expected are {fragment.schema.to_string()!r}",
            hint="the view differs between the site and the center",
        )
    if updates.rows and not _is_within_time(updates):
        raise WireError(
            f"{sender!r} sends fragment {fragment.name!r} with a slice before the start of time or after its end"
        )
    _check_counts(sender, updates.records, fragment)


def _is_within_time(updates: Updates) -> bool:
    span = pc.min_max(updates.table[SLICE_COLUMN])
    low, high = span["min"].as_py(), span["max"].as_py()
    return low is not None and bool(low > START_OF_TIME_US and high < END_OF_TIME_US)


def _check_skipped(sender: str, skipped: Skipped) -> None:
    if any(not START_OF_TIME_US < slice_us < END_OF_TIME_US for slice_us, _ in skipped.lacking):
        raise WireError(
            f"{sender!r} has skipped records of {skipped.fragment!r} in a slice before the start of time or after its "
            "end"
        )


def _check_counts(sender: str, records: tuple[tuple[int, int], ...], fragment: Fragment) -> None:
    negative = [slice_us for slice_us, count in records if count < 0]
    if negative:
        raise WireError(
            f"{sender!r} counts a negative number of records of {fragment.name!r} in the slice {negative[0]}"
        )
