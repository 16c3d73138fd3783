"""What is installed: a light process needs no Spark, and the distributions hold what they should."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import catchment

ROOT = Path(catchment.__file__).parents[1]
HEAVY = ("pyspark", "py4j", "scipy", "matplotlib", "deltalake", "duckdb")
LIGHT = {
    "the command line": "from catchment.cli.main import app",
    "a device": "import catchment.feeds.device.device, catchment.feeds.protocol.mqtt",
    "the wire": "import catchment.wire.outbox, catchment.wire.inbox, catchment.wire.grpc_server",
    "a relay": "import catchment.relay.pipeline",
    "planning a query": "import catchment.query.catalog, catchment.query.planning.build",
}
BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_without_heavy_packages(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("what", LIGHT)
def test_a_light_process_needs_neither_spark_nor_its_tables(what: str) -> None:
    ended = run_without_heavy_packages(LIGHT[what])
    assert ended.returncode == 0, ended.stderr


def test_a_command_whose_package_is_missing_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "catchment.toml").write_text("[sites.a]\n")
    code = f"import sys; sys.argv = ['catchment', 'sql', 'SELECT 1', '-p', {str(tmp_path)!r}]\n"
    ended = run_without_heavy_packages(code + "from catchment.cli.main import main; main()")
    assert ended.returncode == 2, ended.stderr
    assert "is not installed" in ended.stderr
    assert "pip install 'catchment[spark]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.integration
def test_wheel_and_sdist_build_and_the_wheel_installs(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for needed in ("spark/log4j2.properties", "serve/feeds.html", "py.typed"):
        assert f"catchment/{needed}" in inside
    assert any(name.startswith("catchment/demo_project/data/") for name in inside)
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "tests/worlds/world.py", "CHANGELOG.md", "benchmarks/data.py"} <= packed

    venv.create(tmp_path / "env", system_site_packages=False, with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        ended = subprocess.run([python, *words], capture_output=True, text=True, check=False, env=outside, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    run("-m", "pip", "install", "-q", "--no-deps", str(wheel))
    assert run("-c", "import catchment; print(catchment.__version__)") == catchment.__version__
