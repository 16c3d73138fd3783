"""What an inbox knows of the segments that it has taken, by the site that sent them.

A segment is known by its number and its content. A number that comes again with other bytes is no duplicate: the site
was restored from an older copy of its folder, or two processes send under one name.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from catchment.storage.numbers import NumberSet
from catchment.wire.chain import START, SegmentChain
from catchment.wire.frames.codec import EncodedSegment
from catchment.wire.sending.epochs import life_of_epoch

RECENT_DIGESTS = 1024  # checksums that are remembered of each site, to compare a segment that comes again
STORED_DIGESTS = 64  # of them, those that a restart remembers; a sender has far fewer segments under way
MAX_OLD_INCARNATIONS = 16
MAX_ENDED_LIVES = 16  # of a site whose epochs are remembered; an older one would be taken for a new one


class Known(Enum):
    """Whether a segment was taken before."""

    NEW = "new"
    SAME = "same"  # with these bytes
    OTHER = "other"  # with other bytes
    FORGOTTEN = "forgotten"  # so long ago that its bytes cannot be compared


@dataclass(slots=True)
class SeenSegments:
    """The segments that were taken of one site."""

    epoch: str
    seen: NumberSet = field(default_factory=NumberSet)
    chain: SegmentChain = field(default_factory=SegmentChain)
    compared_from: int = 0  # numbers below it were taken by a version that kept no checksums
    recent: OrderedDict[int, int] = field(default_factory=OrderedDict)  # number -> checksum, newest last
    incarnation: str | None = None  # of the process that introduced itself last
    old_incarnations: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_OLD_INCARNATIONS))

    def compare(self, segment: EncodedSegment) -> Known:
        """Return whether a segment was taken before."""
        number = segment.header.sequence
        if number not in self.seen:
            return Known.NEW
        if number < self.compared_from:
            return Known.SAME
        known = self.recent.get(number, self.chain.digest_of(number))
        if known is None:
            return Known.FORGOTTEN
        return Known.SAME if known == segment.digest else Known.OTHER

    def add(self, segment: EncodedSegment) -> None:
        """Note that a segment is taken; noting it again changes nothing."""
        number = segment.header.sequence
        if self.seen.add(number):
            self.chain.add(number, segment.digest)
            self.chain.advance_to(self.seen.lowest_missing)
        self.recent[number] = segment.digest
        if len(self.recent) > RECENT_DIGESTS:
            self.recent.popitem(last=False)

    def is_old(self, incarnation: str) -> bool:
        """Return whether another process has introduced itself since this one last did."""
        return incarnation in self.old_incarnations

    def note_incarnation(self, incarnation: str, former: Sequence[str] = ()) -> None:
        """Note which process sends now, and which have ended before it; one that does not name itself is not followed.

        What an ended process has sent may come after the first word of the next one, and be the first that is heard of
        it.
        """
        if not incarnation:
            return
        ended = [*former, *([self.incarnation] if self.incarnation not in (None, incarnation) else [])]
        self.old_incarnations.extend(name for name in ended if name not in self.old_incarnations)
        self.incarnation = incarnation

    def to_record(self) -> dict[str, Any]:
        recent = list(self.recent.items())[-STORED_DIGESTS:]
        return {
            "epoch": self.epoch,
            "seen": self.seen.to_record(),
            "chain": self.chain.to_record(self.seen.above),
            "compared_from": self.compared_from,
            "recent": [[number, digest] for number, digest in recent],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SeenSegments:
        """Read a record; one without a chain begins one behind everything that was seen."""
        seen = NumberSet.from_record(record["seen"])
        if "chain" not in record:
            return cls(record["epoch"], seen, SegmentChain(seen.end, START), compared_from=seen.end)
        recent = OrderedDict((number, digest) for number, digest in record["recent"])
        return cls(record["epoch"], seen, SegmentChain.from_record(record["chain"]), record["compared_from"], recent)


@dataclass(frozen=True, slots=True)
class EndedLives:
    """How often a site was replaced or healed, and the epochs of its newest former lives.

    Epochs of lives before `least`, in which it was healed, have ended too, whether they are known or not.
    """

    count: int
    epochs: tuple[str, ...] = ()
    least: int = 0


class SeenByOrigin:
    """The segments that were taken, by site."""

    def __init__(self) -> None:
        self._origins: dict[str, SeenSegments] = {}
        self._lives: dict[str, EndedLives] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def get(self, origin: str) -> SeenSegments | None:
        """Return what was taken of a site; None if nothing was."""
        return self._origins.get(origin)

    def lowest_missing(self, origin: str) -> int:
        """Return the lowest number of a site's segments that was not taken."""
        known = self._origins.get(origin)
        return known.seen.lowest_missing if known else 0

    def compare(self, segment: EncodedSegment) -> Known:
        """Return whether a segment was taken before."""
        known = self._origins.get(segment.header.origin)
        return known.compare(segment) if known else Known.NEW

    def add(self, segment: EncodedSegment) -> None:
        """Note that a segment is taken."""
        header = segment.header
        if self.is_ended(header.origin, header.epoch):
            return  # it was consumed before the life ended, and is about to be discarded
        self._origins.setdefault(header.origin, SeenSegments(header.epoch)).add(segment)

    def to_record(self) -> dict[str, Any]:
        return {name: known.to_record() for name, known in self._origins.items()}

    def life_of(self, origin: str) -> int:
        """Return how often a site was replaced."""
        known = self._lives.get(origin)
        return known.count if known else 0

    def is_ended(self, origin: str, epoch: str) -> bool:
        """Return whether an epoch is that of a former life of a site."""
        known = self._lives.get(origin)
        return known is not None and (epoch in known.epochs or life_of_epoch(epoch) < known.least)

    def is_in_life(self, origin: str, life: int) -> bool:
        """Return whether what was taken of a site is of a life, or a later one, already."""
        known = self._origins.get(origin)
        return life > 0 and known is not None and life_of_epoch(known.epoch) >= life

    def begin_life(self, origin: str, life: int, *, is_healed: bool) -> None:
        """Forget the numbers of a site; the next epoch that is not a former one is that of its new life.

        One that is healed names its life in its epoch; one that is replaced may have begun before anyone ordered that.
        """
        ended = None if self.is_in_life(origin, life) else self._origins.pop(origin, None)
        before = self._lives.get(origin, EndedLives(0))
        epochs = (*before.epochs, *([ended.epoch] if ended is not None else []))
        least = life if is_healed else before.least
        self._lives[origin] = EndedLives(life, epochs[-MAX_ENDED_LIVES:], least)

    def lives_record(self) -> dict[str, Any]:
        """Return the former lives of sites for the file of the inbox."""
        return {
            name: {"count": lives.count, "epochs": list(lives.epochs), "least": lives.least}
            for name, lives in self._lives.items()
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], lives: Mapping[str, Any]) -> SeenByOrigin:
        origins = cls()
        origins._origins = {name: SeenSegments.from_record(known) for name, known in record.items()}
        origins._lives = {
            name: EndedLives(known["count"], tuple(known["epochs"]), known.get("least", 0))
            for name, known in lives.items()
        }
        return origins
