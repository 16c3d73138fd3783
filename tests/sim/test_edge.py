"""Claims about the edge simulator: against a plain per-record reference, the offline optima, and the site
core.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.errors import SimulationError
from catchment.query.fragment import Fragment, Key
from catchment.sim.edge.network import Bandwidth, FifoLink
from catchment.sim.edge.offline_optimum import optimal_windows
from catchment.sim.edge.simulate import EdgeScenario, simulate, simulate_online, step_ends
from catchment.sim.edge.traces import KeyTrace, trace_of
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, FragmentAdded, LinkMeasured, LowMarkRaised
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import WindowSpec
from tests.worlds import edge_reference as reference
from tests.worlds.tiers import examples

W = 1_000_000
SIZES = ("uniform", "nonuniform", "eager-empirical", "lazy-pessimistic", "lazy-optimistic", "lazy-empirical")
ONLINE = (
    "streaming",
    "batching",
    *SIZES,
    "hybrid:0",
    "hybrid:0.25",
    "hybrid:1",
    "hybrid:0.25+lru",
    "uniform+lru",
)


@st.composite
def traces(draw: st.DrawFn, windows: int = 3, most: int = 60) -> KeyTrace:
    """Records at distinct instants over a few windows, keys unevenly often."""
    times = draw(st.sets(st.integers(0, windows * W - 1), min_size=1, max_size=most))
    keys = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6]), min_size=len(times), max_size=len(times)))
    return trace_of(sorted(times), keys)


def records_of(trace: KeyTrace) -> list[tuple[int, int]]:
    return list(zip(trace.ts_us.tolist(), trace.codes.tolist(), strict=True))


def zipf_trace(records: int, windows: int, keys: int = 400, seed: int = 5) -> KeyTrace:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.choice(windows * W, records, replace=False))
    return trace_of(times, rng.zipf(1.3, records) % keys)


@pytest.mark.parametrize("name", ONLINE)
@settings(max_examples=examples(25))
@given(trace=traces(), rate=st.sampled_from([3.0, 10.0, 40.0]), believed=st.sampled_from([0.5, 1.0, 2.0]))
def test_the_simulator_agrees_with_the_per_record_reference(
    name: str, trace: KeyTrace, rate: float, believed: float
) -> None:
    scenario = EdgeScenario(trace, W, Bandwidth((rate,)), believed, steps=8192)
    head, _, eviction = name.partition("+")
    sizing, _, laziness = head.partition(":")
    expected = reference.run(
        records_of(trace),
        W,
        rate,
        sizing,
        laziness=float(laziness) if laziness else None,
        eviction=eviction or "lfu",
        believed=believed,
        ticks_us=tuple(step_ends(W, 128, 0.5e6 / rate)[:-1].tolist()),
    )
    outcome = simulate(scenario, name)
    assert [w.updates for w in outcome.windows] == [updates for updates, _ in expected]
    assert [w.staleness_s for w in outcome.windows] == pytest.approx([s for _, s in expected], abs=1e-6)


@pytest.mark.parametrize("name", ["hybrid:0.25", "uniform", "lazy-pessimistic", "eager-empirical"])
def test_coarse_steps_come_close_to_record_by_record(name: str) -> None:
    rng = np.random.default_rng(2)
    trace = trace_of(np.sort(rng.choice(3 * W, 4500, replace=False)), rng.integers(0, 1000, 4500))
    bandwidth = Bandwidth((5000.0,))
    exact = simulate(EdgeScenario(trace, W, bandwidth, steps=4500), name)
    coarse = simulate(EdgeScenario(trace, W, bandwidth, steps=256), name)
    assert coarse.traffic_ratio == pytest.approx(exact.traffic_ratio, rel=0.02)
    assert coarse.staleness_mean_s == pytest.approx(exact.staleness_mean_s, abs=1 / 256)


@settings(max_examples=examples(80))
@given(
    trace=traces(),
    data=st.data(),
    rates=st.sampled_from([((5.0,), (0.0,)), ((20.0, 4.0, 9.0), (0.0, 0.7, 1.9))]),
)
def test_any_schedule_between_eager_and_lazy_is_optimal(
    trace: KeyTrace, data: st.DataObject, rates: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    """Theorem 5: one update a key, and no staleness beyond the least possible."""
    bandwidth = Bandwidth(*rates)
    link = FifoLink(bandwidth)
    for window in optimal_windows(trace, W, bandwidth):
        share = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(window.codes), max_size=len(window.codes))))
        sends = window.eager_s + share * (window.lazy_s - window.eager_s)
        assert (window.lazy_s >= window.eager_s).all()
        for at_s in np.sort(sends):
            link.send(1, float(at_s))
        end_s = (window.start_us + W) / 1e6
        assert max(link.finish_s() - end_s, 0.0) == pytest.approx(window.staleness_s, abs=1e-6)


@settings(max_examples=examples(60))
@given(trace=traces(windows=1), rate=st.sampled_from([2.0, 8.0, 30.0]))
def test_the_least_staleness_is_ruled_by_the_keys_still_to_come(trace: KeyTrace, rate: float) -> None:
    """Lemma 2: what must still be sent at t fits into [t, T + S); if S > 0, somewhere exactly."""
    (window,) = optimal_windows(trace, W, Bandwidth((rate,)))
    last = {code: at for at, code in records_of(trace)}
    spare = [
        rate * (1.0 + window.staleness_s - at / 1e6) - sum(later >= at for later in last.values())
        for at in last.values()
    ]
    assert min(spare) >= -1e-6
    if window.staleness_s > 0:
        assert min(spare) == pytest.approx(0.0, abs=1e-6)


@settings(max_examples=examples(60))
@given(trace=traces(windows=1), rate=st.sampled_from([2.0, 8.0]), which=st.integers(0, 6))
def test_a_send_later_than_lazy_makes_the_window_staler(trace: KeyTrace, rate: float, which: int) -> None:
    """Theorem 4: the lazy schedule has no slack left."""
    (window,) = optimal_windows(trace, W, Bandwidth((rate,)))
    sends = window.lazy_s.copy()
    sends[which % len(sends)] += 0.9 / rate
    queue = reference.Queue(rate)
    done = [queue.send(float(at)) for at in np.sort(sends)]
    assert done[-1] - 1.0 > window.staleness_s + 1e-9


@pytest.mark.parametrize("name", [*ONLINE, "spillway", "spillway:2"])
@settings(max_examples=examples(15))
@given(trace=traces())
def test_no_policy_sends_less_than_one_update_a_key_or_beats_the_least_staleness(name: str, trace: KeyTrace) -> None:
    """Lemma 1, and what the offline optimum is for."""
    scenario = EdgeScenario(trace, W, Bandwidth((6.0,)), steps=8192)
    optimum = simulate(scenario, "eager-optimal")
    for window, best in zip(simulate(scenario, name).windows, optimum.windows, strict=True):
        assert window.distinct == best.updates <= window.updates
        # The first window's optimum finds an idle link; later ones may differ in what they left behind.
        if window.start_s == optimum.windows[0].start_s:
            assert window.staleness_s >= best.staleness_s - 1e-6


def test_batching_is_traffic_optimal_and_streaming_is_stale_on_a_thin_link() -> None:
    trace = zipf_trace(4000, 5)
    thin = EdgeScenario(trace, W, Bandwidth((300.0,)))
    fat = EdgeScenario(trace, W, Bandwidth((8000.0,)))
    assert simulate(thin, "batching").traffic_ratio == 1.0
    assert simulate(thin, "streaming").staleness_mean_s > 3 * simulate(thin, "batching").staleness_mean_s
    assert simulate(fat, "batching").staleness_mean_s > 20 * simulate(fat, "streaming").staleness_mean_s
    assert simulate(fat, "lazy-optimal").staleness_mean_s == simulate(fat, "eager-optimal").staleness_mean_s


@pytest.mark.parametrize("name", ["uniform", "eager-empirical", "lazy-optimistic", "hybrid:0.25", "hybrid:0.25+lru"])
def test_the_site_core_sends_what_the_simulator_sends(name: str) -> None:
    rate = 300.0
    trace = once_a_step(zipf_trace(1500, 3, keys=200), step_ends(W, 64, 0.5e6 / rate))
    scenario = EdgeScenario(trace, W, Bandwidth((rate,)), steps=64)
    of = Fragment(
        "f",
        "s",
        "ts",
        (Key("k", "k", pa.int64()),),
        (make_aggregate("count", "*", None, name="n"),),
        (WindowSpec.tumbling(W),),
    )
    core = SiteCore()
    core.handle(FragmentAdded(of, policy_by_name(name)), 0)
    core.handle(LinkMeasured(rate * ROW_BYTES, 0, blocked=False), 0)
    sent = [
        sum(_core_step(core, of, trace, start, a, b) for a, b in pairwise([-1, *step_ends(W, 64, 0.5e6 / rate)]))
        for start in range(0, 3 * W, W)
    ]
    assert sent == [w.updates for w in simulate_online(scenario, policy_by_name(name)).windows]


@pytest.mark.parametrize("name", ["spillway", "spillway:2", "hybrid:0.25"])
@pytest.mark.parametrize("rate", [150.0, 900.0])
def test_the_site_core_sends_what_the_simulator_sends_when_it_hears_of_the_queue(name: str, rate: float) -> None:
    ends = step_ends(W, 64, 0.5e6 / rate)
    trace = once_a_step(zipf_trace(1500, 4, keys=200), ends)
    scenario = EdgeScenario(trace, W, Bandwidth((rate,)), steps=64)
    of = Fragment(
        "f",
        "s",
        "ts",
        (Key("k", "k", pa.int64()),),
        (make_aggregate("count", "*", None, name="n"),),
        (WindowSpec.tumbling(W),),
    )
    core, link, sent = SiteCore(), FifoLink(Bandwidth((rate,))), []
    core.handle(FragmentAdded(of, policy_by_name(name)), 0)
    for start in range(0, 4 * W, W):
        core.handle(LowMarkRaised("s", start), start)
        sent.append(0)
        for after, until in pairwise([-1, *ends.tolist()]):
            link.measure((start + until) / 1e6)
            queued, goodput = link.queue_length((start + until) / 1e6), link.goodput or rate
            core.handle(LinkMeasured(None, 0, blocked=True), start + until)
            _absorb_step(core, trace, start, after, until)
            core.handle(LowMarkRaised("s", start + until), start + until)
            measured = LinkMeasured(goodput * ROW_BYTES, queued * ROW_BYTES, blocked=False)  # type: ignore[arg-type]
            rows = sum(a.rows for a in core.handle(measured, start + until))
            link.send(rows, (start + until) / 1e6)
            sent[-1] += rows
            core.validate()
    assert sent == [w.updates for w in simulate_online(scenario, policy_by_name(name)).windows]


ROW_BYTES = 24  # slice, key and count


def once_a_step(trace: KeyTrace, ends: npt.NDArray[np.int64]) -> KeyTrace:
    """As a core sees it: all records of a step come at its end, those of one key as one arrival."""
    window, step = trace.ts_us // W, np.searchsorted(ends, trace.ts_us % W, "left")
    ts_us = window * W + np.minimum(ends[step], W - 1)
    pairs = np.unique(np.stack([ts_us, trace.codes]), axis=1)
    return KeyTrace(pairs[0], pairs[1])


def _core_step(core: SiteCore, of: Fragment, trace: KeyTrace, start: int, after: int, until: int) -> int:
    """The records of (after, until] as one micro-batch, then the low mark; how many updates left."""
    rows = _absorb_step(core, trace, start, after, until)
    rows += sum(a.rows for a in core.handle(LowMarkRaised("s", start + until), start + until))
    core.validate()
    return rows


def _absorb_step(core: SiteCore, trace: KeyTrace, start: int, after: int, until: int) -> int:
    inside = (trace.ts_us > start + after) & (trace.ts_us <= start + min(until, W - 1))
    keys, counts = np.unique(trace.codes[inside], return_counts=True)
    if not len(keys):
        return 0
    partials = pa.table({"slice_us": np.full(len(keys), start), "k": keys, "n__count": counts})
    return sum(a.rows for a in core.handle(Absorbed("f", partials), start + until))


@settings(max_examples=examples(50))
@given(
    rates=st.lists(st.floats(0.5, 50), min_size=3, max_size=3),
    sends=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=8),
)
def test_the_link_serves_in_order_at_the_bandwidth_of_the_time(
    rates: list[float], sends: list[tuple[float, int]]
) -> None:
    """Against a clock that moves in small steps."""
    bandwidth = Bandwidth(tuple(rates), (0.0, 3.0, 6.0))
    link, work, at_s, dt = FifoLink(bandwidth), 0.0, 0.0, 0.001
    todo = sorted(sends)
    while todo or work > 0:
        while todo and todo[0][0] <= at_s:
            link.send(todo[0][1], todo[0][0])
            work += todo.pop(0)[1]
        work = max(work - rates[0 if at_s < 3 else 1 if at_s < 6 else 2] * dt, 0.0)
        at_s += dt
    assume(at_s < 200)
    assert link.finish_s() == pytest.approx(at_s, abs=0.05)


def test_a_frame_counts_on_the_link_and_is_refused_when_negative() -> None:
    trace = zipf_trace(1500, 3, keys=200)
    plain, framed = (EdgeScenario(trace, W, Bandwidth((400.0,)), steps=64, frame=f) for f in (0.0, 50.0))
    one, other = simulate(plain, "batching"), simulate(framed, "batching")
    assert [w.updates for w in one.windows] == [w.updates for w in other.windows]
    assert np.allclose(other.staleness_s - one.staleness_s, 50 / 400, atol=1e-3)
    with pytest.raises(SimulationError, match="frame"):
        EdgeScenario(trace, W, Bandwidth((400.0,)), frame=-1.0)
