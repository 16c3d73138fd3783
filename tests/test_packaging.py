"""What is installed: a light process needs no Spark, and the distributions hold what they should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import catchment
from catchment.cli.main import app

ROOT = Path(catchment.__file__).parents[1]
PACKAGING = ROOT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
HEAVY = ("pyspark", "py4j", "scipy", "matplotlib", "deltalake", "duckdb")
LIGHT = {
    "the command line": "from catchment.cli.main import app",
    "a device": "import catchment.feeds.device.device, catchment.feeds.protocol.mqtt",
    "the wire": "import catchment.wire.sending.sender, catchment.wire.receiving.grpc_server",
    "a relay": "import catchment.relay.pipeline",
    "a laptop that asks a center": "import catchment.cli.asking, catchment.control.profiles",
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


def test_the_compose_file_runs_commands_that_exist_in_images_that_are_declared() -> None:
    images = re.findall(r"^FROM \S+ AS (\w+)$", (PACKAGING / "Containerfile").read_text(), re.MULTILINE)
    services = yaml.safe_load((PACKAGING / "compose.yaml").read_text())["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert set(ours) == {"center", "eu", "us"}
    for service in ours.values():
        assert service["build"]["target"] in images
        assert (PACKAGING / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        check_command(service["command"])


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "--no-color", "packaging/Containerfile"),
        ("docker-compose", "-f", "packaging/compose.yaml", "config"),
    ],
    ids=["hadolint", "docker-compose"],
)
def test_tools_of_containers_find_nothing_wrong(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_exists_and_systemd_takes_it(unit: Path) -> None:
    started = re.search(r"^ExecStart=/usr/bin/env catchment (.+)$", unit.read_text(), re.MULTILINE)
    assert started is not None
    check_command(started[1].split())
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("systemd-analyze is not installed here")
    verified = subprocess.run([verifier, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


def check_command(words: list[str]) -> None:
    """A command exists with these options."""
    name, *options = words
    commands: Any = get_command(app)
    made = commands.commands[name].make_context(name, options, resilient_parsing=True)
    assert str(made.params["project"]) == "/srv/catchment"


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
