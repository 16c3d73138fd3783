"""The page of the protocol says what the code does: every example is a message, every operator and bound is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from catchment.feeds.cloud.instructions import MAX_BATCH
from catchment.feeds.device.device import FIRST_HELLO_PAUSE_US, LAST_HELLO_PAUSE_US, DeviceConfig
from catchment.feeds.device.publisher import MAX_SEEN
from catchment.feeds.forms.expression import MAX_DEPTH, OPERATORS
from catchment.feeds.forms.program import VALUE_TYPES, VERSION
from catchment.feeds.protocol.codec import MAX_MESSAGE_BYTES, MAX_TOKEN_CHARS, decode, encode
from catchment.feeds.protocol.messages import DOWNWARD, UPWARD

PAGE = (Path(__file__).parents[2] / "docs/reference/feeds-protocol.md").read_text(encoding="utf-8")
EXAMPLES = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line[:24])
def test_every_example_is_a_message_as_it_is_written(line: str) -> None:
    number, message = decode(line.encode())
    assert encode(number, message).decode() == line


def test_every_kind_of_message_and_instruction_has_an_example() -> None:
    shown = {type(decode(line.encode())[1]) for line in EXAMPLES}
    assert shown >= {*UPWARD, *DOWNWARD} - {type(None)}
    letters = {item[0] for line in EXAMPLES if (read := json.loads(line))[1] == "b" for item in read[2:]}
    assert letters == set("puixmt")


def test_every_operator_and_type_is_described() -> None:
    table = PAGE.partition("| operator |")[2].partition("Every operator is null")[0]
    assert [name for name in OPERATORS if f"`{name}`" not in table] == []
    assert [name for name in VALUE_TYPES if f"`{name}`" not in PAGE] == []


def test_the_bounds_are_those_of_the_code() -> None:
    bounds = [MAX_MESSAGE_BYTES, MAX_BATCH, MAX_DEPTH, MAX_TOKEN_CHARS, DeviceConfig("x").max_outbox, MAX_SEEN]
    table = PAGE.partition("## Bounds")[2]
    assert [bound for bound in bounds if f"| {bound:,}" not in table] == []
    assert f"after {FIRST_HELLO_PAUSE_US // 1_000_000} seconds" in PAGE
    assert f"at most {LAST_HELLO_PAUSE_US // 1_000_000} seconds" in PAGE
    assert f"describes version {VERSION}." in PAGE
