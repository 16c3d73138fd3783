"""The golden vectors of the protocol are what this implementation gives; clients/javascript is held to the same file.

They catch an implementation that differs from this one. They cannot catch a mistake that both make: SQL and Spark are
compared with the evaluator in test_template.py, whole runs with the naive recomputation in test_runtime.py.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

from catchment.errors import FeedError
from catchment.feeds.forms.expression import OPERATORS, compile_tree, tree_of
from catchment.feeds.forms.program import VERSION
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.protocol.codec import decode
from catchment.feeds.protocol.messages import Admitted
from catchment.feeds.protocol.sampling import rank_of
from tests.worlds.feeds_vectors import PATH, refuses, replay, same, write_vectors


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("CATCHMENT_GOLDEN") == "write":
        write_vectors()
    read: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    assert read["version"] == VERSION, "write the vectors anew: see tests/worlds/feeds_vectors.py"
    return read


def test_ranks_and_expressions_have_the_golden_values(golden: dict[str, Any]) -> None:
    for feed, key, rank in golden["ranks"]:
        assert rank_of(feed, tuple(key)) == rank
    for tree, slots, result in golden["expressions"]:
        assert same(compile_tree(tree_of(tree), BUILT_IN)(tuple(map(tuple, slots))), result), tree


def test_devices_do_what_the_golden_ones_did(golden: dict[str, Any]) -> None:
    for script in golden["devices"]:
        for step, again in zip(script["steps"], replay(script), strict=True):
            assert same(step, again), (script["name"], step, again)


def test_the_golden_devices_computed_moved_and_notified(golden: dict[str, Any]) -> None:
    """A script in which nothing happens would prove nothing."""
    actions = [action[:2] for script in golden["devices"] for _, _, done in script["steps"] for action in done]
    kinds = Counter(map(tuple, actions))
    assert {("send", letter) for letter in "ehcrn"} <= set(kinds)
    assert kinds["notify", "n"] > 30


def test_the_vectors_use_every_operator_and_meet_null_true_and_false(golden: dict[str, Any]) -> None:
    expressions = golden["expressions"]
    used = json.dumps([tree for tree, _, _ in expressions])
    assert [name for name in OPERATORS if f'["{name}"' not in used] == []
    results = [result for _, _, result in expressions]
    assert all(sum(r is wanted for r in results) > 20 for wanted in (None, True, False))


def test_every_malformed_message_of_the_vectors_is_refused(golden: dict[str, Any]) -> None:
    assert [text for text in golden["refused"] if not refuses(text)] == []
    assert decode(b'[1,"a",1]') == (1, Admitted(1))


@pytest.mark.parametrize(
    "value", [[], [1], ["?"], ["at", 0], ["at", 0, -1], ["case", 1, 2], ["is", 1, 2], ["in", 1], {}, ["abs", 1, 2]]
)
def test_what_is_no_expression_is_refused(value: object) -> None:
    with pytest.raises(FeedError):
        tree_of(value)


def test_a_number_and_a_boolean_are_told_apart_in_a_program() -> None:
    assert compile_tree(tree_of(["is", ["at", 0, 0], True]), BUILT_IN)(((1,),)) is False
