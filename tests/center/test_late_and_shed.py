"""Late and shed at once, from sources to bounds: stated bounds are missed no more often than they say.

Two worlds. In the first, windows are drawn with what they lack and how three sites sampled them, hundreds of them: it
holds the composition of a row's bound to its rate. In the second the real cores of three sites, of a relay and of the
center run over records whose sources stall: it holds everything that leads to a bound, and that every window ends
exact. Cannot catch: what Spark observes or samples wrongly (`tests/spark/test_contracts.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import ShedTerms
from catchment.center.core import CenterCore
from catchment.center.events import Publish, QueryAdded
from catchment.center.query import CenterQuery
from catchment.center.results.bounds import ResultBounds, law_of_aggregate
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.query.fragment import SLICE_COLUMN
from catchment.storage.codec import decode, encode
from catchment.timeline import Window, WindowSpec
from catchment.wire.messages import Progress, Repaired, Shed
from tests.worlds.late_shed_world import CONTRACT, LateShedWorld, lift_rows, make_fragment
from tests.worlds.tiers import seeds
from tests.worlds.world import lifted
from tests.worlds.world import make_fragment as make_unsampled_fragment

DELTA = CONTRACT.delta


def most_misses(stated: int, delta: float = DELTA) -> float:
    """The misses that a right bound exceeds with a chance of about one in a thousand."""
    return delta * stated + 3.1 * math.sqrt(delta * (1.0 - delta) * stated)


def drawn_window(seed: int, keyed: bool) -> tuple[Publish, dict[str | None, list[int]]]:
    """A window of which some records are late and the others were sampled at three sites, and all its values by key.

    What is stated to be late is right but for the chance that late records have of a miss.
    """
    chance = np.random.default_rng([seed, keyed])
    fragment = make_fragment(keyed)
    truth: dict[str | None, list[int]] = defaultdict(list)
    tables, late, amount, received = [], 0, 0, 0
    lowest = 1.0
    share = chance.uniform(0.0, 0.3)
    for _ in range(3):
        rows = [("s", 0, str(chance.choice(["x", "y", "z"])), int(chance.integers(1, 50))) for _ in range(120)]
        is_late = chance.random(len(rows)) < share
        for _, _, key, value in rows:
            truth[key if keyed else None].append(value)
        inside = [row for row, away in zip(rows, is_late, strict=True) if not away]
        late += len(rows) - len(inside)
        amount += sum(row[3] for row in rows) - sum(row[3] for row in inside)
        received += len(inside)
        rate = float(chance.choice([1.0, 0.7, 0.4, 0.2]))
        lowest = min(lowest, rate)
        passed = chance.random(len(inside)) < rate
        tables.append(lift_rows(fragment, [r for r, k in zip(inside, passed, strict=True) if k], rate))
    states = pa.concat_tables(tables).drop_columns([SLICE_COLUMN])
    merged = partials.combine(states, list(fragment.key_names), fragment.aggregates)
    too_small = chance.random() < DELTA / 2
    factor = 0.5 if too_small else 1.0
    columns = (ColumnLateness("total", None, factor * amount), ColumnLateness("mean", None))
    lateness = Lateness(factor * late, received, columns)
    return Publish("q", Window(0, 10), 1, ON_TIME, 0.5, (), "", merged, lowest_rate=lowest, late=lateness), truth


@pytest.mark.parametrize("keyed", [False, True])
def test_the_bound_of_a_row_that_is_late_and_sampled_holds_as_often_as_it_says(keyed: bool) -> None:
    fragment = make_fragment(keyed)
    own = [a for a in fragment.aggregates if not isinstance(a, ShedTerms)]
    bounds = ResultBounds(fragment, tuple(law_of_aggregate(a.name, a) for a in own), DELTA, DELTA / 2, None)
    stated: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for seed in seeds(100):
        published, truth = drawn_window(seed, keyed)
        lowered, sampled = bounds.scale(published, partials.lower(published.rows, fragment.key_names, own))
        found = bounds.row_bounds(published, lowered, sampled)
        for row, bound in zip(lowered.to_pylist(), found.bound.to_pylist(), strict=True):
            values = truth[row.get("k")]
            for column, right in (("n", len(values)), ("total", sum(values))):
                if bound[column] is not None:
                    stated[column] += 1
                    missed[column] += abs(row[column] - right) > bound[column] * right + 1e-9
    for column in ("n", "total"):
        assert stated[column] >= len(seeds(100)) // 2
        assert missed[column] <= most_misses(stated[column])


def run_world(seed: int, keyed: bool, relay: bool) -> LateShedWorld:
    world = LateShedWorld(seed, keyed, relay=relay)
    world.run(12, sources=3)
    return world


def check_exact(world: LateShedWorld) -> None:
    """Every window ends with the answer over all its records."""
    last = {p.window.start_us: p for p in world.tables.published}
    assert {p.status for p in last.values()} <= {EXACT, FINAL}
    assert all(p.coverage == 1.0 and p.late is None for p in last.values())
    keys = {key for _, key in world.truth if (key is None) != bool(world.fragment.keys)}
    wanted = {(s, k or ""): (len(v), sum(v)) for (s, k), v in world.truth.items() if k in keys and v}
    found = {place: (row["n__count"], row["total__sum"]) for place, row in world.tables.latest().items()}
    assert found == wanted


def check_worlds(numbers: range) -> None:
    stated: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    lacking = 0
    for seed in numbers:
        world = run_world(seed, keyed=seed % 2 == 1, relay=seed % 3 == 0)
        check_exact(world)
        for value in world.stated():
            lacking += value.status == ON_TIME
            if value.bound is not None:
                stated[value.column] += 1
                missed[value.column] += value.error > value.bound + 1e-9
    assert lacking > 20
    for column, number in stated.items():
        assert missed[column] <= most_misses(number), f"{column}: {missed[column]} of {number} bounds were missed"


def test_three_sites_and_a_relay_that_are_late_and_shed_keep_their_bounds_and_end_exact() -> None:
    check_worlds(seeds(3))


@pytest.mark.soak
def test_many_worlds_that_are_late_and_shed_keep_their_bounds_and_end_exact() -> None:
    check_worlds(range(1000, 3000))


def test_an_answer_that_lacks_most_of_its_records_is_not_stated_by_its_sample_alone() -> None:
    """Of 10,000 records 4,000 are in, half of them sampled: before, the late ones counted as 0, and 5.1% was stated."""
    fragment = make_fragment(keyed=False)
    own = [a for a in fragment.aggregates if not isinstance(a, ShedTerms)]
    bounds = ResultBounds(fragment, tuple(law_of_aggregate(a.name, a) for a in own), 0.05, 0.025, None)
    kept = np.random.default_rng(1).random(4000) < 0.5
    rows = lift_rows(fragment, [("s", 0, "x", 5) for k in kept if k], 0.5).drop_columns([SLICE_COLUMN])
    lateness = Lateness(6000.0, 4000.0, (ColumnLateness("total", 0.6, 30_000.0),))
    published = Publish("q", Window(0, 10), 1, ON_TIME, 0.2, (), "", rows, lowest_rate=0.5, late=lateness)
    lowered, sampled = bounds.scale(published, partials.lower(rows, (), own))
    (bound,) = bounds.row_bounds(published, lowered, sampled).bound.to_pylist()
    off = abs(lowered["n"][0].as_py() - 10_000) / 10_000
    assert 0.55 < off <= bound["n"] < 0.7
    assert abs(lowered["total"][0].as_py() - 50_000) / 50_000 <= bound["total"] < 0.7
    assert bound["mean"] is None, "nothing is known of the average of what is late"


def test_a_window_that_was_exact_is_not_once_records_of_it_are_shed_and_a_restart_changes_nothing() -> None:
    window = WindowSpec.tumbling(10)
    fragment = make_unsampled_fragment(window)
    core = CenterCore()
    core.handle(QueryAdded(CenterQuery("q", fragment, window, ("a",), 1000), waits=False), 0)
    absorbed = lifted(fragment, [(3, "k", 1)])
    whole = Landed("a", 0, (("q", absorbed.partials.num_rows),), (Progress("q", 10, 1),))
    published = core.handle_all([Gathered("q", absorbed.partials, (("a", 0, 1),)), whole, Ticked()], 0)
    assert [p.status for p in published if isinstance(p, Publish)] == [EXACT]
    late_batch = Landed("a", 1, (), (Progress("q", 12, 1),), (Shed("q", 7, 0.5, ((0, 1),)),))
    published = core.handle_all([late_batch, Ticked()], 1)
    assert [p.status for p in published if isinstance(p, Publish)] == [ON_TIME]
    restarted = CenterCore()
    restarted.restore(decode(encode(core.snapshot())))
    repaired = Landed("a", 2, (), (Progress("q", 13, 1),), (Repaired("q", 7),))
    for each in (core, restarted):
        assert each.handle_all([Ticked()], 2) == ()
        published = each.handle_all([repaired, Ticked()], 3)
        assert [p.status for p in published if isinstance(p, Publish)] == [EXACT]
