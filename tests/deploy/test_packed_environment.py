"""The archive for workers of a cluster: what is in it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest

from catchment.deploy.processes import packed_environment
from catchment.deploy.processes.packed_environment import LAUNCHER, PackedEnvironment, find_packages, pack_environment
from catchment.errors import ConfigError
from catchment.version import VERSION


def names(extras: list[str]) -> set[str]:
    return {package.name.lower() for package in find_packages(extras)}


def test_everything_that_catchment_needs_is_found_and_nothing_of_spark() -> None:
    assert {"catchment", "pyarrow", "numpy", "sqlglot", "rich", "pygments"} <= names([]), (
        "what packages need in turn, too"
    )
    assert "deltalake" in names(["spark"]) - names([])
    assert not {"pyspark", "py4j", "pytest"} & names(["spark", "kafka"])


def test_a_python_without_packages_imports_what_was_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only small packages are packed here; the test on a cluster packs all."""
    chosen = [distribution(name) for name in ("catchment", "sqlglot")]
    monkeypatch.setattr(packed_environment, "find_packages", lambda extras: chosen)
    archive = tmp_path / "environment.tar.gz"
    made = pack_environment(archive)
    assert PackedEnvironment.read(archive) == made
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    launcher = tmp_path / "unpacked" / "bin" / LAUNCHER
    told = "import catchment.version, sqlglot; print(catchment.version.VERSION, catchment.__file__, sqlglot.__file__)"
    clean = {"PATH": "/usr/bin:/bin", "CATCHMENT_PYTHON": sys._base_executable}  # type: ignore[attr-defined]
    words = subprocess.run([launcher, "-c", told], env=clean, capture_output=True, text=True, check=True, cwd="/")
    version, *places = words.stdout.split()
    assert version == VERSION
    assert all(place.startswith(str(tmp_path / "unpacked" / "packages")) for place in places)
    nothing = subprocess.run(
        [launcher, "-c", told],
        env={**clean, "CATCHMENT_PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert nothing.returncode == 127
    assert "there is no Python" in nothing.stderr


@pytest.mark.parametrize(("what", "value"), [("catchment", "0.0.1"), ("python", "2.7")])
def test_an_archive_of_another_release_or_python_is_refused(what: str, value: str) -> None:
    here = PackedEnvironment.here()
    other = replace(here, catchment=value) if what == "catchment" else replace(here, python=value)
    with pytest.raises(ConfigError, match=f"has {what} {value}, and this process has"):
        other.refuse_other(Path("environment.tar.gz"))
    PackedEnvironment.here().refuse_other(Path("environment.tar.gz"))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as absent:
        PackedEnvironment.read(tmp_path / "none.tar.gz")
    assert "catchment pack" in (absent.value.hint or "")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as packed:
        packed.add(__file__, "file")
    with pytest.raises(ConfigError, match="was not made by catchment pack"):
        PackedEnvironment.read(tmp_path / "other.tar.gz")
    with pytest.raises(ConfigError, match=r"does not end in \.tar\.gz"):
        pack_environment(tmp_path / "environment.zip")
