"""What the tests of commands share: a project with published results, and a shell of 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.cli import output
from tests.worlds.published import publish_project
from tests.worlds.shell import WIDTH, Shell


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_project(tmp_path_factory.mktemp("cli") / "p")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (output.console, output.notes):
        monkeypatch.setattr(console, "width", WIDTH)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)
