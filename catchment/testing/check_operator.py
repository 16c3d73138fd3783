"""The laws of a project's operators with state, checked on many drawn rows: for the tests of a project.

    check_operator(Stops, [[48.1, 48.2], [11.5, 11.6], [0.0, 3.0]])

Rows are drawn from the examples of each input: any number of them, in any order. A host gives an operator one row at a
time, or, after a restart or a move, all that it has of a period; both must come to the same.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

from catchment.feeds.device.operator_runs import Args, to_batch, to_rows
from catchment.feeds.language.operators import FeedOperator, as_function
from catchment.testing.function_laws import MAX_ROWS, ROUNDS, Examples, LawBrokenError


def check_operator(made: type[FeedOperator], examples: Examples, *, rounds: int = ROUNDS, seed: int = 0) -> None:
    """Check that an operator is deterministic, changes no state it was given, and may be given rows in any parts.

    `examples` has a list of values for each input, without None: an event with NULL in an input is passed over. Rows
    of one key are drawn together, as hosts keep keys apart. The state after each row is at most `max_state_bytes`.
    """
    as_function(made)  # refuses what does not say what it is
    operator = made()
    rng = random.Random(seed)
    if len(examples) != len(operator.inputs) or not all(examples):
        raise LawBrokenError(f"{operator.name} has {len(operator.inputs)} inputs; give a list of values for each")
    for _ in range(rounds):
        key = [rng.choice(values) for values in examples]
        kept = [name in operator.key for name, _ in operator.inputs]
        rows = [
            tuple(key[at] if kept[at] else rng.choice(values) for at, values in enumerate(examples))
            for _ in range(rng.randrange(1, MAX_ROWS))
        ]
        _check_rows(operator, made(), rows, rng)


def _check_rows(operator: FeedOperator, again: FeedOperator, rows: list[Args], rng: random.Random) -> None:
    one_by_one = [[row] for row in rows]
    cut = rng.randrange(len(rows) + 1)
    expected = _run(operator, one_by_one, rows)
    if _run(operator, one_by_one, rows) != expected or _run(again, one_by_one, rows) != expected:
        raise LawBrokenError(f"{operator.name} gives other rows the second time", hint=f"the rows: {rows}")
    for parts in ([rows], [part for part in (rows[:cut], rows[cut:]) if part]):
        if _run(operator, parts, rows) != expected:
            sizes = [len(part) for part in parts]
            hint = f"the rows: {rows}"
            raise LawBrokenError(f"{operator.name} gives other rows in parts of {sizes} than one by one", hint=hint)


def _run(operator: FeedOperator, parts: list[list[Args]], rows: list[Args]) -> tuple[list[Args], bytes]:
    """Return what follows from rows that are given in parts, and the last state."""
    state: Any = operator.start()
    found: list[Args] = []
    for part in parts:
        before = pickle.dumps(state)
        after, made = operator.update(state, to_batch(part, operator.inputs))
        if pickle.dumps(state) != before and after is not state:
            raise LawBrokenError(f"{operator.name} changes a state that it was given", hint=f"the rows: {rows}")
        if pickle.dumps(state) != before:
            hint = "return a new state: the old one is needed where an update fails"
            raise LawBrokenError(f"{operator.name} changes the state in place", hint=hint)
        state = after
        try:
            found += to_rows(made, operator.outputs)
        except (TypeError, AttributeError) as error:
            raise LawBrokenError(f"{operator.name} makes rows that it did not declare: {error}") from error
        if len(pickle.dumps(state)) > operator.max_state_bytes:
            raise LawBrokenError(
                f"{operator.name} has a state of {len(pickle.dumps(state)):,} bytes, declared were "
                f"{operator.max_state_bytes:,}",
                hint=f"the rows: {rows}",
            )
    return found, pickle.dumps(state)
