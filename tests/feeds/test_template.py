"""Feed templates: what is read, what is refused, and what an expression means on a device.

The oracle for expressions is SQLite, which has SQL's NULL and no code in common with the compiler.
"""

from __future__ import annotations

import math
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.language.expressions import compile_sql
from catchment.feeds.language.functions import BUILT_IN, FeedFunction, distance, with_functions
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import read_program
from tests.worlds.tiers import examples

DECLARED = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE STREAM status (user BIGINT, free BOOLEAN) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE, friend_share DOUBLE, radius DOUBLE);
"""
NEARBY = """CREATE FEED VIEW nearby WITH (lifetime = '30 seconds', notify_every = '1 minute') AS
SELECT a.user, b.user AS friend, distance(a.lat, a.lon, b.lat, b.lon) AS metres
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < f.radius AND a.speed > 5 AND f.radius > 0
  AND sample(a, f.share) AND sample(b, f.friend_share);
"""
MEET = """CREATE FEED VIEW meet AS SELECT n.user FROM nearby n JOIN status s ON s.user = n.friend
WHERE s.free;"""


def test_a_template_splits_its_conditions_by_what_they_need_to_know() -> None:
    nearby = read_program(DECLARED + NEARBY).templates["nearby"]
    a, b = nearby.inputs
    assert (a.device, a.where, a.share) == ("f.user", "speed > 5", "f.share")
    assert (b.device, b.where, b.share) == ("f.friend", None, "f.friend_share")
    assert nearby.static == "f.radius > 0"
    assert nearby.match == "DISTANCE(a.lat, a.lon, b.lat, b.lon) < f.radius"
    assert nearby.params == ("f.radius",)
    assert (nearby.lifetime_us, nearby.notify_every_us) == (30_000_000, 60_000_000)
    assert [o.static_sql for o in nearby.outputs] == ["f.user", "f.friend", None]


def test_only_the_columns_that_views_read_leave_a_device() -> None:
    program = read_program(DECLARED + NEARBY)
    assert program.pushed_columns == {"location[speed > 5]": ("lat", "lon"), "location": ("lat", "lon")}


def test_a_view_over_one_stream_is_unfolded_into_its_reader() -> None:
    layered = """
    CREATE FEED VIEW tracked AS SELECT l.user AS who, f.friend AS whom, l.lat + 1 AS y, l.lon AS x,
      f.radius AS r FROM location l JOIN friends f ON f.user = l.user WHERE l.speed > 5 AND sample(l, 0.5);
    CREATE FEED VIEW near AS SELECT t.who, b.user AS friend FROM tracked t JOIN location b ON t.whom = b.user
      WHERE distance(t.y, t.x, b.lat, b.lon) < t.r AND sample(t, 0.5);
    """
    program = read_program(DECLARED + layered)
    near = program.templates["near"]
    assert [t.table for t in near.tables] == ["friends"]
    assert near.inputs[0].where == "speed > 5"
    assert near.inputs[0].share == "(0.5) * (0.5)"
    assert near.inputs[0].device == "t__f.user"
    assert near.match == "DISTANCE((t.lat + 1), t.lon, b.lat, b.lon) < t__f.radius"
    assert program.consumed == {"tracked"}


def test_views_may_be_written_in_any_order() -> None:
    assert list(read_program(DECLARED + MEET + NEARBY).templates) == ["nearby", "meet"]


def test_a_condition_on_who_a_lower_view_row_is_for_is_checked_again_for_each_event() -> None:
    meet = read_program(DECLARED + NEARBY + MEET).templates["meet"]
    assert meet.inputs[1].device == "n.friend"
    assert meet.match == "n.user = n.__notified AND s.user = n.friend"


SELECT = "CREATE FEED VIEW v AS SELECT a.user FROM location a"
JOINED = f"{SELECT} JOIN friends f ON a.user = f.user"


@pytest.mark.parametrize(
    ("text", "line", "found", "possible"),
    [
        ("CREATE VIEW v AS SELECT 1", 5, "'VIEW' was not expected", "CREATE FEED VIEW name"),
        ("CREATE STREAM s (a TEXT) WITH (device = 'a')", 5, "column 'a' has TEXT", "BIGINT, INT, DOUBLE"),
        ("CREATE STREAM s (a INT) WITH (device = 'b')", 5, "found device = 'b'", "possible: a"),
        ("CREATE STREAM s (a INT)", 5, "stream 's' lacks the option 'device'", "whose event it is"),
        (
            "CREATE FEED VIEW v WITH (lifespan = '1 s') AS SELECT 1",
            5,
            "no option 'lifespan'",
            "lifetime, notify_every",
        ),
        ("CREATE FEED VIEW v AS\nSELECT a.latt FROM location a", 6, "'a.latt'", "user, lat, lon, speed"),
        ("CREATE FEED VIEW v AS\nSELECT c.lat FROM location a", 6, "alias 'c'", "possible: a"),
        (
            "CREATE FEED VIEW v AS SELECT a.lat\nFROM places a",
            6,
            "found 'places'",
            "friends, location, status, v",
        ),
        (f"{JOINED}\nWHERE dist(a.lat) < 1", 6, "function 'dist'", "distance, sample"),
        (f"{JOINED}\nWHERE distance(a.lat) < 1", 6, "takes 4 arguments", "found 1"),
        (f"{SELECT} LEFT JOIN friends f ON a.user = f.user", 5, "LEFT JOIN", "JOIN ... ON"),
        (f"{SELECT} GROUP BY a.user", 5, "found GROUP", "WHERE"),
        (f"{SELECT} JOIN location a ON true", 5, "alias 'a' twice", "alias"),
        (f"{SELECT} JOIN location b ON a.lat < b.lat", 5, "which devices 'a'", "a.user = table.column"),
        (f"{JOINED} WHERE\nsample(f, 0.5)", 6, "sample(alias, share)", "one of a"),
        (f"{JOINED} WHERE\nsample(a, a.lat)", 6, "'a.lat'", "reference tables"),
        (f"{JOINED} WHERE\nNOT sample(a, 1)", 6, "inside an expression", "AND"),
        (f"{SELECT} WHERE\na.lat LIKE 'x'", 6, "LIKE", "BETWEEN"),
        (f"{SELECT} WHERE\ncount(*) > 1", 6, "function 'count'", "distance, sample"),
        (JOINED.replace("a.user", "user", 1), 5, "ambiguous", "f.user"),
        ("CREATE FEED VIEW v AS SELECT * FROM location a", 5, "found '*'", "columns"),
        (
            "CREATE FEED VIEW v AS\nSELECT a.user FROM location a WHERE",
            6,
            "cannot be read",
            "JOIN stream, table or view",
        ),
        ("CREATE FEED VIEW v AS\nSELECT a.user FROM location a WHERE a.lat = 'x", 6, "never closed", "close it"),
        ("CREATE FEED VIEW location AS SELECT a.user FROM location a", 5, "'location'", "already declared"),
        ("CREATE TABLE friends (a INT)", 5, "'friends' is already declared", "here.sql:4:1"),
        ("CREATE TABLE devices (a INT)", 5, "'devices'", "reserved"),
    ],
)
def test_a_mistake_is_named_with_its_line_what_was_found_and_what_is_possible(
    text: str, line: int, found: str, possible: str
) -> None:
    with pytest.raises(FeedError) as caught:
        read_program(DECLARED + text, file="here.sql")
    message = str(caught.value)
    assert f"here.sql:{line}:" in message
    assert found in message
    assert possible in message


@pytest.mark.parametrize("written", ["'it''s'", r"'it\'s'", '"it\'s"'])
def test_a_quote_in_a_string_is_written_as_in_queries(written: str) -> None:
    """A doubled quote is a quote, as in Spark 4; what a device evaluates is what was written."""
    streams = "CREATE STREAM words (user BIGINT, word STRING) WITH (device = 'user');"
    program = read_program(f"{streams} CREATE FEED VIEW v AS SELECT w.user FROM words w WHERE w.word = {written}")
    compiled = compile_feeds(program)
    assert len(compiled.feeds_of("words", (1, "it's"))) == 1
    assert compiled.feeds_of("words", (1, "its")) == []
    evaluate = compile_sql(f"a.x = {written}", {"a.x": (0, 0)}, BUILT_IN)
    assert evaluate((("it's",),)) is True


def test_a_cycle_of_views_is_refused_and_named() -> None:
    cycle = """
    CREATE FEED VIEW one AS SELECT t.user FROM two t JOIN location b ON t.user = b.user;
    CREATE FEED VIEW two AS SELECT o.user FROM one o JOIN location b ON o.user = b.user;
    """
    with pytest.raises(FeedError, match=r"cycle of views: (one -> two -> one|two -> one -> two)"):
        read_program(DECLARED + cycle)


def test_a_registered_function_is_known_to_templates_and_is_not_called_with_null() -> None:
    calls: list[float] = []
    functions = with_functions(FeedFunction("twice", 1, lambda x: calls.append(x) or 2 * x))
    read_program(DECLARED + f"{SELECT} WHERE twice(a.lat) > 1", functions)
    evaluate = compile_sql("TWICE(a.x)", {"a.x": (0, 0)}, functions)
    assert evaluate(((3.0,),)) == 6.0
    assert evaluate(((None,),)) is None
    assert calls == [3.0]


def test_a_function_name_is_given_once() -> None:
    with pytest.raises(FeedError, match="already registered"):
        with_functions(FeedFunction("distance", 4, distance))


def test_distance_is_the_length_of_the_arc() -> None:
    quarter = math.pi / 2 * 6_371_008.8
    assert distance(0, 0, 0, 90) == pytest.approx(quarter)
    assert distance(90, 0, 0, 17) == pytest.approx(quarter)
    assert distance(48.3, 2.2, 48.3, 2.2) == 0


COLUMNS = ("a", "b", "c")
numbers = st.sampled_from(["0", "1", "2", "-3", "0.5", "NULL"])
scalars = st.recursive(
    st.one_of(numbers, st.sampled_from([f"t.{c}" for c in COLUMNS])),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/"]), inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("abs({})".format, inner),
    ),
    max_leaves=5,
)
comparisons = st.one_of(
    st.builds("({} {} {})".format, scalars, st.sampled_from(["<", "<=", "=", "<>", ">", ">="]), scalars),
    st.builds("({} BETWEEN {} AND {})".format, scalars, scalars, scalars),
    st.builds("({} IN ({}, {}))".format, scalars, numbers, numbers),
    st.builds("({} IS NULL)".format, scalars),
    st.builds("({} IS NOT NULL)".format, scalars),
)
predicates = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
        st.builds("(CASE WHEN {} THEN {} ELSE {} END)".format, inner, inner, inner),
    ),
    max_leaves=4,
)
values = st.one_of(st.none(), st.sampled_from([0.0, 1.0, -2.0, 0.5]))


@settings(max_examples=examples(150))
@given(predicates, st.tuples(values, values, values))
def test_a_compiled_predicate_says_what_sql_says(predicate: str, row: tuple[float | None, ...]) -> None:
    layout = {f"t.{c}": (0, at) for at, c in enumerate(COLUMNS)}
    ours = compile_sql(predicate, layout, BUILT_IN)((row,))
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a REAL, b REAL, c REAL)")
    database.execute("INSERT INTO t VALUES (?, ?, ?)", row)
    (theirs,) = database.execute(f"SELECT {predicate.replace('/', '* 1.0 /')} FROM t").fetchone()
    assert ours == (None if theirs is None else bool(theirs))
