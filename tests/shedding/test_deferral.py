"""Which groups are merged now where merging is the load: the chooser against brute force, the monitor in virtual time.

Catches: shares that do not fit the capacity, that take more than needed from those who tolerate least, deferral that
starts for one slow entry, stays or oscillates. Cannot catch: what merging really costs.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import QualityError
from catchment.shedding.group_shares import MIN_SHARE, DeferrableFragment, choose_shares, worst_loss
from catchment.shedding.merge_load import MergeLoad
from tests.worlds.tiers import examples

ROW_BYTES = 10
STEPS = 20  # of the grid that shares are searched on by brute force


def fragments_of(tolerances: list[float], weights: list[float]) -> dict[str, DeferrableFragment]:
    names = [f"f{i}" for i in range(len(tolerances))]
    given = zip(names, tolerances, weights, strict=True)
    return {n: DeferrableFragment(n, ("key",), frozenset({n}), t, w) for n, t, w in given}


@given(
    st.lists(
        st.tuples(st.sampled_from([0.05, 0.1, 0.5, 1.0]), st.sampled_from([0.5, 1.0, 3.0]), st.floats(0.05, 2.0)),
        min_size=1,
        max_size=3,
    ),
    st.floats(0.0, 1.0),
    st.floats(0.1, 1.5),
)
@settings(max_examples=examples(60))
def test_no_shares_of_a_grid_that_fit_lose_less_than_those_chosen(
    views: list[tuple[float, float, float]], fixed: float, capacity: float
) -> None:
    fragments = fragments_of([t for t, _, _ in views], [w for _, w, _ in views])
    loads = {name: load for name, (_, _, load) in zip(fragments, views, strict=True)} | {"fixed": fixed}
    chosen = choose_shares(fragments, loads, capacity)
    assert all(MIN_SHARE <= share <= 1.0 for share in chosen.values())

    def load_of(shares: dict[str, float]) -> float:
        return fixed + sum(loads[name] * shares[name] for name in fragments)

    least = load_of(dict.fromkeys(fragments, MIN_SHARE))
    assert load_of(chosen) <= max(capacity, least) + 1e-9
    if least >= capacity:
        assert all(share == pytest.approx(MIN_SHARE) for share in chosen.values())
        return
    grid = [MIN_SHARE + (1.0 - MIN_SHARE) * step / STEPS for step in range(STEPS + 1)]
    found = (dict(zip(fragments, shares, strict=True)) for shares in product(grid, repeat=len(fragments)))
    best = min(worst_loss(fragments, shares) for shares in found if load_of(shares) <= capacity)
    assert worst_loss(fragments, chosen) <= best + 1e-9


def test_views_that_tolerate_more_and_weigh_less_give_more() -> None:
    fragments = fragments_of([0.05, 0.2, 0.2], [1.0, 1.0, 2.0])
    strict, tolerant, heavy = choose_shares(fragments, dict.fromkeys(fragments, 0.5), 1.3).values()
    assert 1.0 > strict > heavy > tolerant
    assert (1.0 - tolerant) == pytest.approx(4.0 * (1.0 - strict))
    assert (1.0 - tolerant) == pytest.approx(2.0 * (1.0 - heavy))


def test_a_fragment_that_has_no_keys_or_no_tolerance_is_refused() -> None:
    with pytest.raises(QualityError, match="there must be a key"):
        DeferrableFragment("f", ())
    with pytest.raises(QualityError, match="a tolerance in"):
        DeferrableFragment("f", ("key",), tolerance=0.0)


class Receiver:
    """A receiver that merges everything that waits in one entry after another, at a cost per row."""

    def __init__(self, row_s: float = 1e-3) -> None:
        self.load, self.row_s = MergeLoad(), row_s
        self.fragments = fragments_of([1.0], [1.0])
        self.now_us, self.waiting, self.entries = 0, {"f0": 0.0, "fixed": 0.0}, [0.0]

    def entry(self, rows_per_s: dict[str, float]) -> float:
        """Merge what has come while the entry before was merged, a second at least; return the share of f0."""
        seconds = max(1.0, self.entries[-1])
        self.now_us += round(seconds * 1e6)
        rows = {name: round(rate * seconds) for name, rate in rows_per_s.items()}
        size = ROW_BYTES * sum(rows.values())
        share = self.load.decide(self.fragments, rows, size, 0, self.now_us).get("f0", 1.0)
        merged = round(rows["f0"] * share) + rows["fixed"]
        self.entries.append(merged * self.row_s)
        self.load.learn(merged, merged * self.row_s)
        return share


@pytest.mark.parametrize("times", [2.0, 5.0, 10.0])
def test_under_overload_entries_become_short_again_and_afterwards_everything_is_merged(times: float) -> None:
    receiver = Receiver()
    for _ in range(10):
        assert receiver.entry({"f0": 300.0, "fixed": 200.0}) == 1.0
    burst = [receiver.entry({"f0": 1000.0 * times - 200.0, "fixed": 200.0}) for _ in range(40)]
    assert min(burst) < 1.0 / times + 0.1
    assert max(receiver.entries[-20:]) <= 1.0, "what lands in a second is merged within one"
    changes = sum(a != b for a, b in pairwise(burst[20:]))
    assert changes <= 2, "shares stay where they are"
    calm = [receiver.entry({"f0": 300.0, "fixed": 200.0}) for _ in range(60)]
    assert calm[-1] == 1.0
    assert receiver.load.has_room


def test_one_slow_entry_defers_nothing() -> None:
    receiver = Receiver(row_s=1e-5)
    for _ in range(10):
        receiver.entry({"f0": 100.0, "fixed": 0.0})
    receiver.load.learn(1, 5.0)
    assert receiver.entry({"f0": 100.0, "fixed": 0.0}) == 1.0


def test_what_is_not_deferrable_is_merged_whatever_the_load() -> None:
    receiver = Receiver()
    shares = [receiver.entry({"f0": 0.0, "fixed": 5000.0}) for _ in range(20)]
    receiver.fragments = {}
    assert receiver.entry({"f0": 4000.0, "fixed": 5000.0}) == 1.0
    assert all(share >= MIN_SHARE for share in shares)
