"""Sites that are not who they were: two processes with one state folder, and a disk that came back empty."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

from tests.campaign.faults.base import Fault
from tests.campaign.faults.files import copy_folder, find_refusal_of, put_folder
from tests.campaign.feed import WINDOW_S
from tests.campaign.living import RECEIVERS, SITES, Lack
from tests.campaign.machines import Machine
from tests.campaign.verdict import CASTS, TOTALS
from tests.worlds.waiting import wait_until


class Clone(Fault):
    """A copy of a site's state folder runs beside the site, under its name."""

    kind = "cloned site"
    targets = SITES

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        return frozenset({target, f"link {target}", RECEIVERS[target]})

    def inject(self) -> None:
        site = self.machine
        self.machine.kill()
        project = self.living.folder / "machines" / f"{self.target}-clone"
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(site.project, project)
        text = (project / "catchment.toml").read_text()
        (project / "catchment.toml").write_text(text.replace(str(self.living.state), str(project / "state")))
        state = project / "state" / "sites" / self.target
        copy_folder(site.state, state)
        for shared in (path for path in self.living.state.iterdir() if path.is_file()):
            shutil.copy2(shared, project / "state" / shared.name)
        self._since_us = time.time_ns() // 1000
        self._clone = replace(site, name=f"{self.target}-clone", project=project, state=state, process=None)
        self.living.machines[self._clone.name] = self._clone
        site.start()
        self._clone.start()

    def observe(self) -> None:
        self.machine.wait_until_up()
        self._clone.wait_until_up()
        self.wait_told("one of two is refused", self._find_refusal)

    def _find_refusal(self) -> str:
        self.feed_windows(1)  # until both have sent something else
        return find_refusal_of(self.living.machines, self.target, self._since_us)

    def heal(self) -> None:
        """Stop both, and let the one go on whose segments were taken."""
        wait_until(
            lambda: self._has_sent(self.machine) != self._has_sent(self._clone),
            "one of two to have sent everything, and the other not",
            120.0,
            state=lambda: [m.status.get("queued_bytes") for m in (self.machine, self._clone)],
        )
        is_clone_right = self._has_sent(self._clone)
        self.machine.kill()
        self._clone.kill()
        if is_clone_right:
            put_folder(self._clone.state, self.machine.state)
        self.told += f"; the {'copy' if is_clone_right else 'original'} goes on"
        del self.living.machines[self._clone.name]
        self.machine.start()

    @staticmethod
    def _has_sent(machine: Machine) -> bool:
        return machine.status.get("queued_bytes") == 0


class EmptyDisk(Fault):
    """A site's disk is lost; the operator replaces the site, and it goes on with an empty one."""

    kind = "site replaced after its disk was lost"
    targets = ("c",)
    needs_own_deployment = True

    def inject(self) -> None:
        feed = self.living.feed
        self._from_s = min(feed.next_s.values()) - 60 * WINDOW_S
        self.machine.kill()
        for path in self.machine.state.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._since_us = time.time_ns() // 1000
        self.machine.start()

    def observe(self) -> None:
        self.wait_told("an empty folder is refused", self._find_refusal)

    def _find_refusal(self) -> str:
        told = self.living.center.status.get("refusals", {}).get(self.target, {})
        recent = {reason: r["message"] for reason, r in told.items() if r["last_us"] >= self._since_us}
        return next((f"{reason}: {message}" for reason, message in recent.items()), "")

    def heal(self) -> None:
        done = self.living.command("sites", "replace", self.target)
        assert done.returncode == 0, f"replacing failed: {done.stdout}{done.stderr}"
        self.living.note_replaced(self.target)
        until_s = max(self.living.feed.next_s.values()) + 3 * WINDOW_S
        for view in (TOTALS, CASTS):
            self.living.note_lack(Lack(view, self.target, self._from_s, until_s))


KINDS = (Clone, EmptyDisk)
