"""The notebooks of `examples/` run and check their answers against a recomputation; they are kept with their outputs.

`CATCHMENT_NOTEBOOKS=write pytest tests/spark/test_notebooks.py -k runs` writes the outputs.

Catches: a notebook that fails with the present code. Cannot catch: outputs that look different now.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_CELL_S = 1_200
WITHOUT_SPARK = ("nearby_friends",)
heavy = (pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak)


def test_there_are_three() -> None:
    assert [book.stem for book in NOTEBOOKS] == ["nearby_friends", "sensors", "web_logs"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run from top to bottom"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert "text/html" in shown
    assert "image/svg+xml" in shown or path.stem in WITHOUT_SPARK


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=() if p.stem in WITHOUT_SPARK else heavy, id=p.stem) for p in NOTEBOOKS]
)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book,
        timeout=LONGEST_CELL_S,
        startup_timeout=LONGEST_CELL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    if os.environ.get("CATCHMENT_NOTEBOOKS") == "write":
        for cell in book.cells:
            cell.metadata.pop("execution", None)  # the times of a run say nothing to a reader
        nbformat.write(book, path)
