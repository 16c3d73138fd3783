"""Who may send what: the check that an inbox makes before a segment is stored and acknowledged.

A certificate or a token proves a name. What that name may do follows from the project: a site sends partials and facts
of the fragments whose streams are born there, and a site on the route of others sends theirs too. Whatever could not be
merged is refused here, because nothing can be refused once it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from catchment.errors import WireError
from catchment.progress.soundness import check_soundness
from catchment.project.routings import Routings
from catchment.query.fragment import Fragment
from catchment.wire.messages import Records, Relayed, Segment, Updates


@dataclass(frozen=True)
class Admission:
    """The rules of one inbox: the fragments it takes, over which routes each, and where each stream is born."""

    fragments: Mapping[str, Fragment]
    routings: Routings
    births: Mapping[str, Collection[str]]

    def check(self, segment: Segment) -> None:
        """Refuse a segment that its sender may not send, or that could not be merged; its site hears why."""
        if not self.routings.current.reaches(segment.origin):
            raise WireError(
                f"{segment.origin!r} is not a site of this project with a route to the center",
                hint="declare the site and its link in catchment.toml, here and there",
            )
        for message in segment.messages:
            if isinstance(message, Records):
                raise WireError(
                    f"{segment.origin!r} sends records of {message.stream!r} to an inbox of partials",
                    hint="run every site from the same catchment.toml",
                )
            if message.fragment not in self.fragments:
                raise WireError(
                    f"{segment.origin!r} sends fragment {message.fragment!r}; known here are {sorted(self.fragments)}",
                    hint="run the site and the center from the same queries",
                )
            fragment = self.fragments[message.fragment]
            if isinstance(message, Updates):
                self._check_partials(segment.origin, fragment)
            elif isinstance(message, Relayed):
                self._check_relayed(segment.origin, message, fragment)
            else:
                self._check_birth(segment.origin, segment.origin, fragment)
        check_soundness(segment, self.fragments)

    def _check_partials(self, sender: str, fragment: Fragment) -> None:
        routes = self.routings.of_fragment(fragment.name)
        if not any(routes.may_speak_for(sender, site) for site in self._births_of(fragment)):
            raise WireError(
                f"{sender!r} sends partials of {fragment.name!r}, but the stream {fragment.stream!r} is neither born "
                f"there nor does it come through there",
                hint="run every site from the same streams and links",
            )

    def _check_relayed(self, sender: str, relayed: Relayed, fragment: Fragment) -> None:
        if not self.routings.of_fragment(fragment.name).may_speak_for(sender, relayed.origin):
            raise WireError(
                f"{sender!r} states facts of {relayed.origin!r}, whose route to the center is not through it",
                hint="run every site from the same links",
            )
        self._check_birth(sender, relayed.origin, fragment)

    def _check_birth(self, sender: str, site: str, fragment: Fragment) -> None:
        if site not in self._births_of(fragment):
            raise WireError(
                f"{sender!r} states facts of {fragment.name!r} at {site!r}, where the stream {fragment.stream!r} is "
                f"not born",
                hint="run every site from the same streams",
            )

    def _births_of(self, fragment: Fragment) -> Collection[str]:
        return self.births.get(fragment.stream, ())
