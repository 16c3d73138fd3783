"""Every benchmark runs in its short form and renders what it found; without its data it is skipped with a reason."""

from __future__ import annotations

import importlib

import pytest
from rich.console import Console

from benchmarks import BENCHMARKS
from catchment.errors import ConfigError

pytestmark = [pytest.mark.soak, pytest.mark.spark]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_short_form_of_a_benchmark_runs_and_renders(name: str) -> None:
    module = importlib.import_module(BENCHMARKS[name])
    reported: list[str] = []
    try:
        result = module.run(reported.append, True)
    except ConfigError as error:
        pytest.skip(f"{name}: {error}")
    assert result
    console = Console(width=200, record=True, file=None, quiet=True)
    console.print(module.render(result))
