"""The account of a fragment, on the real core: every accepted record is evaluated, owed, suspended or quarantined.

Catches: a batch that is counted twice or not at all, whatever became of it. Cannot catch: a pipeline that states a
wrong number of accepted records.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import SiteError
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample
from catchment.shedding.sampler import Sampler
from catchment.site.account import BatchAccepted
from catchment.site.core import SiteCore
from catchment.site.events import Event, FragmentAdded
from catchment.site.policies.registry import policy_by_name
from catchment.site.suspension import BatchSkipped, FragmentResumed, FragmentSuspended, RecordsQuarantined
from catchment.storage.codec import decode, encode
from tests.worlds.site_support import absorbed, fragment

F = fragment("f")


def started() -> SiteCore:
    core = SiteCore()
    core.handle(FragmentAdded(F, policy_by_name("batching")), 0)
    return core


def events_of(kind: str, batch: int, records: int) -> list[Event]:
    """A batch of so many records, as the pipeline journals it."""
    accepted = BatchAccepted("s", batch, records)
    took = absorbed(F, [(1, "a", 1)] * records)
    match kind:
        case "skip":
            suspended = FragmentSuspended("s", batch, "f", 0, "fails")
            return [accepted, suspended, BatchSkipped("f", batch, ((0, records),)), FragmentResumed("f")]
        case "quarantine":
            return [accepted, took, RecordsQuarantined("f", batch, ((0, min(records, 2)),))]
        case "shed" | "given up":
            sample = FragmentSample("f", Sampler(0.5), ((0, records),), repair=kind == "shed")
            return [accepted, took, BatchShed("s", batch, (sample,))]
    return [accepted, took]


KINDS = ["take", "skip", "quarantine", "shed", "given up"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.booleans()), max_size=20))
def test_accepted_is_evaluated_and_owed_and_suspended_and_quarantined(batches: list[tuple[str, int, bool]]) -> None:
    core = started()
    by_hand: Counter[str] = Counter()
    for number, (kind, records, is_repaired) in enumerate(batches):
        core.handle_all(events_of(kind, number, records), 0)
        by_hand["accepted"] += records
        if kind == "shed" and is_repaired:
            core.handle_all([absorbed(F, [(1, "a", 1)]), BatchRepaired("s", number, ("f",))], 0)
            kind = "take"
        where = {"skip": "suspended", "shed": "owed", "given up": "owed"}.get(kind, "evaluated")
        by_hand[where] += records - (min(records, 2) if kind == "quarantine" else 0)
        by_hand["quarantined"] += min(records, 2) if kind == "quarantine" else 0
        again = SiteCore()
        again.restore(decode(encode(core.snapshot())))
        core = again
        account = core.fragment_status()["f"]["account"]
        assert account == {n: by_hand[n] for n in account}
        assert account["accepted"] == sum(account[n] for n in ("evaluated", "owed", "suspended", "quarantined"))


def test_a_batch_of_which_nothing_becomes_is_unaccounted_for() -> None:
    core = started()
    core.handle(BatchAccepted("s", 0, 5), 0)
    assert core.fragment_status()["f"]["account"]["unaccounted"] == 5


def test_a_negative_number_of_records_is_refused() -> None:
    with pytest.raises(SiteError, match="neither is negative"):
        BatchAccepted("s", 0, -1)
