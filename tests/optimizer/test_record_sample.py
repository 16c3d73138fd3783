"""What a sample of records says of the bytes of fragments, against what those fragments really send.

The oracle lifts the partials of all records slice by slice and packs them as the wire does. Catches an estimate that
takes dependent columns for independent ones, that counts what a condition drops, or that scales sketches wrongly.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.deploy.reports.recent_records import read_newest
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import FragmentDemand
from catchment.optimizer.sharing.demand_estimate import HEADER_BYTES, StreamStatistics
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.record_sample import MAX_RECORDS, RecordSample
from catchment.optimizer.sharing.statistics import Statistics
from catchment.query.fragment import SLICE_COLUMN
from catchment.wire.frames.codec import pack_table
from tests.worlds.sharing_support import SECOND, lift_fragment, make_queries, select

ROWS_PER_S = 20
SPAN_S = 600


def packed_size(table: pa.Table) -> int:
    return len(pack_table(table).data)


def make_visits(seed: int) -> pa.Table:
    """Records of some hundred pages, few of them frequent, each with one country and one kind of user."""
    rng = np.random.default_rng(seed)
    count = ROWS_PER_S * SPAN_S
    page = np.minimum(rng.zipf(1.4, count), 400)
    return pa.table(
        {
            "ts": pa.array(np.sort(rng.integers(0, SPAN_S * SECOND, count)), pa.int64()),
            "page": pa.array([f"page {p}" for p in page.tolist()]),
            "user": pa.array(rng.integers(0, 50, count), pa.int32()),
            "country": pa.array([("us", "de", "fr", None)[p % 4] for p in page.tolist()]),
            "bytes": pa.array(rng.integers(0, 5_000, count), pa.int64()),
            "ms": pa.array(rng.random(count)),
            "bot": pa.array(page % 5 == 0),
        }
    )


def sample_of(records: pa.Table) -> RecordSample:
    timed = records.set_column(0, "ts", records["ts"].cast(pa.timestamp("us", tz="UTC")))
    return RecordSample.newest("hits", timed, "ts", packed_size)


def sampled(records: pa.Table) -> Statistics:
    by_column = {"page": 400.0, "country": 4.0, "user": 50.0, "bot": 2.0}
    known = StreamStatistics({"us": ROWS_PER_S}, 60, by_column, samples={"us": sample_of(records)})
    return Statistics({"hits": known})


def sent_per_s(records: pa.Table, demand: FragmentDemand) -> float:
    """What the fragment sends: one message per slice."""
    partials = lift_fragment(records, demand.fragment())
    starts = partials[SLICE_COLUMN].to_numpy()
    messages = [partials.filter(pa.array(starts == start)) for start in np.unique(starts)]
    return sum(packed_size(message) + HEADER_BYTES for message in messages) / SPAN_S


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "text",
    [
        select("page, count(*) AS n", "page"),
        select("page, country, bot, count(*) AS n", "page, country, bot"),
        select("country, sum(bytes) AS b", "country", window="'10 seconds'"),
        select("page, sum(bytes) AS b", "page", where="NOT bot"),
        select("page, user, max(ms) AS m", "page, user", where="country = 'de'"),
        select("country, approx_top_k(page, 5) AS top", "country"),
        select("country, approx_count_distinct(user) AS n", "country", window="'30 seconds'"),
        select("page, avg(bytes + user) AS a", "page"),
        select("user + 1 AS u, count(*) AS n", "user + 1"),
    ],
)
def test_the_bytes_of_a_fragment_are_estimated_within_a_third(text: str, seed: int) -> None:
    records = make_visits(seed)
    (query,) = make_queries(text)
    demand = replace(query.demand, source=replace(query.demand.source, sites=("us",)))
    assert sampled(records).sent_bytes_per_s(demand) == pytest.approx(sent_per_s(records, demand), rel=1 / 3)


def test_groups_by_columns_that_depend_on_each_other_are_no_more_than_by_one() -> None:
    sample = sample_of(make_visits(4))
    by_page = sample.estimate_groups(["page"], (), 200.0)
    assert sample.estimate_groups(["page", "country", "bot"], (), 200.0) == by_page
    assert sample.estimate_groups(["page", "user"], (), 200.0) > by_page


def test_slices_with_more_records_than_the_sample_are_extrapolated() -> None:
    rng = np.random.default_rng(5)
    table = pa.table(
        {
            "ts": pa.array(np.arange(3 * MAX_RECORDS), pa.timestamp("us", tz="UTC")),
            "page": pa.array(rng.integers(0, 10_000, 3 * MAX_RECORDS)),
        }
    )
    sample = RecordSample.newest("hits", table, "ts", packed_size)
    assert sample.rows == MAX_RECORDS
    assert sample.estimate_groups(["page"], (), 1e6) == pytest.approx(10_000, rel=0.1)


def test_samples_of_several_sites_are_merged_from_when_on_all_have_records() -> None:
    records = make_visits(6)
    late = sample_of(records.slice(records.num_rows // 2))
    merged = RecordSample.merge([sample_of(records.slice(0, 3_000)), sample_of(records.slice(1_000, 3_000))])
    assert int(merged.times_us[0]) == records["ts"][1_000].as_py()
    assert merged.rows == 5_000
    assert RecordSample.merge([late]) is late


def test_a_query_joins_a_fragment_whose_keys_decide_its_own() -> None:
    """By counts per column a fragment by page and country looks wider than it is; records show that it is not."""
    records = make_visits(7)
    one, other = make_queries(
        select("page, count(*) AS n", "page", window="'10 seconds'"),
        select("page, country, count(*) AS n", "page, country", window="'10 seconds'"),
    )
    known = sampled(records)
    deployed = deploy_first([one], Strength.FULL, known.sent_bytes_per_s).add(other, None, known.sent_bytes_per_s)
    (fragment,) = {deployed.derivation(q.name).fragment for q in (one, other)}
    assert len(deployed.sharing.users(fragment)) == 2


def test_the_newest_records_of_a_history_are_read_and_what_is_damaged_is_passed_over(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("page", pa.string())])
    for number in range(4):
        (tmp_path / f"batch={number}").mkdir()
        table = pa.table({"_row": [0], "page": [f"p{number}"], "ts": pa.array([number], pa.timestamp("ns"))})
        pq.write_table(table, tmp_path / f"batch={number}" / "part.parquet")
    (tmp_path / "batch=3" / "part.parquet").write_bytes(b"torn")
    (tmp_path / "batch=4").mkdir()
    (tmp_path / "_attempt").mkdir()
    found = read_newest(tmp_path, schema)
    assert found.schema == schema
    assert found["page"].to_pylist() == ["p2", "p1", "p0"]
    assert read_newest(tmp_path / "nothing", schema).num_rows == 0
