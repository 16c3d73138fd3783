"""Shedding through the whole spine without Spark: sites sample batches by hash, crash, and repair them later.

Catches: a repair that adds a record twice or not at all, a window called exact too early, a scaled answer or bound
that depends on the order in which things land. Cannot catch: what Spark samples; the end-to-end test runs that.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import partials
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.deploy.repairing.repairs import ask_for_repair
from catchment.deploy.reports.requests import requested_repairs
from catchment.errors import ConfigError, QueryError
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.explain import explain_data
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.planning.build import plan_view
from catchment.shedding.debts import BatchGivenUp, BatchShed, FragmentSample, ShedDebts
from catchment.shedding.sampler import Sampler
from catchment.shedding.terms import scale_answers
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.messages import Repaired
from tests.worlds.shed_partials import partials_of, shed_fragment
from tests.worlds.shed_project import write_shed_project
from tests.worlds.shed_site import RULE, SheddingSite
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, naive


def world(
    folder: Path, window: WindowSpec, sites: int, horizon: int = 10_000
) -> tuple[Center, list[SheddingSite], ManualClock]:
    clock, fragment = ManualClock(), shed_fragment(window)
    names = tuple(f"site{i}" for i in range(sites))
    center = Center(folder / "center", CenterQuery("q", fragment, window, names, horizon), clock)
    return center, [SheddingSite(folder / n, n, fragment, "batching", clock) for n in names], clock


@settings(max_examples=examples(25))
@given(
    data=st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abc"), st.integers(-5, 50)), max_size=80),
    window=st.sampled_from([WindowSpec.tumbling(10), WindowSpec(12, 5)]),
    sites=st.sampled_from([1, 3]),
    seed=st.integers(0, 10_000),
)
def test_whatever_is_shed_and_whenever_it_is_repaired_the_end_is_the_oracle(
    data: list[Record], window: WindowSpec, sites: int, seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        center, all_sites, clock = world(Path(folder), window, sites)
        newest = dict.fromkeys(range(sites), -(10**6))
        for start in range(0, len(data), 8):
            number = chance.randrange(sites)
            batch = data[start : start + 8]
            newest[number] = max([newest[number], *(ts for ts, _, _ in batch)])
            all_sites[number].take(batch, newest[number], chance.choice([1.0, 0.7, 0.3, 0.05]))
            clock.advance(1)
            deliver_some(chance.choice(all_sites), center, chance)
            if chance.random() < 0.5:
                center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.3:
                chance.choice(all_sites).repair()
            if chance.random() < 0.3:
                roles: list[Center | Site] = [center, *all_sites]
                chance.choice(roles).crash()
        for site in all_sites:
            site.take([], END_OF_TIME_US, 1.0)
            while site.repair():
                pass
            deliver_some(site, center, chance, all_of_it=True)
        center.consume()
        center.tick()
        assert center.tables.answer() == naive(window, data)
        assert not center.tables.expired
        last = {p.window.start_us: p for p in center.tables.published}
        assert {p.status for p in last.values()} <= {FINAL}
        assert all(p.coverage == 1.0 and p.lowest_rate == 1.0 for p in last.values())
        for row in center.tables.latest().values():
            assert row["n__terms__kept"] == 0


def test_a_window_that_was_shed_is_on_time_until_its_repair_is_in(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path, WindowSpec.tumbling(10), 2)
    records = [(i % 10, "a", 4) for i in range(40)]
    a.take(records, 10, 0.5)
    b.take(records, 10, 1.0)
    for site in (a, b):
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()
    (first,) = center.tables.published
    assert (first.status, first.lowest_rate, first.missing_sites) == (ON_TIME, 0.5, ())
    assert 0.5 < first.coverage < 1.0
    assert "shed at site0" in first.reason
    a.repair()
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    last = center.tables.published[-1]
    assert (last.status, last.lowest_rate, last.coverage, last.revision) == (EXACT, 1.0, 1.0, 2)
    assert center.tables.answer() == {(0, "a"): (80, 320)}


def test_a_repair_counts_only_when_everything_sent_before_it_is_in(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, WindowSpec.tumbling(10), 1)
    a.take([(i % 10, "a", 4) for i in range(40)], 10, 0.5)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    a.take([(11, "a", 1)], 11, 1.0)
    a.take([(12, "a", 1)], 20, 1.0)
    a.repair()
    *before, repair = (p.sequence for p in a.outbox.pending())
    center.inbox.accept(a.pending_bytes(repair))
    center.consume()
    assert [p.status for p in center.tables.published] == [ON_TIME], "it is registered, and waits"
    for sequence in before:
        center.inbox.accept(a.pending_bytes(sequence))
    center.consume()
    assert center.tables.published[-1].status == EXACT or center.tables.published[-2].status == EXACT
    assert center.tables.answer()[0, "a"] == (40, 160)


def test_what_is_given_up_stays_on_time_and_holds_nothing_back(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, WindowSpec.tumbling(10), 1, horizon=0)
    a.take([(i % 10, "a", 4) for i in range(40)], 10, 0.5, repair=False)
    a.take([(11, "a", 1)], 30, 1.0)
    assert len(a.core.debts) == 0
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    statuses = {p.window.start_us: p.status for p in center.tables.published}
    assert statuses == {0: ON_TIME, 10: FINAL}
    assert not center.core.queries["q"].windows.state.closed


def test_a_window_that_may_be_repaired_waits_beyond_the_horizon(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, WindowSpec.tumbling(10), 1, horizon=0)
    a.take([(i % 10, "a", 4) for i in range(40)], 10, 0.5)
    a.take([(11, "a", 1)], 500, 1.0)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    a.repair()
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    assert not center.tables.expired
    assert center.tables.answer()[0, "a"] == (40, 160)
    assert center.tables.published[-1].status == FINAL


@pytest.mark.parametrize("rates", [(0.3,), (0.2, 0.6, 1.0), (0.1,) * 10])
def test_sites_that_shed_differently_have_one_bound_that_holds(rates: tuple[float, ...]) -> None:
    window, delta, missed, answered = WindowSpec.tumbling(10), 0.05, 0, 0
    fragment = shed_fragment(window)
    count, total = fragment.aggregates[:2]
    for seed in range(60):
        chance, tables, truth = np.random.default_rng(seed), [], np.zeros(2)
        for site, rate in enumerate(rates):
            values = chance.integers(1, 50, 400)
            keep = RULE.keep([pa.array(np.full(400, site + 100 * seed)), pa.array(np.arange(400))], rate)
            tables.append(partials_of(fragment, [(1, "a", int(v)) for v in values[keep]], rate)[0])
            truth += (400, values.sum())
        merged = partials.combine(pa.concat_tables(tables), [SLICE_COLUMN, "k"], fragment.aggregates)
        for aggregate, exact in zip((count, total), truth, strict=True):
            (value,), (error,) = scale_answers(merged, aggregate, delta, min(rates))
            missed += abs(value.as_py() - exact) > error * exact
            answered += 1
            assert 0 < error < 0.6
    assert missed <= delta * answered


def test_a_row_of_which_nothing_was_sampled_keeps_its_own_value_and_type() -> None:
    fragment = shed_fragment(WindowSpec.tumbling(10))
    table, _ = partials_of(fragment, [(1, "a", 3), (2, "a", 4)], 1.0)
    values, errors = scale_answers(table, fragment.aggregates[1], 0.05, 1.0)
    assert values.to_pylist() == [7]
    assert values.type == pa.int64()
    assert errors.tolist() == [0.0]


def test_explain_says_what_becomes_of_each_view_under_overload(tmp_path: Path) -> None:
    folder = write_shed_project(tmp_path / "p", "replay", {})
    catalog = load_catalog(Project.load(folder))
    said = {n: explain_data(plan_view(v, catalog), catalog.project)["shed"] for n, v in catalog.views.items()}
    assert said["pages"] == "sampled, weight 1; made exact afterwards: always"
    assert said["users"] == "not sampled: a sample of approx_count_distinct has no bound"
    assert said["lost"].endswith("never")


def test_asking_for_a_repair_needs_a_view_that_may_be_shed_and_a_site_that_has_run(tmp_path: Path) -> None:
    folder = write_shed_project(tmp_path / "p", "replay", {})
    with pytest.raises(ConfigError, match="there is no view 'page'"):
        ask_for_repair(folder, "page")
    with pytest.raises(ConfigError, match="nothing has run here yet"):
        ask_for_repair(folder, "asked")
    (folder / "state" / "sites" / "a" / "journal").mkdir(parents=True)
    assert ask_for_repair(folder, "asked") == {"query": "asked", "sites": ["a"]}
    assert requested_repairs(folder / "state" / "sites" / "a") == {"asked"}
    sql = folder / "queries" / "q.sql"
    sql.write_text(sql.read_text().replace(", shed = true", ""))
    with pytest.raises(ConfigError, match="nothing of 'pages' is ever shed"):
        ask_for_repair(folder, "pages")


def test_a_stream_without_history_cannot_be_shed(tmp_path: Path) -> None:
    folder = write_shed_project(tmp_path / "p", "replay", {})
    sql = folder / "queries" / "q.sql"
    sql.write_text(sql.read_text().replace("shed = true", "shed = true, history = off"))
    with pytest.raises(QueryError, match="is to be shed and has no history"):
        load_catalog(Project.load(folder))


def test_what_is_owed_of_records_that_a_topic_has_deleted_is_given_up() -> None:
    debts = ShedDebts()
    sample = FragmentSample("f", Sampler(0.5), ((0, 10),))
    list(debts.add(BatchShed("hits", 3, (sample,), (0, 20), None, "[[0, 5, 25]]")))
    assert list(debts.give_up(BatchGivenUp("hits", 3))) == [Repaired("f", 3, gave_up=True)]
    assert not debts.of("hits")
    assert not list(debts.give_up(BatchGivenUp("hits", 3))), "once is enough"
