"""The guide "A deployment, step by step" is done as it is written; answers equal a recomputation after every step."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from catchment.center.results.read import read_results
from catchment.deploy.reports.role_files import read_status
from tests.test_docs import FENCE, ROOT
from tests.worlds.guided_machines import GuidedMachines
from tests.worlds.shell import Shell
from tests.worlds.waiting import free_port, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.integration]

PAGE = ROOT / "docs" / "guides" / "step-by-step.md"
STEPS = (
    "Install",
    "Describe it",
    "Keys",
    "Start",
    "The first view",
    "Add a site",
    "Back up",
    "Restore",
    "Replace a disk",
    "Lose the center",
    "Upgrade",
    "Size a site",
)
RUNNING = "Start"  # from this step on there are answers
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTES = 3  # of event time in every portion of records


class Block(NamedTuple):
    """A block of the page: what is done, or a file, and on which machines."""

    step: str
    tag: str
    file: str | None
    machines: tuple[str, ...]
    text: str


def read_page() -> Iterator[Block]:
    text = PAGE.read_text(encoding="utf-8")
    headings = [(found.start(), found[1]) for found in re.finditer(r"^## (.+)$", text, re.MULTILINE)]
    for fence in FENCE.finditer(text):
        step = [name for at, name in headings if at < fence.start()][-1]
        title = re.search(r'title="(?:(\S+) )?on ([^"]+)"', fence["more"])
        assert title is not None, f"{step}: a block does not say on which machine it is done"
        yield Block(step, fence["tag"], title[1], tuple(title[2].split(", ")), fence["text"])


def test_the_page_has_the_steps_that_are_tested() -> None:
    assert tuple(dict.fromkeys(block.step for block in read_page())) == STEPS


class Shop:
    """The orders that come to every site, and what is published of them."""

    def __init__(self, machines: GuidedMachines) -> None:
        self.machines = machines
        self.orders: dict[str, list[dict[str, Any]]] = {"eu": [], "us": []}
        self.portions = 0

    def put(self) -> None:
        """Let some minutes of orders come to every site."""
        start = BEGIN + timedelta(minutes=MINUTES * self.portions)
        for site, known in self.orders.items():
            chance = random.Random(f"{site} {self.portions}")
            seconds = sorted(chance.uniform(0, 60 * MINUTES) for _ in range(20))
            orders = [
                {
                    "ts": (start + timedelta(seconds=second)).isoformat(timespec="milliseconds"),
                    "shop": chance.choice("ab"),
                    "cents": chance.randrange(10_000),
                }
                for second in [*seconds, 60 * MINUTES - 1]  # the last one ends the minutes before
            ]
            folder = self.machines[site].folder / "orders" / site
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder.parent / "draft"
            draft.write_text("".join(json.dumps(order) + "\n" for order in orders))
            draft.rename(folder / f"{self.portions:04d}.json")
            known += orders
        self.portions += 1

    def settle(self) -> None:
        """Let orders come, and wait until every window before the last minute is published with all of them."""
        self.put()
        until = BEGIN + timedelta(minutes=MINUTES * self.portions - 1)
        wanted = {key: value for key, value in self.recount().items() if key[0] < until}
        wait_until(
            lambda: self.published(until) == wanted,
            f"revenue to have every window before {until}",
            act=self.machines.supervise,
            state=lambda: {k: (self.published(until).get(k), v) for k, v in wanted.items()},
            pause_s=0.3,
        )

    def recount(self) -> dict[tuple[datetime, str], tuple[int, int]]:
        found: dict[tuple[datetime, str], tuple[int, int]] = {}
        for order in (order for mine in self.orders.values() for order in mine):
            key = datetime.fromisoformat(order["ts"]).replace(second=0, microsecond=0), order["shop"]
            count, cents = found.get(key, (0, 0))
            found[key] = count + 1, cents + order["cents"]
        return found

    def published(self, until: datetime) -> dict[tuple[datetime, str], tuple[int, int]]:
        rows = self.read("revenue")
        return {(r["start"], r["shop"]): (r["orders"], r["cents"]) for r in rows if r["start"] < until}

    def read(self, view: str, **options: Any) -> list[dict[str, Any]]:
        state = self.machines["center"].folder / "state"
        if not (state / "windows" / view / "_delta_log").is_dir():
            return []
        rows: list[dict[str, Any]] = read_results(state, view, **options).to_pylist()
        return rows

    def wait_until_counted(self, site: str) -> None:
        """Wait until the center has decided from when on a site counts; its records follow."""
        folder = self.machines["center"].folder / "state" / "center"
        wait_until(
            lambda: (read_status(folder) or {}).get("sites", {}).get(site, {}).get("counts_from_us") is not None,
            f"{site} to count",
            act=self.machines.supervise,
        )
        self.orders[site] = []

    def check_largest(self) -> None:
        """The view that was submitted is right in every window that it has."""
        most: dict[datetime, int] = {}
        for order in (order for mine in self.orders.values() for order in mine):
            start = datetime.fromisoformat(order["ts"]).replace(second=0, microsecond=0)
            most[start] = max(most.get(start, 0), order["cents"])
        until = BEGIN + timedelta(minutes=MINUTES * self.portions - 1)
        rows = [row for row in self.read("largest") if row["start"] < until]
        assert rows
        assert [row for row in rows if row["cents"] != most[row["start"]]] == []


def test_what_the_guide_says_is_done_and_answers_stay_right(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = GuidedMachines(spark, tmp_path, f"127.0.0.1:{free_port()}", Shell(monkeypatch, capsys), monkeypatch)
    shop = Shop(machines)
    machines.on_stopped = shop.put  # orders come while a machine is stopped
    blocks = list(read_page())
    try:
        for number, block in enumerate(blocks):
            for view in re.findall(r"show windows (\w+)", block.text):
                wait_until(lambda view=view: bool(shop.read(view)), f"{view} to have a window", act=shop.settle)  # type: ignore[misc]
            for machine in block.machines:
                do_block(machines, block, machine)
            if "sites add" in block.text:
                shop.wait_until_counted("tokyo")
            is_last = number + 1 == len(blocks) or blocks[number + 1].step != block.step
            if is_last and STEPS.index(block.step) >= STEPS.index(RUNNING):
                shop.settle()
        shop.check_largest()
        rows = [(r["window_start"], r["shop"], r["revision"]) for r in shop.read("revenue", revisions="all")]
        assert len(rows) == len(set(rows)), "no revision of a row was published twice"
    finally:
        machines.stop_all()


def do_block(machines: GuidedMachines, block: Block, machine: str) -> None:
    if block.file is not None:
        machines.write(machine, block.file, block.text)
        return
    assert block.tag == "sh"
    for line in block.text.replace("\\\n", " ").splitlines():
        machines.run(machine, line)
