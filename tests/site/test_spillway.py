"""Claims about the spillway: what it holds and lets go, what it learns, and that its numbers stay sound.

Whole runs are compared with the offline optimum and with hybrid:0.25 on traces made here; the benchmark
`edge_policies` does the same at length.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from catchment.aggregates import make_aggregate
from catchment.cli.progress import status_table
from catchment.deploy.deployment import Deployment
from catchment.errors import QueryError, SiteError
from catchment.progress.events import Ticked
from catchment.project.sections import Defaults
from catchment.query.fragment import Fragment, Key
from catchment.sim.edge.known_rates import simulate_known_counts, simulate_known_rates
from catchment.sim.edge.network import Bandwidth
from catchment.sim.edge.simulate import EdgeScenario, simulate
from catchment.sim.edge.synthetic import drifting, memoryless, sessions, zipf_rates
from catchment.site import cache
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, FragmentAdded, LinkMeasured, LowMarkRaised
from catchment.site.policies.base import DRAIN, DUE, PROBE, REASONS
from catchment.site.policies.key_rates import KEY_RATE_DECAY, KeyRates
from catchment.site.policies.registry import policy_by_name
from catchment.site.policies.spillway.forecast_deviation import ForecastDeviation
from catchment.site.policies.spillway.instants import INSTANTS, LEFT, instant_of
from catchment.site.policies.spillway.key_returns import ReturnTable, cells_of, estimate_rates
from catchment.site.policies.spillway.link_capacity import LinkCapacity
from catchment.site.policies.spillway.new_keys import NewKeyForecast, NewKeyRate
from catchment.site.policies.spillway.policy import MAX_READINGS, Spillway
from catchment.storage.codec import decode, encode
from catchment.timeline import WindowSpec
from tests.worlds.site_support import absorbed, fragment
from tests.worlds.tiers import examples

SECOND = 1_000_000
rng = np.random.default_rng(4)


def scenario(trace: object, c: float, distinct: float, believed: float = 1.0) -> EdgeScenario:
    return EdgeScenario(trace, 60 * SECOND, Bandwidth((c * distinct / 60,)), believed, 96)  # type: ignore[arg-type]


@pytest.mark.parametrize("believed", [0.5, 1.0, 2.0])
def test_on_a_fat_link_it_is_on_time_at_less_than_half_the_excess_of_hybrid(believed: float) -> None:
    found = scenario(memoryless(zipf_rates(800, 0.8, 1200), 12, 60.0, 11), 12, 520, believed)
    ours, theirs = simulate(found, "spillway"), simulate(found, "hybrid:0.25")
    best = simulate(found, "eager-optimal").staleness_s
    right_belief = simulate(scenario(found.trace, 12, 520), "hybrid:0.25")
    service_s = 60 / (12 * 520)
    assert np.mean(ours.staleness_s[1:] <= np.maximum(1.1 * best[1:], best[1:] + service_s)) >= 0.95
    assert ours.traffic_ratio - 1 < 0.5 * (right_belief.traffic_ratio - 1)
    assert not (theirs.traffic_ratio < ours.traffic_ratio and theirs.staleness_mean_s < ours.staleness_mean_s)


@pytest.mark.parametrize("c", [1.2, 2.0, 5.0])
def test_no_hybrid_is_better_on_both_metrics_when_rates_change(c: float) -> None:
    found = scenario(drifting(1200, zipf_rates(1500, 0.8, 1), 10, 60.0, 23), c, 700)
    ours = simulate(found, "spillway")
    for laziness in (0, 0.25, 0.5, 0.75, 1):
        other = simulate(found, f"hybrid:{laziness}")
        assert not (other.traffic_ratio < ours.traffic_ratio and other.staleness_mean_s < ours.staleness_mean_s), (
            laziness
        )


def test_on_a_memoryless_trace_learning_costs_at_most_half_more_than_knowing_the_rates() -> None:
    rates = zipf_rates(1000, 1.0, 1500)
    found = scenario(memoryless(rates, 16, 60.0, 5), 8, 430)
    ours, knowing = simulate(found, "spillway"), simulate_known_rates(found, rates / 60)
    assert ours.traffic_ratio - 1 <= 1.5 * (knowing.traffic_ratio - 1)


def test_the_counts_of_a_log_are_told_as_rates() -> None:
    trace = memoryless(zipf_rates(300, 0.8, 500), 1, 60.0, 8)
    found = scenario(trace, 4, 200)
    counts = np.bincount(trace.codes, minlength=trace.keys)
    assert simulate_known_counts(found).windows == simulate_known_rates(found, counts / 60).windows


def test_keys_that_come_in_bursts_are_sent_when_the_burst_is_over() -> None:
    found = scenario(sessions(400, 2000, 10, 60.0, 3), 4, 370)
    ours, theirs = simulate(found, "spillway"), simulate(found, "hybrid:0.25")
    assert ours.traffic_ratio < theirs.traffic_ratio
    assert ours.staleness_mean_s <= theirs.staleness_mean_s + 1e-3


def test_insurance_holds_less_back_and_pays_for_it() -> None:
    found = scenario(memoryless(zipf_rates(800, 0.8, 1200), 8, 60.0, 12), 6, 520)
    assert simulate(found, "spillway:2").traffic_ratio > simulate(found, "spillway").traffic_ratio


@pytest.mark.parametrize("name", ["spillway:0.5", "spillway:x", "spillway+lru", "spillway:1000"])
def test_a_wrong_spillway_is_refused(name: str) -> None:
    with pytest.raises(SiteError):
        policy_by_name(name)


def test_keys_that_are_worth_less_than_a_frame_leave_in_one() -> None:
    trace = memoryless(zipf_rates(40, 0.5, 400), 8, 60.0, 6)
    found = EdgeScenario(trace, 60 * SECOND, Bandwidth((20.0,)), steps=96, frame=60.0)
    assert [w.frames for w in simulate(found, "spillway").windows] == [1] * 8


def test_frames_are_paid_for_only_where_the_link_is_short() -> None:
    trace = memoryless(zipf_rates(2000, 0.7, 2600), 8, 60.0, 7)
    wire = {}
    for c in (3.0, 12.0):
        bandwidth = Bandwidth((c * 1250 / 60,))
        free, framed = (EdgeScenario(trace, 60 * SECOND, bandwidth, steps=96, frame=f) for f in (0.0, 30.0))
        ours, theirs = simulate(framed, "spillway"), simulate(framed, "hybrid:0.25")
        assert ours.staleness_mean_s <= theirs.staleness_mean_s
        wire[c] = [sum(w.updates + 30 * w.frames for w in o.windows) for o in (ours, theirs)]
        assert wire[c][0] < wire[c][1]
        assert sum(w.frames for w in ours.windows) < sum(w.frames for w in simulate(free, "spillway").windows)
    assert wire[12.0][0] < wire[3.0][0]


def test_a_slice_that_is_replayed_faster_than_it_was_is_looked_at_by_its_own_pace() -> None:
    of = fragment(windows=(WindowSpec.tumbling(3600 * SECOND),))
    core = core_of((of, 1.0), goodput=100.0)
    for tick in range(1, 30):  # an hour in 36 seconds; nobody has told the core
        core.handle(absorbed(of, [(tick * 100 * SECOND, f"k{tick}-{i}", 1) for i in range(40)]), tick * SECOND)
        core.handle(LowMarkRaised("s", tick * 100 * SECOND), tick * SECOND)
    assert core.fragment_status()["f"]["reasons"].get(DRAIN, 0) > 50


def test_a_link_of_which_nothing_is_known_is_not_remembered_as_one_that_carries_nothing() -> None:
    of = fragment(windows=LONG)
    core = SiteCore()
    core.handle(FragmentAdded(of, policy_by_name("spillway")), 0)
    core.handle(LowMarkRaised("s", 0), 0)
    for second in range(1, 60):
        core.handle(absorbed(of, [(second * SECOND, f"k{second}", 1)]), second * SECOND)
        core.handle(LowMarkRaised("s", second * SECOND), second * SECOND)
    assert set(core.fragment_status()["f"]["reasons"]) <= {PROBE}
    core.handle(LowMarkRaised("s", 100 * SECOND), 100 * SECOND)
    core.handle(LinkMeasured(1e6, 0, blocked=False), 100 * SECOND)
    sent = core.fragment_status()["f"]["updates"]
    for second in range(101, 190):
        core.handle(absorbed(of, [(second * SECOND, f"k{second}", 1)]), second * SECOND)
        core.handle(LowMarkRaised("s", second * SECOND), second * SECOND)
    assert core.fragment_status()["f"]["updates"] - sent < 10  # the link could carry all of them in no time


def test_it_is_the_default_of_projects() -> None:
    assert policy_by_name(Defaults().policy) == Spillway()


# --- its parts stay sound, whatever they are taught ---------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    slices=st.lists(st.lists(st.floats(0, 1.2), max_size=40), max_size=6),
    seen=st.integers(0, 1000),
    left=st.floats(0, 1),
    recent=st.floats(0, 1e6),
)
def test_the_inflow_is_never_negative(slices: list[list[float]], seen: int, left: float, recent: float) -> None:
    inflow = NewKeyForecast()
    for first_left in slices:
        inflow.learn(np.array(first_left))
    assert 0 <= inflow.to_come(seen, left, recent) < float("inf")
    again = decode(encode(inflow))
    assert again.to_come(seen, left, recent) == inflow.to_come(seen, left, recent)


@settings(max_examples=examples(60))
@given(
    readings=st.lists(
        st.tuples(st.integers(0, 99), st.floats(0, 1e9)), min_size=1, max_size=20, unique_by=lambda r: r[0]
    ),
    rate=st.floats(0, 1e9),
    left_s=st.floats(0, 200),
)
def test_no_more_is_counted_upon_than_the_link_usually_carries(
    readings: list[tuple[int, float]], rate: float, left_s: float
) -> None:
    capacity = LinkCapacity()
    capacity.learn(sorted((t * SECOND, r) for t, r in readings), 100 * SECOND, 100.0)
    usual = max(r for _, r in readings) * max(100.0, 100.0 - min(t for t, _ in readings))
    assert 0 <= capacity.until_due(rate, left_s, 100.0) <= usual * (1 + 1e-9)


def test_a_link_that_weakens_at_the_end_of_every_slice_is_expected_to() -> None:
    capacity = LinkCapacity()
    for _ in range(3):
        capacity.learn([(0, 10.0), (80 * SECOND, 5.0)], 100 * SECOND, 100.0)
    assert capacity.until_due(10.0, 50.0, 100.0) == pytest.approx(10 * 30 + 5 * 20, rel=0.05)
    assert capacity.until_due(5.0, 50.0, 100.0) == pytest.approx((10 * 30 + 5 * 20) / 2, rel=0.05)
    assert capacity.until_due(5.0, 10.0, 100.0) == pytest.approx(50.0, rel=0.05)


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 10_000), left=st.floats(0, 1), slices=st.integers(0, 3))
def test_chances_are_chances(seed: int, left: float, slices: int) -> None:
    draw = np.random.default_rng(seed)
    table = ReturnTable()
    records, past = draw.integers(1, 500, 50), draw.exponential(3, 50)
    for _ in range(slices):
        table.decay()
        for instant in range(INSTANTS):
            rates = estimate_rates(records, past, LEFT[instant], 0.5)
            table.learn(instant, cells_of(rates, records, draw.exponential(2, 50)), draw.random(50) < 0.5)
        table.settle()
    rates = estimate_rates(records, past, left, 1.0)
    chance = table.chance(rates, cells_of(rates, records, draw.exponential(2, 50)), left)
    assert ((chance >= 0) & (chance <= 1)).all()


def test_what_is_learned_outweighs_the_model() -> None:
    table = ReturnTable()
    records, past = np.full(4000, 3), np.full(4000, 3.0)
    rates = estimate_rates(records, past, 0.5, 1.0)
    cells = cells_of(rates, records, np.full(4000, 5.0))
    assert table.chance(rates, cells, 0.5)[0] > 0.7  # three records a slice, half of it left
    table.learn(instant_of(0.5), cells, np.arange(4000) < 40)
    table.settle()
    assert table.chance(rates, cells, 0.5)[0] == pytest.approx(0.01, abs=0.03)


@settings(max_examples=examples(60))
@given(
    slices=st.lists(
        st.dictionaries(st.integers(0, INSTANTS - 1), st.tuples(st.floats(0, 1e6), st.integers(0, 50))), max_size=5
    ),
    misses=st.integers(50, 5000),
)
def test_the_error_of_the_forecast_is_a_share(slices: list[dict[int, tuple[float, int]]], misses: int) -> None:
    error = ForecastDeviation()
    for forecasts in slices:
        error.learn(forecasts, misses)
    assert 0 <= error.share <= 1
    assert decode(encode(error)).share == error.share


def test_the_reserve_grows_with_what_the_forecasts_missed() -> None:
    right, wrong = ForecastDeviation(), ForecastDeviation()
    for _ in range(6):
        right.learn({20: (100.0, 0)}, 100)
        wrong.learn({20: (100.0, 0)}, 180)
    assert right.share < 0.1 < 0.3 < wrong.share


def test_the_recent_rate_survives_a_cache_that_forgot_keys() -> None:
    rate = NewKeyRate()
    rate.follow(100, 0.5)
    assert rate.follow(10, 0.6) >= 0


def test_key_rates_are_bounded_and_keep_the_most_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.site.policies.key_rates.MAX_KEYS", 3)
    rates = KeyRates()
    rates.learn(np.arange(6), np.arange(1, 7))
    assert rates.identities.tolist() == [3, 4, 5]


@pytest.mark.parametrize("spread", [1, 2**58 - 3])  # identities that lie close together, and all over
@pytest.mark.parametrize("seed", range(5))
def test_key_rates_are_those_of_a_dictionary(seed: int, spread: int) -> None:
    chance = np.random.default_rng(seed)
    rates = KeyRates()
    expected: dict[int, float] = {}
    for _ in range(20):
        # some stand twice, as keys of one hash would
        identities = spread * chance.integers(-30, 30, chance.integers(0, 40))
        arrivals = chance.integers(1, 9, len(identities))
        rates.learn(identities, arrivals)
        expected = {key: KEY_RATE_DECAY * rate for key, rate in expected.items()}
        for key, count in zip(identities.tolist(), arrivals.tolist(), strict=True):
            expected[key] = expected.get(key, 0.0) + (1 - KEY_RATE_DECAY) * count
        expected = {key: rate for key, rate in expected.items() if rate >= 0.02}
        assert rates.identities.tolist() == sorted(expected)
        asked = spread * np.arange(-31, 32)
        assert rates.lookup(asked) == pytest.approx([expected.get(key, 0.0) for key in asked.tolist()])


# --- in the site core ----------------------------------------------------------------------------------------


def core_of(*fragments: tuple[Fragment, float], goodput: float) -> SiteCore:
    core = SiteCore()
    for of, weight in fragments:
        core.handle(FragmentAdded(of, policy_by_name("spillway"), weight), 0)
    core.handle(LowMarkRaised("s", 0), 0)
    core.handle(LinkMeasured(goodput, 0, blocked=False), 0)
    return core


LONG = (WindowSpec.tumbling(100 * SECOND),)


def keys(count: int, at: int) -> list[tuple[int, str, int]]:
    return [(at, f"k{i}", 1) for i in range(count)]


def test_it_holds_everything_while_the_link_can_carry_it_and_drains_when_it_cannot() -> None:
    of = fragment(windows=LONG)
    core = core_of((of, 1.0), goodput=1e9)
    assert core.handle(absorbed(of, keys(500, SECOND)), SECOND) == ()
    assert core.fragment_status()["f"]["reasons"] == {}
    thin = core_of((of, 1.0), goodput=100.0)
    thin.handle(absorbed(of, keys(500, SECOND)), SECOND)
    for second in range(2, 90):
        thin.handle(LowMarkRaised("s", second * SECOND), second * SECOND)
    status = thin.fragment_status()["f"]
    assert status["reasons"][DRAIN] == status["updates"] > 0
    assert "load" in status["last_reason"]


def test_every_update_has_a_reason_and_restarts_keep_the_count() -> None:
    of = fragment(windows=LONG)
    core = core_of((of, 1.0), goodput=1e9)
    core.handle(absorbed(of, keys(7, SECOND)), SECOND)
    core.handle(LowMarkRaised("s", 100 * SECOND), 100 * SECOND)
    assert core.fragment_status()["f"]["reasons"] == {DUE: 7}
    again = core_of((of, 1.0), goodput=1e9)
    again.restore(decode(encode(core.snapshot())))
    assert again.fragment_status() == core.fragment_status()
    assert set(core.fragment_status()["f"]["reasons"]) <= set(REASONS)


def test_fragments_share_the_link_by_weight() -> None:
    heavy, light = fragment("heavy", LONG), fragment("light", LONG)
    core = core_of((heavy, 2.0), (light, 1.0), goodput=300.0)
    for of in (heavy, light):
        core.handle(absorbed(of, keys(2000, SECOND)), SECOND)
    for second in range(2, 90):
        core.handle(LowMarkRaised("s", second * SECOND), second * SECOND)
        core.handle(Ticked(), second * SECOND)
    sent = {name: status["updates"] for name, status in core.fragment_status().items()}
    assert sent["light"] > 20
    assert sent["heavy"] / sent["light"] == pytest.approx(2.0, rel=0.2)


def test_a_sketch_that_is_absorbed_many_times_is_merged_once_and_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    merges = []
    combine = cache.combine_fitting
    monkeypatch.setattr(cache, "combine_fitting", lambda *a: (merges.append(1), combine(*a))[1])
    distinct = make_aggregate("approx_count_distinct", "v", pa.int64(), name="d")
    of = Fragment("f", "s", "ts", (Key("k", "k", pa.string()),), (distinct,), LONG)
    core = core_of((of, 1.0), goodput=1e9)
    sent = 0
    for second in range(1, 50):
        table = pa.table({"slice_us": [0], "k": ["a"], "v": [second]})
        core.handle(Absorbed("f", cache_lift(table, of), ((0, 1),)), second * SECOND)
    sent += sum(a.rows for a in core.handle(LowMarkRaised("s", 100 * SECOND), 100 * SECOND))
    assert (sent, len(merges)) == (1, 1)


def cache_lift(raw: pa.Table, of: Fragment) -> pa.Table:
    from catchment.aggregates.partials import lift

    return lift(raw, ("slice_us", "k"), of.aggregates, {"d": "v"})


def test_a_stream_that_stands_still_does_not_pile_up_readings() -> None:
    of = fragment(windows=LONG)
    core = core_of((of, 1.0), goodput=1e4)
    core.handle(absorbed(of, keys(50, SECOND)), SECOND)
    for tick in range(2 * MAX_READINGS):
        core.handle(LinkMeasured(1e4 * (1 + tick % 7), 10**6, blocked=False), (200 + tick) * SECOND)
    state = core.snapshot().fragments["f"].gate.policy_state
    assert len(state.looks[0].rates) <= MAX_READINGS


def test_the_status_tells_why_updates_left_within_the_width_of_a_terminal() -> None:
    of = fragment(windows=LONG)
    core = core_of((of, 1.0), goodput=1e9)
    core.handle(absorbed(of, keys(7, SECOND)), SECOND)
    core.handle(LowMarkRaised("s", 100 * SECOND), 100 * SECOND)
    site = {
        "rows": 7,
        "newest_event_us": SECOND,
        "bytes_sent": 100,
        "pending_rows": 0,
        "connected": True,
        "last_error": None,
        "fragments": core.fragment_status(),
    }
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(status_table({"sites": {"eu": site}, "center": None}))
    (line,) = [line for line in console.export_text().splitlines() if "spillway" in line]
    assert line.split() == ["eu", "f", "spillway", "7", "due", "7"]


def test_views_weigh_their_share_of_the_link_in_sql(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "catchment.toml").write_text(
        '[project]\nname = "p"\ncenter = "c"\n[sites.c]\n[sites.us]\n[[links]]\nfrom = "us"\nto = "c"\n'
    )
    select = "SELECT window.start, {0}, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), {0}"
    (tmp_path / "queries" / "q.sql").write_text(
        "CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT) WITH (event_time = 'ts', sites = 'us', path = 'd');\n"
        f"CREATE MATERIALIZED VIEW pages WITH (weight = 2) AS {select.format('page')};\n"
        f"CREATE MATERIALIZED VIEW users AS {select.format('user')};\n"
    )
    plans = {p.fragment.key_names[0].split("_")[0]: p for p in Deployment.load(tmp_path).fragments_at("us")}
    assert {key: (p.weight, p.policy.name) for key, p in plans.items()} == {
        "page": (2.0, "spillway"),
        "user": (1.0, "spillway"),
    }
    bad = (tmp_path / "queries" / "q.sql").read_text().replace("weight = 2", "weight = 0")
    (tmp_path / "queries" / "q.sql").write_text(bad)
    with pytest.raises(QueryError, match="weight"):
        Deployment.load(tmp_path)
