"""Quarantined records that get another try: each is read once more, wherever the replay is interrupted.

Catches: records that are lost or doubled by a replay, batches that are taken though they are not committed. Cannot
catch: what Spark makes of the new file; it is a file like any other (`tests/spark/test_files.py`).
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing import quarantine
from catchment.deploy.repairing.quarantine import replay_quarantine
from catchment.deploy.reports.requests import requested_retries
from catchment.deploy.reports.role_files import write_status
from catchment.errors import ConfigError
from catchment.files.folder import WatchedFolder
from catchment.files.watch import FolderWatch
from catchment.site.core import SiteCore
from catchment.site.known_files import FilesRead, KnownFiles, StreamTimes
from catchment.storage.files import write_durably
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import ManualClock
from tests.worlds.projects import TWO_VIEWS, write_project

TIMES = StreamTimes(0, 0, None)


class Reader:
    """Reads the files of site a, each record once."""

    def __init__(self, folder: Path) -> None:
        self.watch = FolderWatch("hits", WatchedFolder(folder / "data" / "a"))
        self.known = KnownFiles()

    def read(self) -> list[str]:
        look = self.watch.look(self.known, TIMES)
        if look.seen is not None:
            self.known.note_seen(look.seen, TIMES)
        lines = [line for piece in look.pieces for line in Path(piece.path).read_text().splitlines()]
        self.known.note_read(FilesRead("hits", tuple(self.watch.settle(look.pieces))))
        return [line for line in lines if line.strip()]


def make_project(folder: Path, committed: int, **options: Any) -> Path:
    made = write_project(folder, ["a"], {"a": []}, **options)
    commit(made, committed)
    return made


def commit(folder: Path, batch: int) -> None:
    journal = Journal(folder / "state" / "sites" / "a" / "journal")
    host: Host[Any, Any] = Host(SiteCore(), journal, lambda *_: 0, ManualClock(0))
    host.recover()
    host.submit("hits", [], batch=batch)
    journal.close()


def set_aside(folder: Path, batch: int, *texts: str) -> None:
    path = folder / "state" / "sites" / "a" / "quarantine" / "hits" / f"batch={batch}"
    path.mkdir(parents=True)
    columns = {"_raw": list(texts), "_problem": ["wrong"] * len(texts), "site": ["a"] * len(texts)}
    pq.write_table(pa.table(columns), path / "part-0.parquet")


def in_quarantine(folder: Path) -> set[str]:
    return {path.name for path in (folder / "state" / "sites" / "a" / "quarantine" / "hits").iterdir()}


def test_records_leave_the_quarantine_and_are_read_once_more(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p", committed=2)
    reader = Reader(folder)
    set_aside(folder, 0, "one", "two")
    set_aside(folder, 2, "three")
    set_aside(folder, 3, "not committed")
    answer = replay_quarantine(folder, "hits")
    assert answer == {"stream": "hits", "records": 3, "sites": [{"site": "a", "records": 3}]}
    assert in_quarantine(folder) == {"batch=3"}
    assert reader.read() == ["one", "two", "three"]
    assert replay_quarantine(folder, "hits")["records"] == 0
    assert reader.read() == []


def test_the_same_records_can_be_replayed_again_though_the_first_file_is_gone(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p", committed=0)
    reader = Reader(folder)
    for batch in range(1, 4):
        set_aside(folder, batch, "still wrong")
        commit(folder, batch)
        assert replay_quarantine(folder, "hits", "a")["records"] == 1
        assert reader.read() == ["still wrong"]
        for path in (folder / "data" / "a").glob("replayed-*"):
            path.unlink()


def test_two_replays_at_once_give_every_record_one_more_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_project(tmp_path / "p", committed=0)
    reader = Reader(folder)
    set_aside(folder, 0, "one")
    others: list[threading.Thread] = []

    def write_beside_another(path: Path, data: bytes) -> None:
        if not others:
            set_aside(folder, 1, "two")
            commit(folder, 1)
            others.append(threading.Thread(target=replay_quarantine, args=(folder, "hits")))
            others[0].start()
            others[0].join(0.5)  # it has ended, or waits for this one
        write_durably(path, data)

    monkeypatch.setattr(quarantine, "write_durably", write_beside_another)
    replay_quarantine(folder, "hits")
    others[0].join()
    assert sorted(reader.read()) == ["one", "two"]


STEPS = ["write_durably", "write_record", "os.replace", "rename_file", "shutil.rmtree", "remove_file"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_replay_that_is_interrupted_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    folder = make_project(tmp_path / "p", committed=1)
    reader = Reader(folder)
    set_aside(folder, 0, "one")
    set_aside(folder, 1, "two")
    place, _, name = step.rpartition(".")
    owner = getattr(quarantine, place) if place else quarantine
    do = getattr(owner, name)

    def die(*given: Any, **options: Any) -> None:
        if is_done:
            do(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(KeyboardInterrupt):
            replay_quarantine(folder, "hits")
    found = reader.read()
    replay_quarantine(folder, "hits")
    found += reader.read()
    replay_quarantine(folder, "hits")
    found += reader.read()
    assert found == ["one", "two"]
    assert in_quarantine(folder) == set()


def test_a_replayed_csv_file_has_the_header_of_the_others_and_a_name_that_is_read(tmp_path: Path) -> None:
    connector = "connector = 'files', path = 'data/{site}/*.csv', format = 'csv'"
    folder = make_project(tmp_path / "p", committed=0, connector=connector)
    set_aside(folder, 0, "x,y,z")
    with pytest.raises(ConfigError, match="no file of stream 'hits' is left"):
        replay_quarantine(folder, "hits")
    (folder / "data" / "a" / "1.csv").write_text("page,ts,user,ms,bytes\n")
    replay_quarantine(folder, "hits")
    (replayed,) = (folder / "data" / "a").glob("replayed-*.csv")
    assert replayed.read_text().split() == ["page,ts,user,ms,bytes", "x,y,z"]


def test_what_cannot_be_replayed_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p", committed=0)
    with pytest.raises(ConfigError, match="no stream and no view 'hit'"):
        replay_quarantine(folder, "hit")
    with pytest.raises(ConfigError, match="no quarantine at site 'b'"):
        replay_quarantine(folder, "hits", "b")
    replay = make_project(tmp_path / "r", 0, connector="connector = 'replay', path = 'data/{site}.jsonl'")
    with pytest.raises(ConfigError, match="comes from 'replay'"):
        replay_quarantine(replay, "hits")
    single = make_project(tmp_path / "s", 0, connector="connector = 'files', path = 'data/{site}.jsonl'")
    set_aside(single, 0, "x")
    with pytest.raises(ConfigError, match=r"reads the one file a\.jsonl"):
        replay_quarantine(single, "hits")


def test_the_command_says_how_many_records_are_read_again(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p", committed=0)
    set_aside(folder, 0, "one")
    listed = CliRunner().invoke(app, ["quarantine", "list", "-p", str(folder), "--json"])
    assert json.loads(listed.output)["counts"] == {"wrong": 1}
    done = CliRunner().invoke(app, ["quarantine", "replay", "hits", "-p", str(folder)])
    assert done.output == "1 records of hits are read again\n"
    listed = CliRunner().invoke(app, ["quarantine", "list", "-p", str(folder), "--json"])
    assert json.loads(listed.output)["counts"] == {}


# --- records that a view has set aside ----------------------------------------------------------------------------

LENIENT = """
CREATE MATERIALIZED VIEW lenient WITH (on_error = 'quarantine') AS
  SELECT window.start, sum(CAST(page AS INT)) AS n FROM hits GROUP BY window(ts, '1 minute');
