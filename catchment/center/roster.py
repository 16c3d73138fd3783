"""The roster of a query: which sites count, and for which event times.

A site may come, retire, or come back with an empty disk while everything runs. Each of its lives is a stay: the event
times [from, until) for which it counts. A window needs every site that has a stay in common with it. While a life
lasts, its marks say how far it has come. When it ends, nothing more comes of it: the event times between what it had
passed and the end of its stay are lost, and a window that touches them names the site and is never called exact.

Law: a window without missing sites holds, of every site, all records of its stays and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing, Window

MAX_ALIGNMENT_STEPS = 1_000  # of windows that fit together badly: then the last instant that was tried is taken


@stored()
@dataclass(frozen=True)
class Stay:
    """The event times for which one life of a site counts; `passed_us` is how far it came, once it has ended."""

    from_us: int = START_OF_TIME_US
    until_us: int = END_OF_TIME_US
    passed_us: int | None = None

    @property
    def lost(self) -> tuple[int, int] | None:
        """The event times of it of which nothing more comes; None if there are none."""
        if self.passed_us is None:
            return None
        lost = max(self.passed_us, self.from_us), self.until_us
        return lost if lost[0] < lost[1] else None


Lost = tuple[str, int, int]  # a site, and the event times [from, until) of it of which nothing more comes


@dataclass
class Roster:
    """The stays of every site of a query over one stream, oldest first; only the last one may still last."""

    stays: dict[str, list[Stay]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Iterable[str]) -> Roster:
        """Return the roster in which these sites count for all of time."""
        return cls({site: [Stay()] for site in sites})

    @property
    def present(self) -> tuple[str, ...]:
        """The sites that count now and from now on."""
        return tuple(site for site, stays in self.stays.items() if stays and stays[-1].passed_us is None)

    def from_us(self, site: str) -> int:
        """Return from when on the present life of a site counts."""
        return self.stays[site][-1].from_us

    def begin(self, site: str, from_us: int) -> None:
        """Let a site count from an instant on."""
        self.stays.setdefault(site, []).append(Stay(from_us))

    def end(self, site: str, until_us: int, passed_us: int) -> None:
        """Let the present life of a site, which has passed an instant, count no longer than until another."""
        stays = self.stays[site]
        stays[-1] = replace(stays[-1], until_us=until_us, passed_us=passed_us)
        if stays[-1].from_us >= until_us:
            del stays[-1]
        if not stays:
            del self.stays[site]

    def heal(self, site: str) -> None:
        """Let lives of a site that follow one another without a gap count as one: all of it is computed again."""
        joined: list[Stay] = []
        for stay in self.stays[site]:
            if joined and joined[-1].until_us == stay.from_us:
                joined[-1] = replace(stay, from_us=joined[-1].from_us)
            else:
                joined.append(stay)
        self.stays[site] = joined

    def lost(self) -> Iterator[Lost]:
        """Yield the event times of which nothing more comes, with their sites."""
        for site, stays in self.stays.items():
            for stay in stays:
                if stay.lost is not None:
                    yield site, *stay.lost

    def forget_final(self, final_us: int) -> None:
        """Forget the lives whose event times only final windows contain."""
        for site, stays in list(self.stays.items()):
            kept = [stay for stay in stays if stay.passed_us is None or stay.until_us > final_us]
            if kept:
                self.stays[site] = kept
            else:
                del self.stays[site]


def lost_sites(lost: Iterable[Lost], window: Window) -> tuple[str, ...]:
    """Return the sites of which a window lacks something that never comes."""
    return tuple(dict.fromkeys(s for s, low, high in lost if low < window.end_us and window.start_us < high))


def next_boundary(slicing: Slicing, at_us: int) -> int:
    """Return the first slice that starts at an instant or after."""
    if not START_OF_TIME_US < at_us < END_OF_TIME_US:
        return at_us
    start_us = slicing.start_of(at_us)
    return at_us if start_us == at_us else slicing.end_of(start_us)


def next_common_boundary(slicings: Sequence[Slicing], at_us: int) -> int:
    """Return the first instant, at one or after, at which slices of all these slicings start."""
    for _ in range(MAX_ALIGNMENT_STEPS):
        aligned_us = at_us
        for slicing in slicings:
            aligned_us = next_boundary(slicing, aligned_us)
        if aligned_us == at_us:
            break
        at_us = aligned_us
    return at_us
