"""Somebody new gets from a clean clone to a live page and to a first answer of their own with what the README says.

Catches: a README that leaves out a step, or a step that fails. Cannot catch: how fast it is, which is printed only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.newcomer import ROOT, readme_lines, run_newcomer


def test_the_readme_has_the_demo_a_csv_file_and_python_for_newcomers() -> None:
    lines = [line for _, line in readme_lines((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert any(line.startswith("make demo") for line in lines)
    assert any("--from data.csv" in line for line in lines)
    assert any("catchment.open" in line for line in lines)
    assert not any(line.startswith("make test") for line in lines)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.e2e
def test_a_newcomer_gets_to_a_live_page_and_to_an_answer_of_their_own(tmp_path: Path) -> None:
    steps = run_newcomer(tmp_path, Path(sys.prefix))
    print(*(f"{seconds:8.1f} s  {name}" for name, seconds in steps), sep="\n")
    assert "... its live page" in dict(steps)