"""


def set_aside_by(folder: Path, site: str, fragment: str, batch: int, rows: int) -> None:
    path = folder / "state" / "sites" / site / "quarantine" / "hits" / f"fragment={fragment}" / f"batch={batch}"
    path.mkdir(parents=True)
    pq.write_table(pa.table({"_raw": ["x"] * rows}), path / "part-0.parquet")


def test_a_view_asks_the_sites_that_have_set_something_aside_for_it(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ["a", "b"], {"a": [], "b": []}, queries=TWO_VIEWS + LENIENT)
    deployed = Deployment.load(folder).deployed
    lenient, numbers = (deployed.derivation(view).fragment for view in ("lenient", "numbers"))
    with pytest.raises(ConfigError, match="'lenient' has set nothing aside") as refused:
        replay_quarantine(folder, "lenient")
    assert "show quarantine" in str(refused.value.hint)
    set_aside_by(folder, "a", lenient, 0, 2)
    set_aside_by(folder, "a", f"{lenient}.retry=1", 0, 3)
    set_aside_by(folder, "b", "of_a_definition_that_was_replaced", 0, 1)
    sites = folder / "state" / "sites"
    answer = replay_quarantine(folder, "lenient")
    assert answer["records"] == 5
    assert [(s["site"], s["fragment"], s["suspended"]) for s in answer["sites"]] == [("a", lenient, False)]
    assert requested_retries(sites / "a") == {lenient}
    assert not requested_retries(sites / "b")
    with pytest.raises(ConfigError, match="at site 'b'") as refused:
        replay_quarantine(folder, "lenient", "b")
    assert refused.value.hint == "it has something at a"
    with pytest.raises(ConfigError, match="'numbers' has set nothing aside") as refused:
        replay_quarantine(folder, "numbers")
    assert "with start reads all records again" in str(refused.value.hint)
    assert numbers not in requested_retries(sites / "a")
    write_status(sites / "a", {"fragments": {lenient: {"suspended": {"reason": "it fails"}}}})
    told = CliRunner().invoke(app, ["quarantine", "replay", "lenient", "-p", str(folder)]).output
    assert "5 records that lenient has set aside are tried again" in told
    assert "at a when the view goes on: catchment resume lenient" in told
