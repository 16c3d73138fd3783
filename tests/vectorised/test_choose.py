"""Which fragments are evaluated in the pass over files, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.vectorised.choose import MAX_FAILED, PAUSE_BATCHES, StreamScans, choose_scanned, explain_evaluation

PROJECT = """
[project]
name = "p"
center = "c"
[sites.a]
[sites.c]
[[links]]
from = "a"
to = "c"
"""
STREAM = "CREATE STREAM s (ts TIMESTAMP, k STRING, v BIGINT{columns}) WITH (event_time = 'ts', {options});"
VIEW = """
CREATE MATERIALIZED VIEW {name} AS
  SELECT window.start, {key} AS k, {value} AS v FROM s GROUP BY {key}, window(ts, '1 s');
"""
FILES = "connector = 'files', path = 'd', format = 'parquet'"


def load(
    folder: Path, views: dict[str, tuple[str, str]], options: str = FILES, columns: str = "", settings: str = ""
) -> Deployment:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(PROJECT + settings)
    texts = [VIEW.format(name=name, key=key, value=value) for name, (key, value) in views.items()]
    (folder / "queries" / "q.sql").write_text("\n".join([STREAM.format(columns=columns, options=options), *texts]))
    return Deployment.load(folder)


def explained(deployment: Deployment) -> list[str]:
    stream = deployment.catalog.streams["s"]
    return [explain_evaluation(stream, plan, deployment.project) for plan in deployment.fragments_at("a")]


@pytest.mark.parametrize(
    ("options", "columns", "settings", "why"),
    [
        (FILES, "", "", None),
        ("connector = 'files', path = 'd', format = 'json'", "", "", None),
        ("connector = 'files', path = 'd', format = 'csv'", "", "", None),
        ("connector = 'files', path = 'd', format = 'csv'", ", price DECIMAL(9, 2)", "", "which Spark parses in csv"),
        ("connector = 'replay', path = 'd', format = 'parquet'", "", "", "the replay source hands records to Spark"),
        ("connector = 'generator'", "", "", "the generator source"),
        (FILES + ", shed = true", "", "", "may be sampled"),
        (FILES, ", tags ARRAY<STRING>", "", "the column tags is ARRAY<STRING>"),
        (FILES + ", history = false", ", tags ARRAY<STRING>", "", None),
        (FILES + ", history = 'reference'", ", tags ARRAY<STRING>", "", None),
        (FILES, "", "[defaults]\nevaluator = 'native'", "evaluator = 'native'"),
        (FILES, "", "[spark]\nmaster = 'yarn'", None),
        (FILES, "", "[spark.settings]\n'spark.sql.session.timeZone' = 'Asia/Tokyo'", "spark.sql.session.timeZone"),
    ],
)
def test_a_stream_is_left_to_spark_for_a_reason(
    tmp_path: Path, options: str, columns: str, settings: str, why: str | None
) -> None:
    deployment = load(tmp_path, {"one": ("k", "sum(v)")}, options, columns, settings)
    (text,) = explained(deployment)
    assert text.startswith("vectorised" if why is None else "native Spark SQL: ")
    assert why is None or why in text


def test_fragments_are_chosen_one_by_one(tmp_path: Path) -> None:
    deployment = load(tmp_path, {"plain": ("k", "sum(v)"), "odd": ("md5(k)", "max(v)")})
    plans = deployment.fragments_at("a")
    choice = choose_scanned(deployment.catalog.streams["s"], (), plans, (), deployment.project)
    assert choice is not None
    assert [p.fragment.keys[0].sql for p in choice.scanned] == ["`s`.`k`"]
    assert len(choice.native) == 1
    assert any("MD5(s.k)" in text and text.startswith("native") for text in explained(deployment))


@pytest.mark.parametrize(
    ("format", "history", "is_scanned", "hands_over"),
    [
        ("parquet", "true", True, False),
        ("parquet", "false", False, False),
        ("parquet", "'reference'", False, False),
        ("json", "true", True, True),
        ("json", "'reference'", True, True),
    ],
)
def test_files_are_read_by_a_pass_for_spark_sql_where_that_is_faster(
    tmp_path: Path, format: str, history: str, is_scanned: bool, hands_over: bool
) -> None:
    options = f"connector = 'files', path = 'd', format = '{format}', history = {history}"
    deployment = load(tmp_path, {"odd": ("md5(k)", "max(v)")}, options)
    plans = deployment.fragments_at("a")
    choice = choose_scanned(deployment.catalog.streams["s"], (), plans, (), deployment.project)
    assert (choice is not None) == is_scanned
    if choice is not None:
        assert (choice.scanned, choice.native) == ((), tuple(plans))
        assert choice.scan.fragments == ()
        assert choice.hands_over == hands_over


def test_a_stream_on_which_passes_keep_failing_is_left_to_spark_for_a_while(tmp_path: Path) -> None:
    deployment = load(tmp_path, {"plain": ("k", "sum(v)")})
    stream = deployment.catalog.streams["s"]
    plans = deployment.fragments_at("a")
    scans = StreamScans(deployment.project)
    for _ in range(MAX_FAILED):
        assert scans.choose(stream, (), plans, ()) is not None
        scans.note_failure("a number does not fit")
    assert [scans.choose(stream, (), plans, ()) for _ in range(PAUSE_BATCHES)] == [None] * PAUSE_BATCHES
    assert scans.choose(stream, (), plans, ()) is not None
    scans.note_success()
    assert scans.reason is None
