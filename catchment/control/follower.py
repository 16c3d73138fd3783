"""How a site follows its center: it asks every few seconds, and installs what is deployed, whole or not at all.

What comes is checked before it is written: its checksum, whether this catchment reads it, and whether it can be planned
with this machine's own settings. Then it replaces the record of what is deployed in one write, and the running process
finds it there as it finds any change. What cannot be used is refused by its version, said once, and what runs goes on.

Without the center nothing changes and nothing ends. The pauses between questions grow to `MAX_PAUSE_S`, each by chance
a little longer or shorter, so that a center that comes back is not asked by all sites at once.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from catchment.control.bundle import Bundle
from catchment.control.reports import Requests, pack_report, take_requests
from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore
from catchment.errors import CatchmentError, WireError
from catchment.functions.project_functions import load_functions
from catchment.project.config import Project
from catchment.project.joined_site import DECLARED, DEPLOYMENT_FILE, JoinedSite
from catchment.query.catalog import load_catalog
from catchment.storage.files import read_record

PAUSE_S = 2.0  # between two questions
MAX_PAUSE_S = 60.0  # while the center does not answer
REPORT_EVERY = 2  # questions; a status is larger than a question

_log = logging.getLogger(__name__)


class Center(Protocol):
    """Whoever can be asked what is deployed."""

    def follow(self, report: Mapping[str, Any]) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


@dataclass
class Follower:
    """Keeps the folder of one site equal to what its center has deployed."""

    joined: JoinedSite
    center: Center
    refused: str | None = None  # why the newest of the center is not followed, if it is not
    failure: str | None = None  # why the center could not be asked the last time, if it could not
    _asked: int = 0
    _taken: Requests | None = None
    _failures: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.store = DeploymentStore(self.joined.state_folder)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._chance = random.Random()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if not self._failures:
            self._asked = 0  # the last words of this site: that it has stopped, or why
            with suppress(CatchmentError, OSError):
                self.step()
        self.center.close()

    def step(self) -> None:
        """Ask once, and install what is new."""
        held = self.read_installed()
        answer = self.center.follow(self._report(held))
        if answer.get("bundle") is not None:
            self._consider(Bundle.from_message(answer["bundle"]), held)
        requests = answer.get("requests")
        take_requests(self.joined.state_folder / "sites" / self.joined.name, requests)
        self._taken = requests if isinstance(requests, dict) else None

    def read_installed(self) -> Bundle | None:
        """Return what this site was last told; None before the first time."""
        record = read_record(self.joined.state_folder / DEPLOYMENT_FILE)
        deployed = None if record is None else self.store.read_document()
        if record is None or deployed is None or DECLARED not in record:
            return None
        return Bundle(int(record["version"]), deployed, record[DECLARED])

    def pause_s(self) -> float:
        """Return how long to wait before the next question."""
        grown_s: float = min(MAX_PAUSE_S, PAUSE_S * 2.0 ** min(self._failures, 10))
        return grown_s * self._chance.uniform(0.75, 1.25)

    def _report(self, held: Bundle | None) -> dict[str, Any]:
        report: dict[str, Any] = {"holds": None if held is None else held.digest}
        if self._taken is not None:
            report["taken"] = self._taken
        if held is not None and self._asked % REPORT_EVERY == 0:
            report["report"] = pack_report(Project.of_joined_site(self.joined), self.joined.name)
        self._asked += 1
        return report

    def _consider(self, offered: Bundle, held: Bundle | None) -> None:
        try:
            self._check(offered, held)
        except CatchmentError as error:
            refused = f"version {offered.version} of the center's deployment is not followed: {error}"
            if refused != self.refused:
                _log.error("%s", refused)
            self.refused = refused
            return
        self.refused = None
        self.store.install(offered.version, offered.document, offered.declared)
        _log.info("installed version %d of what the center has deployed", offered.version)

    def _check(self, offered: Bundle, held: Bundle | None) -> None:
        """Refuse what this site cannot follow: an older deployment, one of another history, or one that fails here."""
        deployed = offered.deployed
        if held is not None and offered.version < held.version:
            raise WireError(
                f"the center has version {offered.version}, this site followed version {held.version} already",
                hint="a center with older or lost state is brought back with: catchment sites heal CENTER",
            )
        if held is not None and offered.version == held.version and deployed != held.deployed:
            raise WireError(
                f"the center has another version {offered.version} than this site followed",
                hint="is this the center that the site has joined? catchment sites heal CENTER, if its state was lost",
            )
        project = Project.of_joined_site(self.joined, offered.declared)
        installed = load_functions(project).summary.split()
        lacking = sorted({*str(offered.declared.get("functions", "")).split()} - {*installed})
        if lacking:
            raise WireError(
                f"this site lacks functions of its center, or has other code of them: {', '.join(lacking)}",
                where=str(project.folder / project.functions),
                hint="install the functions of the center here: no code is sent",
            )
        planned = Deployment.plan(load_catalog(project), deployed)
        if planned.deployed.version != deployed.version:
            raise WireError("what is declared does not give what is deployed: it was written by another catchment")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step()
                if self._failures:
                    _log.info("the center at %s answers again", self.joined.center_address)
                self._failures = 0
                self.failure = None
            except (CatchmentError, OSError) as error:  # a disk may be full for a while
                self.failure = str(error)
                if not self._failures:
                    _log.warning("the center cannot be followed; what was deployed runs on: %s", error)
                self._failures += 1
            self._stop.wait(self.pause_s())
