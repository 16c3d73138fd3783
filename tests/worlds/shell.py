"""The command line in this process, as `catchment ...` would run it on a terminal of 80 columns."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from catchment.cli.main import main

WIDTH = 80


class Shell:
    """Runs the command line in this process, as `catchment ...` would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> str:
        code, out, err = self.ends(*words)
        assert code == 0, err
        return out

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json"))

    def ends(self, *words: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["catchment", *(str(w) for w in words)])
        code = self._run()
        said = self.capsys.readouterr()
        return code, said.out, said.err

    @staticmethod
    def _run() -> int:
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0
