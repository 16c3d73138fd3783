"""Centers and sites of different versions: what is understood, and what is refused by name while all runs on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catchment.control.bundle import Bundle
from catchment.control.follower import Follower
from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore
from catchment.errors import WireError
from catchment.project.joined_site import JoinedSite
from catchment.storage import codec
from tests.worlds.control_world import ControlWorld, ScriptedCenter
from tests.worlds.state_fixtures import SPARK_KIND, find_archives, kind_of, unpack

PROJECTS = [path for path in find_archives() if kind_of(path) == SPARK_KIND]


def make_home(folder: Path, site: str) -> Path:
    folder.mkdir()
    (folder / "site.toml").write_text(f'[site]\nname = "{site}"\ncenter = "127.0.0.1:9410"\n')
    return folder


@pytest.mark.parametrize("archive", PROJECTS, ids=lambda path: path.parent.name)
def test_a_site_follows_what_a_center_of_an_earlier_release_has_deployed(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "released")
    written = DeploymentStore(folder / "state").read_document()
    deployment = Deployment.load(folder)
    assert written is not None
    bundle = replace(Bundle.of(deployment), document=written)
    site = deployment.sites[0]
    home = make_home(tmp_path / "home", site)
    follower = Follower(JoinedSite.load(home), ScriptedCenter(bundle.to_message()))
    follower.step()
    assert follower.refused is None
    assert Deployment.load(home).fragments_at(site) == deployment.fragments_at(site)
    assert follower.read_installed() == bundle

    upgraded = Bundle.of(deployment)  # the center was upgraded and writes the same deployment in its own form
    Follower(JoinedSite.load(home), ScriptedCenter(upgraded.to_message())).step()
    assert follower.read_installed() == upgraded


def test_what_a_newer_center_has_deployed_is_refused_by_name_and_what_runs_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ControlWorld(tmp_path)
    home = world.make_site("a")
    deployment = Deployment.load(world.folder)
    Follower(JoinedSite.load(home), ScriptedCenter(Bundle.of(deployment).to_message())).step()
    with monkeypatch.context() as newer:
        known = codec._REGISTRY["Deployed"]
        newer.setitem(codec._REGISTRY, "Deployed", replace(known, version=known.version + 1))
        later = replace(deployment, deployed=replace(deployment.deployed, version=deployment.deployed.version + 1))
        bundle = Bundle.of(later)
    follower = Follower(JoinedSite.load(home), ScriptedCenter(bundle.to_message()))
    follower.step()
    assert "was written by a newer catchment" in str(follower.refused)
    assert Deployment.load(home).deployed == deployment.deployed


def test_a_sender_one_version_behind_is_answered_and_a_newer_one_is_refused_by_name(tmp_path: Path) -> None:
    world = ControlWorld(tmp_path)
    world.start(protocol=2)
    try:
        assert world.as_person("rita").run("show queries", {})["queries"]
        world.follower(world.make_site("a")).step()
    finally:
        world.stop()
    world.start(protocol=0)
    try:
        with pytest.raises(WireError, match=r"speaks version 1 of the control protocol.*versions 1 to 0") as caught:
            world.as_person("rita").run("show queries", {})
        assert "upgrade the center first" in str(caught.value.hint)
    finally:
        world.stop()
