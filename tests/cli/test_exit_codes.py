"""What the command line ends with when the machine below it fails: a message and a code, where it is not a bug."""

from __future__ import annotations

import errno
import os

import pytest

from catchment.cli import main as command_line
from catchment.cli.exit_codes import ExitCode


def ends_with(monkeypatch: pytest.MonkeyPatch, number: int) -> int:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "/state/journal-0.log")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS])
def test_a_machine_that_fails_is_told_from_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    assert ends_with(monkeypatch, number) == ExitCode.MACHINE_FAILED
    told = capsys.readouterr().err
    assert os.strerror(number) in told
    assert "/state/journal-0.log" in told
    assert "Traceback" not in told


def test_a_full_disk_has_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends_with(monkeypatch, errno.ENOSPC) == ExitCode.DISK_FULL


def test_any_other_failure_of_a_call_is_a_bug_and_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        ends_with(monkeypatch, errno.ENOENT)
