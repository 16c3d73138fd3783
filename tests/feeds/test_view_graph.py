"""The view graph of a program over reference data, against plain loops over the rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from tests.worlds.tiers import examples

DECLARED = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE) WITH (device = 'user');
CREATE STREAM status (user BIGINT, free BOOLEAN) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE, friend_share DOUBLE);
CREATE TABLE circles (user BIGINT, radius DOUBLE);
"""
NEARBY = """
CREATE FEED VIEW nearby AS SELECT a.user, b.user AS friend, a.lat, b.lon
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE a.lat < b.lat AND sample(a, f.share) AND sample(b, f.friend_share);
"""
CIRCLED = """
CREATE FEED VIEW circled AS SELECT a.user, b.user AS friend
FROM location a JOIN friends f ON a.user = f.user JOIN circles c ON c.user = f.user AND c.radius > 1
JOIN location b ON f.friend = b.user WHERE distance(a.lat, a.lon, b.lat, b.lon) < c.radius;
"""
MEET = """
CREATE FEED VIEW meet AS SELECT n.user, n.friend, n.lat FROM nearby n JOIN status s ON s.user = n.friend
WHERE s.free;
"""
PROGRAM = read_program(DECLARED + NEARBY + CIRCLED + MEET)
Friend = tuple[int, int, float, float]


def graph_of(friends: list[Friend], circles: list[tuple[int, float]] | None = None) -> ViewGraph:
    return generate_views(PROGRAM, ReferenceData({"friends": friends, "circles": circles or []}))


def of(graph: ViewGraph, template: str) -> list[PhysicalView]:
    return [v for v in graph.views.values() if v.template == template]


def test_both_directions_of_a_friendship_are_rows_of_one_view() -> None:
    (view,) = of(graph_of([(1, 2, 0.5, 0.25), (2, 1, 0.125, 0.75)]), "nearby")
    assert view.name == "nearby(location@1,location@2)"
    assert [(r.inputs, r.shares, r.notified) for r in view.rows] == [
        (("location@1", "location@2"), (0.5, 0.25), "1"),
        (("location@2", "location@1"), (0.125, 0.75), "2"),
    ]
    assert (view.share_of("location@1"), view.share_of("location@2")) == (0.75, 0.25)


def test_views_of_two_templates_meet_in_the_feeds_that_they_share() -> None:
    graph = graph_of([(1, 2, 0.5, 0.5)], [(1, 5.0), (2, 0.5)])
    assert {v.template for v in graph.consumers["location@1"]} == {"nearby", "circled"}
    assert of(graph, "circled")[0].rows[0].params == (5.0,)


def test_a_view_over_a_view_reads_the_physical_view_below_it() -> None:
    graph = graph_of([(1, 2, 0.5, 0.5), (2, 1, 0.5, 0.5)])
    lower = "nearby(location@1,location@2)"
    uppers = of(graph, "meet")
    assert [v.inputs for v in uppers] == [(lower, "status[free]@1"), (lower, "status[free]@2")]
    assert [v.rows[0].notified for v in uppers] == ["2", "1"]
    assert graph.origins(uppers[0].name) == {"1", "2"}


def test_a_view_over_one_stream_runs_on_every_known_device() -> None:
    program = read_program(DECLARED + "CREATE FEED VIEW north AS SELECT l.user FROM location l WHERE l.lat > 60;")
    graph = generate_views(program, ReferenceData(devices=(7, 8)))
    assert [v.inputs for v in graph.views.values()] == [("location[lat > 60]@7",), ("location[lat > 60]@8",)]
    with pytest.raises(FeedError, match="known devices are not listed"):
        generate_views(program, ReferenceData())


users = st.integers(1, 6)
friendships = st.lists(
    st.tuples(users, users, st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.2, 1.0])).filter(
        lambda row: row[0] != row[1]
    ),
    max_size=15,
)
circles = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.5, 2.0, 3.0])), max_size=6)


@settings(max_examples=examples(60))
@given(friendships, circles)
def test_the_graph_is_what_plain_loops_over_the_rows_give(
    friends: list[Friend], rings: list[tuple[int, float]]
) -> None:
    graph = graph_of(friends, rings)
    pairs = {frozenset({f"location@{u}", f"location@{v}"}) for u, v, _, _ in friends}
    assert {frozenset(view.inputs) for view in of(graph, "nearby")} == pairs
    for view in of(graph, "nearby"):
        for feed in view.inputs:
            wanted = [
                p if feed == f"location@{u}" else q
                for u, v, p, q in friends
                if {f"location@{u}", f"location@{v}"} == set(view.inputs)
            ]
            assert view.share_of(feed) == max(wanted)
    circled = {(u, v, r) for u, v, _, _ in friends for w, r in rings if w == u and r > 1}
    found = {(*row.devices, *row.params) for view in of(graph, "circled") for row in view.rows}
    assert found == circled


@settings(max_examples=examples(40))
@given(friendships, friendships)
def test_a_delta_leads_from_one_graph_to_the_other(before: list[Friend], after: list[Friend]) -> None:
    old, new = graph_of(before), graph_of(after)
    delta = old.delta_to(new)
    patched = {name: v for name, v in old.views.items() if name not in delta.removed}
    patched.update((v.name, v) for v in (*delta.added, *delta.changed))
    assert patched == dict(new.views)
    assert not old.delta_to(graph_of(list(reversed(before))))


@pytest.mark.parametrize(
    ("friends", "message"),
    [
        ([(1, 1, 0.5, 0.5)], "self edge"),
        ([(1, 9, 0.5, 0.5)], "unknown device 9"),
        ([(1, 2, -0.5, 0.5)], "share of 'a' is -0.5"),
        ([(1, 2, 0.5, 1.5)], "share of 'b' is 1.5"),
        ([(1, 2, None, 0.5)], "share of 'a'"),
        ([(1, None, 0.5, 0.5)], "names no device"),
        ([(1, 2, 0.5)], "row 0 of 'friends' has 3 values, expected 4"),
    ],
)
def test_a_wrong_reference_row_is_refused(friends: list[Friend], message: str) -> None:
    data = ReferenceData({"friends": friends, "circles": []}, devices=(1, 2, 3))
    with pytest.raises(FeedError, match=message):
        generate_views(PROGRAM, data)


def test_a_table_without_rows_given_is_refused() -> None:
    with pytest.raises(FeedError, match="no rows are given for the reference table 'circles'"):
        generate_views(PROGRAM, ReferenceData({"friends": []}))
