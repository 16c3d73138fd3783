"""The parts of the order simulation: traces, generated disorder, answers, the clairvoyant, repair."""

from __future__ import annotations

from math import fsum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from catchment.errors import SimulationError
from catchment.quality.contract import Contract, Measure
from catchment.sim.order.answers import Windows, answers, errors
from catchment.sim.order.generated_traces import LIKE, Disorder, generate, measure
from catchment.sim.order.oracle import oracle
from catchment.sim.order.repair import RepairPolicy, repair
from catchment.sim.order.replay import cut_in_steps, step_of
from catchment.sim.order.trace import ArrivalTrace, read_trace, write_trace
from catchment.timeline import SECOND_US, Window, WindowSpec
from tests.worlds.tiers import examples

MEASURES = ("sum", "count", "avg", "median", "quantile:0.9")
STEP = 10


def trace_of(records: list[tuple[int, int, float]]) -> ArrivalTrace:
    """Records (event, delay, value) in the order in which they arrive."""
    ordered = sorted(records, key=lambda r: r[0] + r[1])
    return ArrivalTrace(
        event_us=np.array([e for e, _, _ in ordered], dtype=np.int64),
        arrival_us=np.array([e + d for e, d, _ in ordered], dtype=np.int64),
        value=np.array([v for *_, v in ordered], dtype=np.float64),
        source=np.zeros(len(ordered), dtype=np.int32),
    )


RECORDS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 300), st.floats(0.5, 9.0)), min_size=3, max_size=40
).filter(lambda rows: max(r[0] for r in rows) >= 120)
SPECS = st.sampled_from([WindowSpec(100, 100), WindowSpec(100, 20), WindowSpec(100, 30)])


@pytest.mark.parametrize("like", ["game1", "game2"])
def test_a_generated_stream_has_the_figures_of_the_measured_one(like: str) -> None:
    wanted, made = LIKE[like], generate(LIKE[like], seed=3)
    figures = measure(made.event_us)
    assert figures.tuples == wanted.tuples
    assert figures.late_share == pytest.approx(wanted.late_share, abs=0.002)
    assert figures.max_delay_s == pytest.approx(wanted.max_delay_s, abs=0.05)
    assert figures.mean_delay_s == pytest.approx(wanted.mean_delay_s, abs=0.0005)


def test_a_generated_stream_is_in_order_within_sources_and_the_same_for_the_same_seed() -> None:
    wanted = LIKE["game2"].shorten(20_000)
    made, again, other = (generate(wanted, seed) for seed in (1, 1, 2))
    assert np.array_equal(made.event_us, again.event_us)
    assert not np.array_equal(made.event_us, other.event_us)
    for source in range(len(made.sources)):
        mine = made.event_us[made.source == source]
        assert (np.diff(mine) >= 0).all()


@pytest.mark.parametrize("change", [{"tuples": 10}, {"late_share": 1.5}, {"mean_delay_s": 20.0}, {"sources": 1}])
def test_a_stream_that_cannot_be_generated_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(SimulationError, match="cannot generate"):
        Disorder(**{**vars(LIKE["game1"]), **change})


@settings(max_examples=examples(40))
@given(records=RECORDS, spec=SPECS, name=st.sampled_from(MEASURES), cut=st.integers(0, 700))
def test_answers_are_those_of_a_loop_over_windows_and_records(
    records: list[tuple[int, int, float]], spec: WindowSpec, name: str, cut: int
) -> None:
    trace, what = trace_of(records), Measure.parse(name)
    windows = Windows.of(trace, spec)
    known = trace.arrival_us[windows.record] <= cut
    got, whole = answers(trace, windows, what, known), answers(trace, windows, what)
    off = errors(trace, windows, what, got.value, whole)
    newest = trace.event_us.max()
    expected = sorted({w for e in trace.event_us.tolist() for w in spec.containing(e) if w.end_us <= newest})
    assert [w.end_us for w in expected] == windows.ends_us.tolist()
    for i, window in enumerate(expected):
        everything, held = _values(trace, window, None), _values(trace, window, cut)
        assert got.count[i] == len(held)
        assert off[i] == pytest.approx(_error(what, held, everything), rel=1e-9)


