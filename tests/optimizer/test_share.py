"""Sharing never changes an answer, and a query that comes or goes never changes another.

The oracle is each query's own fragment over the same records: filter and expressions by DuckDB, states by the laws of
the aggregates. It would not catch a mistake in those laws, which have tests of their own.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.deploy.deployment import Deployment
from catchment.errors import PlanError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import RECORDS, FragmentDemand
from catchment.optimizer.sharing.derive import derive
from catchment.optimizer.sharing.generalize import generalize
from catchment.optimizer.sharing.share import SharingState, share
from tests.worlds.sharing_support import (
    answers,
    is_close,
    lift_fragment,
    make_hits,
    make_queries,
    select,
    selects,
    size,
    size_by_sketches,
)
from tests.worlds.tiers import examples


def assert_same_answers(state: SharingState, seed: int) -> None:
    records = make_hits(np.random.default_rng(seed), 80)
    lifted = {name: lift_fragment(records, state.fragment(name)) for name in state.fragments}
    for name, query in state.queries.items():
        derivation = state.derivations[name]
        made = derive(lifted[derivation.fragment], derivation)
        assert set(made.column_names) == set(query.own.schema.names)
        found, expected = answers(made, query.own), answers(lift_fragment(records, query.own), query.own)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert all(is_close(a, b) for a, b in zip(found[key], values, strict=True)), (name, key, found[key], values)


@settings(max_examples=examples(40))
@given(st.lists(selects(), min_size=2, max_size=5), st.sampled_from(list(Strength)), st.integers(0, 10**6))
def test_answers_through_shared_fragments_equal_unshared_ones(texts: list[str], strength: Strength, seed: int) -> None:
    assert_same_answers(share(make_queries(*texts), strength, size), seed)
    assert_same_answers(share(make_queries(*texts), strength, size_by_sketches), seed)


def test_a_sketch_is_told_by_the_values_of_a_key_and_their_counts() -> None:
    texts = [
        select("page, count(*) AS n, approx_count_distinct(user) AS users", "page"),
        select("country, approx_top_k(page, 3) AS top, approx_count_distinct(page) AS pages", "country"),
        select("approx_top_k(user, 2) AS top", where="country IS NOT NULL", window="'2 minutes'"),
    ]
    state = share(make_queries(*texts), Strength.FULL, size_by_sketches)
    (demand,) = state.fragments.values()
    assert [a.name for a in demand.aggregates] == [RECORDS.name]
    assert {k.sql for k in demand.keys} == {"`hits`.`country`", "`hits`.`page`", "`hits`.`user`"}
    for seed in range(5):
        assert_same_answers(state, seed)


def test_the_default_policy_is_the_same_named_or_not(tmp_path: Path) -> None:
    """Views that name it share with those that do not, and with none that name another."""
    sql = "CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', path = 'data/{site}');\n"
    answer = "AS SELECT count(*) AS n FROM hits GROUP BY window(ts, '1 minute')"
    for name, options in (("a", ""), ("b", "WITH (policy = 'spillway')"), ("c", "WITH (policy = 'batching')")):
        sql += f"CREATE MATERIALIZED VIEW {name} {options} {answer};\n"
    toml = '[project]\nname = "p"\ncenter = "c"\n[sites.c]\n[sites.s]\n[[links]]\nfrom = "s"\nto = "c"\n'
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "q.sql").write_text(sql)
    (tmp_path / "catchment.toml").write_text(toml)
    sharing = Deployment.load(tmp_path).deployed.sharing
    assert sorted(sharing.users(f) for f in sharing.fragments) == [("a", "b"), ("c",)]


@settings(max_examples=examples(25))
@given(st.lists(selects(), min_size=2, max_size=6), st.data(), st.sampled_from(list(Strength)))
def test_queries_come_and_go_without_changing_another(
    texts: list[str], data: st.DataObject, strength: Strength
) -> None:
    queries = make_queries(*texts)
    half = len(queries) // 2
    state = share(queries[:half], strength, size)
    for query in queries[half:]:
        wider = state.add(query)
        assert all(wider.derivations[q] == d for q, d in state.derivations.items())
        assert all(wider.fragments[f] == d for f, d in state.fragments.items())
        state = wider
    assert_same_answers(state, 7)
    for name in data.draw(st.permutations(sorted(state.queries))):
        less = state.drop(name)
        assert all(less.derivations[q] == state.derivations[q] for q in less.queries)
        assert all(less.users(f) for f in less.fragments)
        assert {d.fragment for d in less.derivations.values()} == set(less.fragments)
        state = less
    assert not state.fragments


ONE = select("page, sum(bytes) AS b, count(bytes) AS n", "page")


@pytest.mark.parametrize(
    ("title", "served"),
    [
        ("the same otherwise", select("h.page AS p, count(bytes) AS c, sum(h.bytes) AS s", "page", stream="hits h")),
        ("fewer aggregates", select("page, sum(bytes) AS b", "page")),
        ("coarser keys", select("sum(bytes) AS b")),
        ("a filter on a key", select("sum(bytes) AS b", where="page = 'a'")),
        ("avg from sum and count", select("page, avg(bytes) AS m", "page")),
        ("longer windows", select("page, sum(bytes) AS b", "page", window="'5 minutes', '1 minute'")),
    ],
)
def test_a_query_that_can_be_derived_adds_no_fragment(title: str, served: str) -> None:
    state = SharingState(Strength.FULL)
    for query in make_queries(ONE, served):
        state = state.add(query)
    assert len(state.fragments) == 1, title
    assert_same_answers(state, 3)


@pytest.mark.parametrize(
    ("title", "apart"),
    [
        ("finer keys", select("page, user, sum(bytes) AS b", "page, user")),
        ("a filter on what is no key", select("page, sum(bytes) AS b", "page", where="user = 1")),
        ("windows that cut", select("page, sum(bytes) AS b", "page", window="'1 minute', '1 minute', '7 seconds'")),
        ("another stream", select("page, sum(bytes) AS b", "page", stream="other")),
        ("another aggregate", select("page, max(bytes) AS b", "page")),
    ],
)
def test_a_query_that_cannot_be_derived_gets_a_fragment_beside(title: str, apart: str) -> None:
    first, second = make_queries(ONE, apart)
    before = SharingState(Strength.FULL).add(first)
    after = before.add(second)
    assert len(after.fragments) == 2, title
    assert after.derivations["q0"] == before.derivations["q0"]
    if "other" not in apart:
        assert_same_answers(after, 4)


def test_strict_shares_equal_fragments_only() -> None:
    same = select("page, count(bytes) AS x, sum(bytes) AS y", "page")
    queries = make_queries(ONE, same, select("sum(bytes) AS b"))
    counts = {s: len(share(queries, s, size).fragments) for s in Strength}
    assert counts == {Strength.NONE: 3, Strength.STRICT: 2, Strength.FULL: 1, Strength.MAX: 1}


def test_full_leaves_apart_what_max_joins_at_a_loss() -> None:
    queries = make_queries(select("page, count(*) AS n", "page"), select("user, count(*) AS n", "user"))

    def rows(demand: FragmentDemand) -> float:
        return math.prod(1000 for _ in demand.keys)

    full, most = (share(queries, s, rows) for s in (Strength.FULL, Strength.MAX))
    assert sum(rows(d) for d in full.fragments.values()) == 2_000
    assert sum(rows(d) for d in most.fragments.values()) == 1_000_000
    assert_same_answers(most, 5)


def test_a_narrower_range_is_served_by_a_wider_one_whose_column_becomes_a_key() -> None:
    wide, narrow = make_queries(
        select("count(*) AS n", where="user > 1 AND bytes > 5"), select("count(*) AS n", where="user > 2 AND bytes > 5")
    )
    shared = generalize(wide.demand, narrow.demand)
    assert shared is not None
    assert [k.sql for k in shared.keys] == ["`hits`.`user`"]
    assert shared.conditions == ("`hits`.`bytes` > 5", "`hits`.`user` > 1")


def test_a_name_that_is_taken_or_unknown_is_refused() -> None:
    (query,) = make_queries(ONE)
    state = SharingState(Strength.FULL).add(query)
    with pytest.raises(PlanError, match="already there"):
        state.add(query)
    with pytest.raises(PlanError, match="no query 'q9'") as caught:
        state.drop("q9")
    assert "q0" in str(caught.value)
