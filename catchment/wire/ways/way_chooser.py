"""Which of several ways to the next end a sender uses: pure arithmetic on what it notes, without clock or threads.

The ways come in order of preference. A sender stays where it is unless
- the way is down: nothing was answered over it for a while, and attempts failed;
- it is congested, what waits would take too long over it, and a probe shows that another way is clearly faster;
- it is not the first one, and a probe shows that a way before it carries about as much, and clearly more than when it
  was left; or, if nothing ever waits that a probe could send, after the longest stay.

A probe is a copy of a segment that waits anyway. It may arrive before the original, and the inbox takes the segment
once; so a probe delays nothing, and what it measures is what a segment meets. Probes are sent only while the present
way is congested or is not the first, one at a time, and less and less often while they lead to nothing.

Against going to and fro: a way must be clearly faster, the present one is kept for a least time except when it is down,
and that time doubles with every change that follows soon on another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from catchment.project.ways import Way

RECENT_S = 10.0  # a rate is measured over this long
RECENT_SENDS = 64


@dataclass(frozen=True, slots=True)
class WayRules:
    """When to leave a way, and how often to look at the others."""

    down_after_s: float = 1.0  # a way over which attempts have failed for this long is down
    congested_s: float = 2.0  # a way is congested where what waits would take longer than this ...
    patience_s: float = 3.0  # ... for this long
    faster: float = 3.0  # another way is clearly faster if it carries this many times as much
    back_share: float = 0.5  # a way before is taken again if it carries this share of what the present one does
    recovered: float = 2.0  # and this many times what it carried when it was left as congested
    stay_s: float = 10.0  # least time on a way, except when it is down; doubled with every change soon after another
    longest_stay_s: float = 300.0
    probe_s: float = 2.0  # time between two probes of a way; doubled with each that leads to nothing
    longest_probe_s: float = 60.0


@dataclass
class WayMeter:
    """How many bytes per second a way carries while it is in use."""

    _acked: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_SENDS))
    _under_way: dict[int, tuple[float, int]] = field(default_factory=dict)

    def begin(self, number: int, size_bytes: int, now_s: float) -> None:
        self._under_way[number] = now_s, size_bytes

    def end(self, number: int, now_s: float, *, arrived: bool) -> None:
        start_s, size_bytes = self._under_way.pop(number, (now_s, 0))
        if arrived and size_bytes:
            self._acked.append((start_s, now_s, size_bytes))

    def clear(self) -> None:
        self._acked.clear()
        self._under_way.clear()

    def rate(self, now_s: float) -> float | None:
        """Return bytes per second of the time in use; None where nothing was sent lately.

        What is under way counts as if it arrived now. So the rate is at most too high, and one that is stuck makes it
        fall.
        """
        recent = [(start, end, size) for start, end, size in self._acked if end > now_s - RECENT_S]
        recent += [(start, now_s, size) for start, size in self._under_way.values()]
        busy_s = 0.0
        reached_s = now_s - RECENT_S
        for start_s, end_s, _ in sorted(recent):
            busy_s += max(0.0, end_s - max(start_s, reached_s))
            reached_s = max(reached_s, end_s)
        return sum(size for _, _, size in recent) / busy_s if busy_s > 0 else None


@dataclass
class WayState:
    """What is known of one way."""

    way: Way
    meter: WayMeter = field(default_factory=WayMeter)
    bytes_sent: int = 0
    failed_since_s: float | None = None  # attempts have failed since then, and none was answered
    last_failed_s: float = float("-inf")
    last_error: str | None = None
    probed_s: float | None = None
    probed_rate: float | None = None  # bytes per second of the last probe; None where it failed or nothing waited
    left_rate: float | None = None  # what it carried when it was left because it was congested
    next_probe_s: float = 0.0
    probe_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WayChange:
    """A change to another way."""

    before: Way
    after: Way
    reason: str


@dataclass(frozen=True, slots=True)
class WayStep:
    """What to do now."""

    change: WayChange | None = None
    probe: Way | None = None


class WayChooser:
    """Chooses among ways that are given in order of preference."""

    def __init__(self, ways: Sequence[Way], rules: WayRules, now_s: float) -> None:
        assert ways, "a sender needs a way"
        self._rules = rules
        self._states = {way: WayState(way, probe_wait_s=rules.probe_s) for way in ways}
        self._order = list(ways)
        self.current = ways[0]
        self.reason = "it is the first"
        self._since_s = now_s
        self._stay_s = rules.stay_s
        self._congested_since_s: float | None = None
        self._probing: Way | None = None

    def state(self, way: Way) -> WayState:
        return self._states[way]

    # ---- what happened

    def note_begun(self, way: Way, number: int, size_bytes: int, now_s: float) -> None:
        """Note that a segment begins to take a way."""
        state = self._states[way]
        state.bytes_sent += size_bytes
        state.meter.begin(number, size_bytes, now_s)

    def note_ended(self, way: Way, number: int, now_s: float, *, arrived: bool) -> None:
        """Note that a segment was acknowledged over a way, or was not."""
        self._states[way].meter.end(number, now_s, arrived=arrived)

    def note_answered(self, way: Way) -> None:
        """Note that the end has answered over a way."""
        self._states[way].failed_since_s = None
        self._states[way].last_error = None

    def note_failed(self, way: Way, error: str, now_s: float) -> None:
        """Note that an attempt over a way has failed."""
        state = self._states[way]
        state.last_error = error
        state.last_failed_s = now_s
        if state.failed_since_s is None:
            state.failed_since_s = now_s

    def note_probed(self, way: Way, rate: float | None, error: str | None, now_s: float) -> None:
        """Note what a probe has shown: bytes per second, nothing but an answer, or an error."""
        self._probing = None
        state = self._states[way]
        state.probed_s = now_s
        state.probed_rate = rate
        if rate is None and error is None and state.left_rate is not None:
            state.next_probe_s = now_s + self._rules.probe_s  # what it carries is still to be learned
        else:
            state.next_probe_s = now_s + state.probe_wait_s
            state.probe_wait_s = min(2 * state.probe_wait_s, self._rules.longest_probe_s)
        if error is None:
            self.note_answered(way)
        else:
            self.note_failed(way, error, now_s)

    # ---- what to do

    def step(self, queued_bytes: int, now_s: float) -> WayStep:
        """Decide which way to use from now on, and which to probe."""
        state = self._states[self.current]
        rate = state.meter.rate(now_s)
        self._note_congestion(queued_bytes, rate, now_s)
        change = self._leave_if_down(now_s) or self._go_back(rate, now_s) or self._leave_if_congested(rate, now_s)
        if change is not None:
            return WayStep(change)
        return WayStep(probe=self._next_probe(now_s))

    def is_congested(self, now_s: float) -> bool:
        """Return whether what waits has taken too long over the present way for a while."""
        since_s = self._congested_since_s
        return since_s is not None and now_s - since_s >= self._rules.patience_s

    def _note_congestion(self, queued_bytes: int, rate: float | None, now_s: float) -> None:
        takes_long = rate is not None and queued_bytes > rate * self._rules.congested_s
        if not takes_long:
            self._congested_since_s = None
        elif self._congested_since_s is None:
            self._congested_since_s = now_s

    def _leave_if_down(self, now_s: float) -> WayChange | None:
        state = self._states[self.current]
        if state.failed_since_s is None or now_s - state.failed_since_s < self._rules.down_after_s:
            return None
        others = [self._states[way] for way in self._order if way != self.current]
        if not others:
            return None
        chosen = min(others, key=lambda s: s.last_failed_s if s.failed_since_s is not None else float("-inf"))
        return self._change_to(chosen.way, f"{name_way(self.current)} is down: {state.last_error}", now_s)

    def _go_back(self, rate: float | None, now_s: float) -> WayChange | None:
        """Return a change to a way before the present one that carries about as much, by a probe."""
        for way in self._order[: self._order.index(self.current)]:
            if not self._has_answered(way):
                continue
            if self._carries_enough(self._states[way], rate, now_s):
                return self._change_after_stay(way, f"{name_way(way)} carries enough again", now_s)
        return None

    def _carries_enough(self, state: WayState, rate: float | None, now_s: float) -> bool:
        """Return whether a way before the present one can be taken again.

        Where nothing waited that a probe could send, it is only known that its end answers. That is enough, unless it
        was left because it was congested: then it is tried again after the longest stay.
        """
        if state.probed_rate is None:
            return state.left_rate is None or now_s - self._since_s >= self._rules.longest_stay_s
        needed = max(self._rules.back_share * (rate or 0.0), self._rules.recovered * (state.left_rate or 0.0))
        return state.probed_rate >= needed

    def _leave_if_congested(self, rate: float | None, now_s: float) -> WayChange | None:
        if rate is None or not self.is_congested(now_s):
            return None
        others = [way for way in self._order if way != self.current and self._has_answered(way)]
        rates = {way: self._states[way].probed_rate or 0.0 for way in others}
        best = max(rates, key=lambda way: rates[way], default=None)
        if best is None or rates[best] < max(self._rules.faster * rate, 1.0):
            return None
        carried = f"{name_way(self.current)} carries {rate:.0f} bytes/s, {name_way(best)} {rates[best]:.0f}"
        change = self._change_after_stay(best, f"congested: {carried}", now_s)
        if change is not None:
            self._states[change.before].left_rate = rate
        return change

    def _has_answered(self, way: Way) -> bool:
        """Return whether a probe since the last change was answered over a way, and nothing has failed there since."""
        state = self._states[way]
        return state.probed_s is not None and state.probed_s >= self._since_s and state.failed_since_s is None

    def _next_probe(self, now_s: float) -> Way | None:
        if self._probing is not None:
            return None
        place = self._order.index(self.current)
        wanted = self._order if self.is_congested(now_s) else self._order[:place]
        due = [way for way in wanted if way != self.current and now_s >= self._states[way].next_probe_s]
        if not due:
            return None
        self._probing = due[0]
        return due[0]

    def _change_after_stay(self, way: Way, reason: str, now_s: float) -> WayChange | None:
        return self._change_to(way, reason, now_s) if now_s - self._since_s >= self._stay_s else None

    def _change_to(self, way: Way, reason: str, now_s: float) -> WayChange:
        rules = self._rules
        is_soon = now_s - self._since_s < 4 * self._stay_s
        self._stay_s = min(2 * self._stay_s, rules.longest_stay_s) if is_soon else rules.stay_s
        before = self.current
        self.current = way
        self.reason = reason
        self._since_s = now_s
        self._congested_since_s = None
        for state in self._states.values():
            state.probe_wait_s = rules.probe_s
            state.next_probe_s = now_s + rules.probe_s
        self._states[before].meter.clear()
        self._states[way].left_rate = None
        return WayChange(before, way, reason)


def name_way(way: Sequence[str]) -> str:
    """Return a way as people read it."""
    return " -> ".join(way)
