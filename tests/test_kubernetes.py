"""The manifests for Kubernetes: valid by its schemas, with commands, images and mounts that exist, one writer each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from catchment.cli.main import app
from catchment.project.sections import key_files

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "packaging" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
VERSION = "1.31"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def pods() -> list[tuple[str, dict[str, Any]]]:
    found = [(p.stem, d) for p in MANIFESTS for d in documents(p) if d["kind"] == "StatefulSet"]
    return [(name, stateful["spec"]) for name, stateful in found]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_valid_by_the_schemas_of_kubernetes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for document in documents(path):
        validate.validate(document, VERSION, strict=True)


def test_what_is_wrong_is_found_by_the_validator() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    (service, *_) = documents(FOLDER / "center.yaml")
    with pytest.raises(validate.ValidationError):
        validate.validate({**service, "spec": {"ports": [{"port": "grpc"}]}}, VERSION, strict=True)


def test_every_pod_is_one_writer_of_its_disk_with_a_command_and_an_image_that_exist() -> None:
    images = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "packaging" / "Containerfile").read_text(), re.MULTILINE)
    commands: Any = get_command(app)
    assert [name for name, _ in pods()] == ["center", "light-site", "site"]
    for _, spec in pods():
        assert spec["replicas"] == 1
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        name, tag = container["image"].split(":")
        assert (name, tag in images) == ("catchment", True)
        command, *options = container["args"]
        made = commands.commands[command].make_context(command, options, resilient_parsing=True)
        assert str(made.params["project"]) == "/srv/catchment"
        assert pod["securityContext"]["runAsNonRoot"] is True
        declared = {volume["name"] for volume in pod["volumes"]}
        declared |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == declared


def test_the_keys_of_a_pod_are_mounted_where_its_role_looks_for_them() -> None:
    for stem, spec in pods():
        site = {"center": "center", "site": "eu", "light-site": "shop"}[stem]
        (container,) = spec["template"]["spec"]["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        wanted = key_files(Path("/srv/catchment/keys"), site).tls_cert
        assert wanted is not None
        assert str(wanted.parent) in mounts
        assert "/srv/catchment/state" in mounts


def test_a_site_is_told_the_address_that_the_service_of_the_center_has() -> None:
    (service,) = [d for d in documents(FOLDER / "center.yaml") if d["kind"] == "Service"]
    named = service["metadata"]
    address = f"{named['name']}.{named['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    for name in ("site", "light-site"):
        (config,) = [d for d in documents(FOLDER / f"{name}.yaml") if d["kind"] == "ConfigMap"]
        assert f'center = "{address}"' in config["data"]["site.toml"]
