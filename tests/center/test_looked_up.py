"""Windows say in which versions of tables their records were looked up, without Spark.

Catches: a window that is exact and does not say as of what, a version that is lost because no record found a row, that
is told twice or after the mark that covers it, or that stays after its window was computed again. Cannot catch: which
version a batch has used; `tests/spark/test_lookup_tables.py` does.
"""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL
from catchment.center.windows.looked_up import MAX_TOLD, LookedUpVersions
from catchment.site import events as site_events
from catchment.site import looked_up
from catchment.site.looked_up import VersionsInUse
from catchment.storage.codec import decode, encode
from catchment.timeline import ManualClock, WindowSpec
from catchment.wire.frames.codec import decode_segment
from catchment.wire.messages import LookedUp, Progress
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, lifted, make_fragment

TEN = WindowSpec.tumbling(10)


class LookingSite(Site):
    """A site whose batches are looked up in a version of a table, also those records that find nothing."""

    def look_up(self, found: list[Record], mark: int, version: str, slices: tuple[int, ...]) -> None:
        fact = LookedUp(self.fragment.name, "tiers", version, slices)
        absorbed = [lifted(self.fragment, found)] if found else []
        self.host.submit("s", [*absorbed, fact, site_events.LowMarkRaised("s", mark)], batch=self.batches)
        self.batches += 1


def world(folder: Path, window: WindowSpec = TEN, horizon: int = 1000) -> tuple[Center, list[LookingSite]]:
    clock = ManualClock()
    fragment = make_fragment(window)
    names = ("a", "b")
    center = Center(folder / "center", CenterQuery("q", fragment, window, names, horizon), clock)
    return center, [LookingSite(folder / n, n, fragment, "batching", clock) for n in names]


def deliver(center: Center, *sites: LookingSite) -> None:
    for site in sites:
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()


def test_a_window_says_as_of_which_version_it_is_exact_and_where_sites_differ(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path)
    a.look_up([(1, "k", 1), (11, "k", 1)], 20, "v1", (0, 10))
    b.look_up([(1, "k", 1)], 10, "v1", (0,))
    b.look_up([(12, "k", 1)], 20, "v2", (10,))
    deliver(center, a, b)
    told = {p.window.start_us: (p.status, p.reason) for p in center.tables.published}
    assert told == {
        0: (EXACT, "closed: every site has passed its end; as of version v1 of table tiers"),
        10: (EXACT, "closed: every site has passed its end; as of 2 versions of table tiers (v1 at a; v2 at b)"),
    }


def test_records_that_find_nothing_were_looked_up_all_the_same(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path)
    a.look_up([(1, "k", 1)], 10, "v2", (0,))
    b.look_up([], 10, "v1", (0,))
    deliver(center, a, b)
    (published,) = center.tables.published
    assert published.reason.endswith("; as of 2 versions of table tiers (v1 at b; v2 at a)")


def test_late_records_that_find_nothing_let_their_window_say_more_and_merged_ones_revise_it(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path, horizon=100)
    for site in (a, b):
        site.look_up([(1, "k", 1)], 10, "v1", (0,))
    deliver(center, a, b)
    a.look_up([], 12, "v2", (0,))
    deliver(center, a)
    first, second = center.tables.published
    assert (second.status, second.revision, second.has_answer) == (EXACT, first.revision, False)
    assert second.reason == "late records were looked up; as of 2 versions of table tiers (v1 at a, b; v2 at a)"
    a.look_up([(2, "k", 1)], 13, "v3", (0,))
    deliver(center, a)
    for site in (a, b):
        site.batch([], 500)
    deliver(center, a, b)
    last = center.tables.published[-1]
    assert last.status == FINAL
    assert last.reason.endswith("; as of 3 versions of table tiers (v1 at a, b; v2 at a; v3 at a)")
    assert not center.core.queries["q"].windows.state.looked_up, "nothing is kept of windows that are final"


def test_a_site_states_each_slice_and_version_once_with_what_it_is_about(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path)
    b.batch([], 30)
    for mark in (0, 0, 0, 10):
        a.look_up([(1, "k", 1)], mark, "v1", (0, 10))
    a.look_up([], 20, "v1", (0, 10))
    facts = [f for f in sent(a) if isinstance(f, LookedUp | Progress)]
    first = [LookedUp("q", "tiers", "v1", (0, 10)), Progress("q", 0, 0)]
    assert facts == [*first, Progress("q", 10, 1), Progress("q", 20, 1)]
    deliver(center, a, b)
    assert center.tables.published[-1].reason.endswith("; as of version v1 of table tiers")


def sent(site: Site) -> list[object]:
    numbers = range(site.outbox.next_sequence)
    return [m for n in numbers if (data := site.outbox.read(n)) is not None for m in decode_segment(data).messages]


@settings(max_examples=examples(50))
@given(noted=st.lists(st.tuples(st.sampled_from(["v1", "v2"]), st.sets(st.integers(0, 5), min_size=1), st.booleans())))
def test_all_that_was_looked_up_is_stated_in_order_whatever_is_forgotten(
    noted: list[tuple[str, set[int], bool]],
) -> None:
    """Against a set of all pairs; a restart in between changes nothing."""
    versions = VersionsInUse()
    stated: set[tuple[str, int]] = set()
    for version, slices, leaves in noted:
        versions.note(LookedUp("q", "t", version, tuple(sorted(slices))), 0, 5)
        versions = decode(encode(versions))
        if leaves:
            stated |= {(fact.version, s) for fact in versions.take_facts("q") for s in fact.slices}
            assert not versions.take_facts("q")
    stated |= {(fact.version, s) for fact in versions.take_facts("q") for s in fact.slices}
    assert stated == {(version, s) for version, slices, _ in noted for s in slices if s < 5}
    assert all(len(slices) <= looked_up.MAX_SLICES for slices in versions.stated.values())


def test_of_very_many_versions_some_are_named_and_final_windows_take_no_more() -> None:
    known = LookedUpVersions(WindowSpec(20, 10), {})
    for number in range(MAX_TOLD + 3):
        known.add("a", LookedUp("q", "t", f"v{number}", (10,)), 10)
    assert set(known.known) == {0, 10}, "a slice is in two windows"
    assert known.tell(0).endswith("v3 at a and 3 more)")
    assert known.take_untold() == {10}
    known.forget_ended(20, kept=())
    known.add("a", LookedUp("q", "t", "v9", (0,)), 20)
    assert set(known.known) == {10}
