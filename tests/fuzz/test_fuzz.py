"""No input breaks a reader: it is read, or refused by an error of catchment, soon and in little memory.

Catches: tracebacks, hangs and memory bombs that bytes from a disk, a peer or a person can cause. Cannot catch: inputs
that are read and mean something wrong; the tests of each format compare what is read with what was written.

Inputs that once broke a reader are kept in `tests/golden/fuzz/<target>/` and tried in every run. To keep a new one, put
its bytes there in a file whose name says what was wrong.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catchment.errors import CatchmentError
from tests.fuzz.mutations import Mutation, mutations
from tests.fuzz.targets import GOLDEN, TARGETS, Target
from tests.worlds.tiers import examples

MAX_CPU_S = 1.0
MAX_GROWTH_KB = 256 * 1024  # of the peak memory of the process, by one input
KEPT = sorted((GOLDEN / "fuzz").glob("*/*"))


def check(target: Target, data: bytes) -> None:
    """Read an input within the bounds; only an error of catchment may come out."""
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.thread_time()
    said = "it is read"
    try:
        target.read(data)
    except CatchmentError as error:
        said = str(error)
    assert said, "a refusal says why"
    spent_s = time.thread_time() - start_s
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb
    assert spent_s < MAX_CPU_S, f"{spent_s:.1f} s of processor time for {len(data)} bytes"
    assert growth_kb < MAX_GROWTH_KB, f"{growth_kb} KB of memory for {len(data)} bytes"


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_fuzzer_starts_from_can_be_read(name: str) -> None:
    target = TARGETS[name]
    readable = 0
    for data in target.inputs:
        try:
            target.read(data)
            readable += 1
        except CatchmentError:
            continue
    assert readable, "every input is refused: the fuzzer would search in vain"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}: {path.name}")
def test_an_input_that_once_broke_a_reader_is_refused_or_read(path: Path) -> None:
    check(TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(range(len(target.inputs))), mutations(target.words))
    def search(start: int, changes: list[Mutation]) -> None:
        data = target.inputs[start]
        for change in changes:
            data = change.apply(data)
        check(target, data)

    search()