def _values(trace: ArrivalTrace, window: Window, until: int | None) -> list[float]:
    return [
        v
        for e, a, v in zip(trace.event_us.tolist(), trace.arrival_us.tolist(), trace.value.tolist(), strict=True)
        if window.start_us <= e < window.end_us and (until is None or a <= until)
    ]


def _answer(what: Measure, values: list[float]) -> float:
    if what.name in ("sum", "count"):
        return fsum(values) if what.name == "sum" else float(len(values))
    if what.name == "avg":
        return fsum(values) / len(values)
    return float(np.quantile(values, what.p, method="inverted_cdf"))


def _error(what: Measure, held: list[float], everything: list[float]) -> float:
    if not held:
        return 1.0 if what.name in ("sum", "count") else np.inf
    said = _answer(what, held)
    if what.name != "quantile":
        truth = _answer(what, everything)
        return abs(said - truth) / abs(truth)
    below = sum(v < said for v in everything) / len(everything)
    upto = sum(v <= said for v in everything) / len(everything)
    return max(below - what.p, what.p - upto, 0.0)


@settings(max_examples=examples(40))
@given(records=RECORDS, spec=SPECS, name=st.sampled_from(MEASURES), eps=st.sampled_from([0.05, 0.2]))
def test_the_clairvoyant_publishes_at_the_first_step_at_which_an_answer_is_right(
    records: list[tuple[int, int, float]], spec: WindowSpec, name: str, eps: float
) -> None:
    trace, what = trace_of(records), Measure.parse(name)
    windows = Windows.of(trace, spec)
    assume(len(windows) > 0)
    waits = []
    for end in windows.ends_us.tolist():
        window, at = Window(end - spec.size_us, end), -(-end // STEP) * STEP
        everything = _values(trace, window, None)
        while _error(what, _values(trace, window, at), everything) >= eps:
            at += STEP
        waits.append(at - end)
    found = oracle(trace, windows, what, Contract(eps, 0.75), STEP)
    assert found.strict_latency_s * SECOND_US == pytest.approx(np.mean(waits), abs=1e-6)
    kept = sorted(waits)[: len(waits) - int(0.25 * len(waits))]
    assert found.latency_s * SECOND_US >= sum(kept) / len(waits) - 1e-6
    assert found.latency_s <= found.strict_latency_s + 1e-12


@settings(max_examples=examples(60))
@given(records=RECORDS, spec=SPECS, name=st.sampled_from(MEASURES), seed=st.integers(0, 99))
def test_whatever_was_late_repair_ends_with_the_batch_answer(
    records: list[tuple[int, int, float]], spec: WindowSpec, name: str, seed: int
) -> None:
    trace = trace_of(records)
    windows = Windows.of(trace, spec)
    closed_at = windows.ends_us + np.random.default_rng(seed).integers(0, 200, len(windows))
    policy = RepairPolicy(spread_us=50, max_records=4, max_age_us=60)
    done = repair(trace, windows, closed_at, Measure.parse(name), policy, STEP)
    assert done.final_exact
    late = ~done.known
    assert (step_of(trace, STEP)[windows.record[late]] > closed_at[windows.window[late]]).all()
    assert done.late_records == len(set(windows.record[late].tolist()))
    assert done.repaired_windows == len(set(windows.window[late].tolist()))


@settings(max_examples=examples(60))
@given(records=RECORDS, spec=SPECS)
def test_every_late_record_is_repaired_after_it_arrived_and_before_the_timer_has_run_out(
    records: list[tuple[int, int, float]], spec: WindowSpec
) -> None:
    trace = trace_of(records)
    windows = Windows.of(trace, spec)
    policy = RepairPolicy(spread_us=80, max_records=5, max_age_us=60)
    done = repair(trace, windows, windows.ends_us, Measure("sum"), policy, STEP)
    late = ~done.known
    waited = done.repaired_at_us[late] - step_of(trace, STEP)[windows.record[late]]
    assert (waited >= 0).all()
    assert (waited <= 60 + STEP).all()


def test_without_the_timer_a_late_record_would_wait_for_ever() -> None:
    """One late record has no spread of event times: the trigger on spread alone never fires."""
    trace = trace_of([(10, 400, 1.0), (20, 0, 1.0), (500, 0, 1.0)])
    windows = Windows.of(trace, WindowSpec(100, 100))
    done = repair(trace, windows, windows.ends_us, Measure("sum"), RepairPolicy(max_age_us=100), STEP)
    assert done.late_records == 1
    assert done.repaired_at_us.max() == 410 + 100


def test_one_record_in_a_thousand_late_costs_less_than_a_hundredth_of_the_work() -> None:
    rng = np.random.default_rng(1)
    events = np.sort(rng.integers(0, 60 * SECOND_US, 60_000))
    delays = np.where(rng.uniform(size=60_000) < 0.001, 3 * SECOND_US, 1000)
    trace = trace_of(list(zip(events.tolist(), delays.tolist(), rng.gamma(2, 1, 60_000).tolist(), strict=True)))
    windows = Windows.of(trace, WindowSpec(SECOND_US // 2, SECOND_US // 10))
    done = repair(trace, windows, windows.ends_us + 100_000, Measure("sum"), RepairPolicy(), 10_000)
    assert 40 <= done.late_records <= 90
    assert done.items <= 0.01 * len(trace)
    assert done.items < done.reread_items / 50
    assert done.final_exact


def test_steps_hold_every_record_once_and_the_clock_goes_on_between_them() -> None:
    trace = trace_of([(5, 0, 1.0), (7, 1, 2.0), (200, 0, 4.0)])
    steps = cut_in_steps(trace, WindowSpec(100, 50), STEP)
    batches = list(steps.batches())
    assert [at for at, _ in batches] == list(range(10, 201, 10))
    assert sum(float(b.total.sum()) for _, b in batches) == 7.0
    assert [at for at, b in batches if len(b)] == [10, 200]


def test_a_trace_comes_back_from_a_file_as_it_was_written(tmp_path: Path) -> None:
    made = generate(LIKE["game1"].shorten(5_000), seed=5)
    for name in ("t.csv", "t.parquet"):
        write_trace(made, tmp_path / name)
        back = read_trace(tmp_path / name)
        assert np.array_equal(back.event_us, made.event_us)
        assert np.array_equal(back.arrival_us, made.arrival_us)
        assert np.array_equal(back.value, made.value)
        assert [back.sources[i] for i in back.source[:50]] == [made.sources[i] for i in made.source[:50]]


def test_times_may_be_timestamps_and_sources_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "event_time,arrival_time,value,key\n2024-05-01T12:00:00.25,2024-05-01T12:00:01,3,a\n"
        "2024-05-01T12:00:00,2024-05-01T12:00:02,4,b\n"
    )
    trace = read_trace(tmp_path / "t.csv")
    assert np.diff(trace.event_us).tolist() == [-250_000]
    assert np.diff(trace.arrival_us).tolist() == [SECOND_US]
    assert trace.sources == ("stream",)
    assert trace.keys == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("event_time,value\n1,2\n", "no column arrival_time"),
        ("event_time,arrival_time,value\n", "no records"),
        ("event_time,arrival_time,value\n1,5,1\n2,4,1\n", "record 1 of 2 arrives"),
        ("event_time,arrival_time,value\n1,5,x\n", "not numbers"),
        ("event_time,arrival_time,value\n1,5,nan\n", "not a finite number"),
        ("event_time,arrival_time,value\nsoon,5,1\n", "not seconds or timestamps"),
        ("event_time,arrival_time,value\n1,5,1\n,6,1\n", "record 2 has no event_time"),
        ("event_time,arrival_time,value\n1e300,5,1\n", "impossible event_time"),
        ("event_time,arrival_time,value\n1,2\n", "cannot read the trace"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SimulationError, match=message) as caught:
        read_trace(tmp_path / "t.csv")
    assert "t.csv" in str(caught.value)


def test_files_of_other_formats_and_missing_ones_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"event_time": [1.0]}), tmp_path / "t.parquet")
    for name, message in (("t.orc", "format"), ("none.csv", "no such trace"), ("t.parquet", "no column")):
        with pytest.raises(SimulationError, match=message):
            read_trace(tmp_path / name)
