"""Plans of joins: what mirror images and sides share, golden plans, placement and explanations."""

from __future__ import annotations

import pytest

from catchment.optimizer.choices import Strength
from catchment.optimizer.normal_form.normalize import fingerprint
from catchment.optimizer.placement.plan_json import write_plan
from catchment.optimizer.placement.planner import plan_wan
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.share import SharingState, share
from catchment.optimizer.sharing.statistics import fill_with_guesses, load_statistics
from catchment.query.explain import explain, explain_data
from tests.worlds.join_world import (
    CASES,
    JOIN,
    base_catalog,
    plans_of,
    side_queries,
)
from tests.worlds.query_support import Golden, check_golden, make_plan, read_golden


def shared(*selects: str) -> SharingState:
    return share(side_queries(plans_of(*selects).values()), Strength.FULL, lambda demand: len(demand.keys) + 1.0)


TURNED = (
    "SELECT count(*) AS m, sum(c.bytes) AS bytes, v.page AS p, window.end FROM views v JOIN clicks c "
    "ON c.user = v.user AND 1 < c.bytes WHERE v.ms < 5.5 AND v.page > c.page "
    "GROUP BY v.page, window(v.ts, '60 seconds')"
)


def test_a_join_and_its_mirror_image_are_one_plan_and_share_both_sides() -> None:
    one, other = plans_of(JOIN, TURNED.replace("window.end", "window.start")).values()
    assert fingerprint(one) == fingerprint(other)
    assert len(shared(JOIN, TURNED).fragments) == 2
    assert fingerprint(plans_of(JOIN.replace("> 1", "> 2"))["q0"]) != fingerprint(one)
    assert fingerprint(plans_of(JOIN.replace("a.page <", "a.page <="))["q0"]) != fingerprint(one)
    assert fingerprint(plans_of(JOIN.replace("sum(a.bytes)", "sum(b.bytes)"))["q0"]) != fingerprint(one)


def test_a_left_join_is_the_right_join_of_its_mirror_image_and_no_other_join() -> None:
    left = JOIN.replace(" JOIN", " LEFT JOIN").replace("WHERE", "AND")
    right = TURNED.replace("window.end", "window.start").replace(" JOIN", " RIGHT JOIN").replace("WHERE", "AND")
    one, other, inner, full = plans_of(left, right, JOIN, left.replace("LEFT", "FULL")).values()
    assert fingerprint(one) == fingerprint(other)
    assert len({fingerprint(p) for p in (one, inner, full)}) == 3
    text = explain(one, base_catalog().project)
    assert "records of clicks (left) without a partner are rows when their window closes" in text
    assert explain_data(one, base_catalog().project)["join"]["kind"] == "left outer"


def test_a_view_of_one_stream_is_derived_from_the_side_of_a_join() -> None:
    alone = "SELECT window.start, sum(bytes) AS x FROM clicks WHERE bytes > 1 GROUP BY window(ts, '2 minutes')"
    state = shared(JOIN, alone)
    assert len(state.fragments) == 2
    assert state.derivations["q1"].fragment == state.derivations["q0.left"].fragment


def test_the_sides_of_a_stream_joined_with_itself_are_one_fragment() -> None:
    state = shared(CASES["a stream with itself"].sql.replace("max(b.bytes)", "sum(b.bytes)"))
    assert len(state.fragments) == 1


@pytest.mark.parametrize("case", read_golden("joins.sql"), ids=lambda case: case.title)
def test_a_join_has_the_plan_that_the_golden_file_shows(case: Golden) -> None:
    check_golden("joins.sql", case, make_plan(case.sql).to_text())


def test_a_planned_join_names_the_fragments_of_its_sides_and_where_they_meet() -> None:
    project = base_catalog().project
    statistics = fill_with_guesses(load_statistics(project, base_catalog()), base_catalog())
    told = write_plan(plan_wan(side_queries(plans_of(JOIN).values()), Topology.of_project(project), statistics))
    joins = {(f["stream"], j["query"], j["side"], j["at"]) for f in told["fragments"] for j in f["joins"]}
    assert joins == {("clicks", "q0", "q0.left", "center"), ("views", "q0", "q0.right", "center")}
    assert {(row["from"], row["to"]) for row in told["links"]} == {(s, "center") for s in ("us", "eu", "asia")}


def test_a_join_is_explained_by_both_its_sides() -> None:
    (plan,) = plans_of(JOIN).values()
    told = explain_data(plan, base_catalog().project)
    assert [(f["site"], f["stream"]) for f in told["fragments"]] == [
        ("us", "clicks"),
        ("eu", "clicks"),
        ("asia", "views"),
    ]
    assert told["join"]["on"] == [["left.user", "right.user"]]
    assert told["join"]["aggregates"] == {"n": "left.records, right.records times", "x": "left.x, right.records times"}
    text = explain(plan, base_catalog().project)
    assert "paired per window where left.user = right.user and left.page < right.page" in text
