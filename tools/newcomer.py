"""Somebody new: a clean clone, and then only what the README says, with the time of every step.

`python -m tools.newcomer` clones this repository into a folder of its own and runs, line by line, the blocks of the
README that name this file: the demo, until its live page shows numbers that move, and a first query over a CSV file
that is made here. It fails if a command fails, if the page stays empty or if the answer is not what the file says.

`--environment FOLDER` takes an environment that exists, so that downloads are not part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "tools/newcomer.py"
RECORDS = 3_000
LONGEST_STEP_S = 1_800
PAGE_POLL_S = 0.5
FENCE = re.compile(r'^```(?P<tag>\w+) title="(?P<title>[^"]*)"\n(?P<text>.*?)^```', re.DOTALL | re.MULTILINE)
NOT_MINE = ("source ", "make test")  # an environment is on the path already; CI runs the tests


@dataclass
class Newcomer:
    """One clone, and how long each step in it took."""

    clone: Path
    environment: Path
    steps: list[tuple[str, float]] = field(default_factory=list)

    def follow_readme(self) -> None:
        """Run every line of the README that is for newcomers, and check what came of it."""
        write_csv(self.clone / "data.csv")
        for tag, line in readme_lines((self.clone / "README.md").read_text(encoding="utf-8")):
            command = [self._program("python"), "-c", line] if tag == "python" else ["sh", "-c", line]
            name = "the Python block" if tag == "python" else line.partition("#")[0].strip()
            self._run(name, command)
        self._check_answer()

    def _run(self, name: str, command: list[str]) -> None:
        began_s = time.monotonic()
        environment = {**os.environ, "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}"}
        environment["PYTHONPATH"] = str(self.clone)
        with subprocess.Popen(
            command, cwd=self.clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            killer = threading.Timer(LONGEST_STEP_S, process.kill)
            killer.start()
            watched = self._watch_page(process, began_s)
            killer.cancel()
        if process.returncode:
            raise SystemExit(f"{name!r} ended with {process.returncode}:\n{watched[-3000:]}")
        self.steps.append((name, time.monotonic() - began_s))

    def _watch_page(self, process: subprocess.Popen[str], began_s: float) -> str:
        """Read what a command prints; where it names a page, look at it until its numbers move."""
        assert process.stdout is not None
        printed = []
        looking: threading.Thread | None = None
        for line in process.stdout:
            printed.append(line)
            page = re.search(r"dashboard: (\S+)", line)
            if page is not None and looking is None:
                looking = threading.Thread(target=self._look_at, args=(page[1], began_s), daemon=True)
                looking.start()
        if looking is not None and not any(name == "... its live page" for name, _ in self.steps):
            raise SystemExit(f"the page never showed a number that moved:\n{''.join(printed)[-3000:]}")
        return "".join(printed)

    def _look_at(self, url: str, began_s: float) -> None:
        address, _, token = url.partition("?token=")
        asked = urllib.request.Request(f"{address.rstrip('/')}/api/overview")
        asked.add_header("Authorization", f"Bearer {token}")
        seen = {0}
        while len(seen) < 3:  # nothing yet, some, more
            try:
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    seen.add(sum(site["rows"] for site in json.load(answer)["sites"]))
            except OSError:
                pass  # it is not up yet, or already gone
            time.sleep(PAGE_POLL_S)
        self.steps.append(("... its live page", time.monotonic() - began_s))

    def _check_answer(self) -> None:
        statement = "SELECT sum(records) AS records FROM data_by_window"
        command = [self._program("catchment"), "sql", statement, "-p", "my-project", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(self.clone)}
        said = subprocess.run(command, cwd=self.clone, env=environment, capture_output=True, text=True, check=True)
        assert json.loads(said.stdout)["rows"] == [{"records": RECORDS}], said.stdout

    def _program(self, name: str) -> str:
        return str(self.environment / "bin" / name)


def readme_lines(text: str) -> Iterator[tuple[str, str]]:
    """Return the lines of shell blocks and the whole of Python blocks that are for newcomers, in their order."""
    for fence in FENCE.finditer(text):
        if MARK not in fence["title"]:
            continue
        if fence["tag"] == "python":
            yield "python", fence["text"]
            continue
        for line in fence["text"].splitlines():
            if line.strip() and not line.startswith(NOT_MINE):
                yield "sh", line


def write_csv(path: Path) -> None:
    """Write some hours of orders, as somebody might have them."""
    draw = random.Random(3)
    at = datetime(2026, 3, 1, 8)
    lines = ["ordered_at,shop,product,amount"]
    for _ in range(RECORDS):
        at += timedelta(seconds=draw.expovariate(1 / 5))
        shop = draw.choice(("north", "south", "east"))
        lines.append(f"{at:%Y-%m-%d %H:%M:%S},{shop},{draw.choice('abc')},{draw.uniform(1, 90):.2f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_newcomer(folder: Path, environment: Path | None = None) -> list[tuple[str, float]]:
    """Clone the repository into a folder and follow its README; return what each step took, in seconds."""
    clone = folder / "catchment"
    began_s = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    newcomer = Newcomer(clone, environment or clone / ".venv", [("git clone", time.monotonic() - began_s)])
    if environment is None:
        newcomer._run("set up .venv (downloads)", ["make", ".venv/.ready"])
    else:
        (clone / ".venv").mkdir()
        (clone / ".venv" / "bin").symlink_to(environment.resolve() / "bin")
        (clone / ".venv" / ".ready").touch()  # so that make installs nothing into an environment that is not its own
    newcomer.follow_readme()
    return newcomer.steps


def main() -> None:
    """Run it, and print what each step took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, help="an environment with catchment's dependencies")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = run_newcomer(Path(folder), given.environment)
    for name, seconds in steps:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(seconds for name, seconds in steps if not name.startswith('...')):8.1f} s  in all", file=sys.stdout)


if __name__ == "__main__":
    main()
