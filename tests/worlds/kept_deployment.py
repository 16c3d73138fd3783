"""A center and three sites on machines that share nothing, as the previous release left them in the middle of its work.

    python -m tests.worlds.kept_deployment FOLDER VERSION

lets the code of a release, in a folder with its package, work until some windows are published and others are open, and
writes what its machines hold to tests/golden/deployment/VERSION.tar.gz. What is there is not replaced. Keys are not
kept: they are made anew, because they expire.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.worlds.control_world import ControlWorld
from tests.worlds.machine_story import MachineStory
from tests.worlds.processes import THIS_RELEASE, Release, Role
from tests.worlds.state_fixtures import pack
from tests.worlds.waiting import wait_until

SITES = "abc"
CENTER = "center"
RECORDS_FILE = "records.json"
PORT_MARK = "PORT"
FOLDER = Path(__file__).parents[1] / "golden" / "deployment"

# The previous release, where its own code is not at hand: this code, which speaks only the version that it spoke.
AS_PREVIOUS = Release(
    (
        "-c",
        "from catchment.wire.frames import versions; versions.SPOKEN_VERSIONS = (versions.PREVIOUS_VERSION,); "
        "from catchment.cli.main import main; main()",
    )
)
CHECKOUT_VARIABLE = "CATCHMENT_PREVIOUS_RELEASE"  # a folder with the package of the previous release


def previous_release() -> Release:
    """Return the previous release: its own code if there is a checkout of it, or this code that speaks like it."""
    checkout = os.environ.get(CHECKOUT_VARIABLE)
    return AS_PREVIOUS if checkout is None else release_in(Path(checkout))


def release_in(folder: Path) -> Release:
    """Return the release whose package is in a folder."""
    return Release(THIS_RELEASE.program, {"PYTHONPATH": str(folder)})


class KeptDeployment:
    """Processes of a center and three sites, each with a folder of its own, and the records that they were given."""

    def __init__(self, root: Path, release: Release) -> None:
        self.world = ControlWorld(root, tuple(SITES))
        self.story = MachineStory(self.world)
        folder = self.world.folder
        self.roles = {CENTER: Role(folder, "center", state=folder / "state" / "center", release=release)}
        for site in SITES:
            home = self.story.add(site)
            self.roles[site] = Role(home, "site", state=home / "state" / "sites" / site, release=release)
        self.minute = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for role in self.roles.values():
                role.start()
            yield
        finally:
            for role in self.roles.values():
                role.end()

    def put(self, sites: str = SITES) -> None:
        """Let a file with five more minutes of records appear at every site."""
        self.end = self.story.put(f"from-{self.minute:04d}", self.minute, sites)
        self.minute += 5

    def wait_for_answers(self) -> None:
        """Wait until every window that can be closed has the counts of all records."""
        self.story.wait_for("numbers", "page", self.end)

    def upgrade(self, name: str) -> None:
        """Stop a process, and start this release in its place, while records come."""
        role = self.roles[name]
        role.stop()
        self.put()
        role.release = THIS_RELEASE
        role.start()
        self.put()
        wait_until(lambda: role.has_worked, f"{name} to work after its upgrade", state=lambda: role.last_words)

    # ---- what is kept of it

    def write(self, archive: Path) -> None:
        """Write what the machines hold; no process may be running."""
        root = self.world.root
        (root / RECORDS_FILE).write_text(json.dumps({"minute": self.minute, "records": self.story.records}))
        settings = self.world.folder / "catchment.toml"
        settings.write_text(settings.read_text().replace(str(self.world.port), PORT_MARK))
        for folder in (*self.story.homes.values(), self.world.folder):
            for left_out in (*folder.glob("*.log"), *folder.glob("state/logs/*"), *folder.glob("keys/**/*")):
                if left_out.is_file():
                    left_out.unlink()
        pack(root, archive)

    def take_up(self, archive: Path) -> None:
        """Put what a release has left in the place of what is here."""
        root = self.world.root
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
        settings = self.world.folder / "catchment.toml"
        settings.write_text(settings.read_text().replace(PORT_MARK, str(self.world.port)))
        for site, home in self.story.homes.items():
            self.world.write_site_file(site, home)
        kept = json.loads((root / RECORDS_FILE).read_text())
        self.minute = kept["minute"]
        self.story.records = kept["records"]


def find_deployments() -> list[Path]:
    """Return what is kept of every release."""
    return sorted(FOLDER.glob("*.tar.gz"))


def main(checkout: Path, archive: Path) -> None:
    if archive.exists():
        raise SystemExit(f"{archive} is there: what a release has left is kept as it is")
    with tempfile.TemporaryDirectory(prefix="catchment-") as folder:
        deployment = KeptDeployment(Path(folder), release_in(checkout))
        with deployment.running():
            deployment.put()
            deployment.wait_for_answers()
            deployment.put()
            wait_until(lambda: all(role.has_worked for role in deployment.roles.values()), "all to work")
            deployment.roles[CENTER].stop()
            deployment.put()  # what sites read of it waits in their outboxes
            before = {site: deployment.roles[site].journal() for site in SITES}
            wait_until(lambda: all(deployment.roles[s].journal() != before[s] for s in SITES), "sites to read it")
            for site in SITES:
                deployment.roles[site].stop()
        deployment.write(archive)


if __name__ == "__main__":
    release = sys.argv[2]
    main(Path(sys.argv[1]).resolve(), FOLDER / f"{release}.tar.gz")
