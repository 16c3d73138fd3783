"""Which way a sender uses: it leaves what is down or clearly slower, comes back, and does not go to and fro."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from catchment.project.ways import Way
from catchment.wire.ways.way_chooser import WayChooser, WayMeter, WayRules

DIRECT: Way = ("a", "center")
AROUND: Way = ("a", "b", "center")
THIRD: Way = ("a", "c", "center")
RULES = WayRules()


class Run:
    """A chooser whose ways carry given bytes per second, in virtual time with a tick of half a second."""

    def __init__(self, *ways: Way) -> None:
        self.chooser = WayChooser(ways, RULES, 0.0)
        self.rates: dict[Way, float] = dict.fromkeys(ways, 100_000.0)
        self.queued = 0
        self.now_s = 0.0
        self.changes: list[tuple[float, Way]] = []
        self.probes: list[tuple[float, Way]] = []
        self._number = 0
        self.waits = True  # whether something waits that a probe can send

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self._tick()

    def _tick(self) -> None:
        self._send(self.chooser.current)
        step = self.chooser.step(self.queued, self.now_s)
        if step.change is not None:
            self.changes.append((self.now_s, step.change.after))
        if step.probe is not None:
            self.probes.append((self.now_s, step.probe))
            rate = self.rates[step.probe]
            if rate and not self.waits:
                self.chooser.note_probed(step.probe, None, None, self.now_s)
                return
            self.chooser.note_probed(step.probe, rate or None, None if rate else "gone", self.now_s)

    def _send(self, way: Way) -> None:
        """Send for half a second what the way carries, or fail."""
        self._number += 1
        rate = self.rates[way]
        if not rate:
            self.chooser.note_failed(way, "gone", self.now_s)
            self.now_s += 0.5
            return
        self.chooser.note_begun(way, self._number, round(rate / 2), self.now_s)
        self.now_s += 0.5
        self.chooser.note_ended(way, self._number, self.now_s, arrived=True)
        self.chooser.note_answered(way)


def test_a_way_that_carries_what_is_asked_is_kept_and_nothing_is_probed() -> None:
    run = Run(DIRECT, AROUND)
    run.rates[AROUND] = 1e9
    run.queued = 100_000
    run.run(600)
    assert (run.changes, run.probes) == ([], [])


def test_a_way_that_is_down_is_left_at_once_and_taken_again_when_it_is_back() -> None:
    run = Run(DIRECT, AROUND)
    run.rates[DIRECT] = 0
    run.run(60)
    assert run.chooser.current == AROUND
    assert run.changes[0][0] <= RULES.down_after_s + 1
    assert "is down: gone" in run.chooser.reason
    run.rates[DIRECT] = 100_000.0
    run.run(RULES.longest_probe_s + RULES.longest_stay_s)
    assert run.chooser.current == DIRECT
    assert len(run.changes) == 2


def test_with_all_ways_down_each_is_tried_again_and_again() -> None:
    run = Run(DIRECT, AROUND, THIRD)
    run.rates = dict.fromkeys(run.rates, 0.0)
    run.run(60)
    assert {way for _, way in run.changes[-3:]} == {DIRECT, AROUND, THIRD}
    run.rates[THIRD] = 1.0
    run.run(20)
    assert run.chooser.current == THIRD


def test_a_congested_way_is_left_for_one_that_is_clearly_faster_and_for_no_other() -> None:
    run = Run(DIRECT, AROUND, THIRD)
    run.run(60)
    run.queued = 10**6
    run.rates.update({DIRECT: 10_000.0, AROUND: 29_000.0, THIRD: 20_000.0})
    run.run(120)
    assert run.changes == []
    run.rates[THIRD] = 100_000.0
    run.run(RULES.longest_probe_s + 5)
    assert run.chooser.current == THIRD
    assert "congested" in run.chooser.reason


def test_a_way_that_is_as_slow_as_when_it_was_left_is_not_taken_again() -> None:
    """The present way may look slow for a moment, where the machine is busy; that makes the other no faster."""
    run = Run(DIRECT, AROUND)
    run.queued = 10**6
    run.rates.update({DIRECT: 10_000.0, AROUND: 100_000.0})
    run.run(60)
    assert run.chooser.current == AROUND
    run.rates[AROUND] = 15_000.0
    run.run(600)
    assert run.chooser.current == AROUND
    assert len(run.changes) == 1
    run.rates.update({DIRECT: 100_000.0, AROUND: 100_000.0})
    run.run(RULES.longest_probe_s + RULES.stay_s)
    assert run.chooser.current == DIRECT


def test_a_way_that_was_left_as_congested_is_not_taken_again_because_nothing_waits() -> None:
    """Over the other way all that comes leaves at once: an answer without a segment says that the first way is there,
    and not what it carries. It was taken again, filled up, and could be left only after the next least stay."""
    run = Run(DIRECT, AROUND)
    run.run(60)
    run.rates[DIRECT] = 10_000.0
    run.queued = 100_000
    run.run(20)
    assert [way for _, way in run.changes] == [AROUND]
    run.queued, run.waits = 0, False
    emptied_s = run.now_s
    run.run(60)
    assert run.chooser.current == AROUND
    found = [at_s for at_s, way in run.probes if way == DIRECT and at_s >= emptied_s]
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert max(gaps) <= RULES.probe_s + 0.5, "a segment that waits is looked for as often as at first"
    run.rates[DIRECT], run.waits = 100_000.0, True
    run.run(5)
    assert run.chooser.current == DIRECT, "a probe has shown that it carries enough again"


def test_a_way_that_was_left_as_congested_is_taken_again_after_long_though_nothing_ever_waits() -> None:
    run = Run(DIRECT, AROUND)
    run.run(60)
    run.rates[DIRECT] = 10_000.0
    run.queued = 100_000
    run.run(20)
    left_s = run.changes[0][0]
    run.queued, run.waits = 0, False
    run.run(RULES.longest_stay_s + 10)
    back_s = run.changes[1][0]
    assert run.changes[1][1] == DIRECT
    assert back_s - left_s >= RULES.longest_stay_s


def test_probes_become_rare_while_they_lead_to_nothing() -> None:
    run = Run(DIRECT, AROUND)
    run.queued = 10**9
    run.run(3600)
    assert run.changes == []
    assert 3600 / RULES.longest_probe_s - 5 <= len(run.probes) <= 3600 / RULES.longest_probe_s + 10


@given(
    st.lists(st.tuples(st.sampled_from((DIRECT, AROUND, THIRD)), st.sampled_from((1e3, 1e4, 1e5, 1e6))), max_size=40)
)
def test_ways_that_answer_are_never_changed_to_and_fro(weather: list[tuple[Way, float]]) -> None:
    """However the rates of ways go up and down, the time between two changes is at least `stay_s`, and it grows."""
    run = Run(DIRECT, AROUND, THIRD)
    run.queued = 10**6
    for way, rate in weather:
        run.rates[way] = rate
        run.run(15)
    times_s = [0.0, *(at for at, _ in run.changes)]
    stays_s = [after - before for before, after in itertools.pairwise(times_s)]
    needed_s = RULES.stay_s
    for stay_s in stays_s:
        assert stay_s >= needed_s
        needed_s = min(2 * needed_s, RULES.longest_stay_s) if stay_s < 4 * needed_s else RULES.stay_s
    for way in run.rates:
        probed_s = [at for at, probed in run.probes if probed == way]
        gaps_s = [after - before for before, after in itertools.pairwise(probed_s)]
        assert all(gap >= RULES.probe_s for gap in gaps_s)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_a_rate_is_the_bytes_over_the_time_in_which_something_was_under_way(sends: list[tuple[int, int, int]]) -> None:
    """Compared with a count over tenths of a second: those in which at least one send was under way."""
    meter = WayMeter()
    now = 100
    for number, (start, length, size) in enumerate(sends):
        meter.begin(number, size, start / 10)
        if start + length < now:
            meter.end(number, (start + length) / 10, arrived=True)
    busy: set[int] = set()
    for start, length, _ in sends:
        busy |= set(range(start, min(start + length, now)))
    total = sum(size for _, _, size in sends)
    rate = meter.rate(now / 10)
    assert rate is not None
    assert abs(rate - total / (len(busy) / 10)) < 1e-6 * rate


def test_a_segment_that_is_stuck_makes_the_rate_fall() -> None:
    meter = WayMeter()
    meter.begin(1, 1000, 0.0)
    meter.end(1, 0.01, arrived=True)
    meter.begin(2, 1000, 0.01)
    rates = [meter.rate(at) for at in (0.02, 1.0, 5.0)]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0))
    assert (rates[2] or 0) < 500
