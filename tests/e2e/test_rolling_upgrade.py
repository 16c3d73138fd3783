"""A center and three sites are upgraded one by one, from the state of the previous release, while records come.

What it proves: the state that the previous release has left is taken up by four processes on their own; while some of
them write and read only what that release did, and others more, every window is answered with all its records, and no
revision of a row is published twice. What it does not: until its upgrade a process runs the present code, restricted to
the previous version of frames, unless CATCHMENT_PREVIOUS_RELEASE names a folder with the package of that release.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.storage.files import read_record
from catchment.wire.frames.versions import NEWEST_VERSION, PREVIOUS_VERSION, VersionsByNumber
from catchment.wire.sending.outbox import STATE_FILE
from tests.worlds.answers import check_published_once
from tests.worlds.kept_deployment import CENTER, SITES, KeptDeployment, find_deployments, previous_release

pytestmark = [pytest.mark.e2e, pytest.mark.integration]


@pytest.mark.parametrize("archive", find_deployments(), ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_no_window_is_lost_or_doubled_while_processes_are_upgraded_one_by_one(archive: Path, tmp_path: Path) -> None:
    deployment = KeptDeployment(tmp_path, previous_release())
    deployment.take_up(archive)
    with deployment.running():
        deployment.put()
        deployment.wait_for_answers()
        assert set(written_versions(deployment).values()) == {PREVIOUS_VERSION}
        for name in (SITES[0], CENTER, *SITES[1:]):  # in whatever order
            deployment.upgrade(name)
        deployment.put()
        deployment.wait_for_answers()
        assert set(written_versions(deployment).values()) == {NEWEST_VERSION}
        for role in deployment.roles.values():
            role.stop()
    check_published_once(deployment.world.folder / "state")


def written_versions(deployment: KeptDeployment) -> dict[str, int]:
    """Return the version of frames that each site writes now, as its outbox says."""
    found = {}
    for site in SITES:
        state = read_record(deployment.roles[site].state / "outbox" / STATE_FILE)
        assert state is not None
        found[site] = VersionsByNumber(state.get("versions", ())).of(2**62)
    return found
