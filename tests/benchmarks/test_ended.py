"""A benchmark that is told to end ends what it has started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from catchment.cli.commands import bench


@pytest.fixture
def ends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark that gets SIGTERM while it runs; the path is there once it has cleaned up."""
    cleaned = tmp_path / "cleaned"
    module = ModuleType("ends_itself")

    def run(report: object, quick: bool) -> dict[str, object]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 10)  # until the signal is handled
        finally:
            cleaned.touch()
        return {}

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ends_itself", module)
    monkeypatch.setattr(bench, "_benchmarks", lambda: {"ends_itself": "ends_itself"})
    return cleaned


def test_a_benchmark_that_is_told_to_end_cleans_up_first(ends_itself: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            bench._run("ends_itself", True, None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert ends_itself.exists()
