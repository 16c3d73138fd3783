"""Whether a deployment is right: its answers are those of its records, or say what they lack; its counters add up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.center.statuses import EXACT, FINAL, SUSPENDED
from catchment.errors import CenterError
from tests.campaign.feed import Totals
from tests.campaign.living import Living

TOTALS, CASTS = "totals", "casts"
SHOWN = 8  # problems that are shown of many


@dataclass(frozen=True)
class Answer:
    """What was published of one window last."""

    status: str
    missing: frozenset[str]
    coverage: float
    rows: Totals

    def describe(self) -> str:
        missing = f" without {','.join(sorted(self.missing))}" if self.missing else ""
        return f"{self.status}{missing}, coverage {self.coverage:.3f}"


def read_answers(living: Living, view: str) -> Mapping[int, Answer]:
    """Return the newest answer of each published window of a view; read again only if something was published."""
    tables = [living.state / part / view / "_delta_log" for part in ("results", "windows")]
    commits = frozenset(str(path) for table in tables for path in table.glob("*.json"))
    if view not in living.seen_answers or living.seen_answers[view][0] != commits:
        living.seen_answers[view] = commits, _read_published(living, view)
    answers: Mapping[int, Answer] = living.seen_answers[view][1]
    return answers


def _read_published(living: Living, view: str) -> Mapping[int, Answer]:
    try:
        log = newest_windows(read_windows(living.state, view)).to_pylist()
        found = read_results(living.state, view).to_pylist()
    except CenterError:  # nothing is published yet
        return {}
    rows: dict[int, dict[str, tuple[int, int]]] = {}
    for row in found:
        window_s = int(row["window_start"].timestamp())
        of_window = rows.setdefault(window_s, {})
        key = row.get("k") or ""
        assert key not in of_window, f"row {key!r} of window {window_s} of {view} is there twice"
        of_window[key] = (row["n"], row["total"] or 0)
    return {int(w["window_start"].timestamp()): _answer(w, rows) for w in log}


def _answer(window: Mapping[str, Any], rows: Mapping[int, Totals]) -> Answer:
    start_s = int(window["window_start"].timestamp())
    missing = frozenset(window["missing_sites"] or ())
    return Answer(window["status"], missing, window["coverage"], rows.get(start_s, {}))


def find_problems(living: Living, until_s: int) -> list[str]:
    """Return what is wrong with the answers of all windows that end by an event time; nothing once all is at rest."""
    return [*_check_view(living, TOTALS, until_s), *_check_view(living, CASTS, until_s)]


def find_false_claims(living: Living) -> list[str]:
    """Return the windows that claim to be complete now and are not; that is wrong at any moment.

    Windows whose records were written out of order may be revised, and so may become wrong for a while.
    """
    late = living.feed.late_windows()
    found = []
    for view in (TOTALS, CASTS):
        for window_s, answer in read_answers(living, view).items():
            if answer.status not in (EXACT, FINAL) or answer.missing or window_s in late:
                continue
            if answer.rows != expect(living, view, window_s):
                found.append(f"{view} {window_s}: {answer.describe()}, {_difference(living, view, window_s, answer)}")
    return found


def _check_view(living: Living, view: str, until_s: int) -> Iterator[str]:
    answers = read_answers(living, view)
    for window_s in living.feed.windows(until_s):
        answer = answers.get(window_s)
        if answer is None:
            yield f"{view} {window_s}: not published"
            continue
        problem = judge(living, view, window_s, answer)
        if problem:
            yield f"{view} {window_s}: {answer.describe()}, {problem}"


def judge(living: Living, view: str, window_s: int, answer: Answer) -> str:
    """Return what is wrong with the last answer of a window, once all faults are over; empty if it is right."""
    allowed = living.may_lack(view, window_s)
    if not answer.missing <= allowed:
        return f"lacks {sorted(answer.missing - allowed)}"
    if answer.rows == expect(living, view, window_s):
        return "" if answer.missing or answer.status in (EXACT, FINAL) else "whole, but not exact"
    if not answer.missing:
        return f"names nobody and is wrong: {_difference(living, view, window_s, answer)}"
    if answer.status == EXACT:
        return "lacks records and says exact"
    return _judge_part(living, view, window_s, answer)


def _judge_part(living: Living, view: str, window_s: int, answer: Answer) -> str:
    """Judge a window that names who is missing: it has everything of the others, and no more than there is."""
    least = expect(living, view, window_s, [s for s in living.sites if s not in answer.missing])
    most = expect(living, view, window_s)
    for key in {*least, *most, *answer.rows}:
        n = answer.rows.get(key, (0, 0))[0]
        if not least.get(key, (0, 0))[0] <= n <= most.get(key, (0, 0))[0]:
            return f"key {key!r} has {n} records, expected {least.get(key)} to {most.get(key)}"
    return ""


def expect(living: Living, view: str, window_s: int, sites: Sequence[str] | None = None) -> Totals:
    """Recompute a window from the records of some sites, or of all."""
    added: dict[str, tuple[int, int]] = {}
    for site in living.sites if sites is None else sites:
        for key, (count, total) in living.feed.totals(site, window_s).items():
            place = key if view == TOTALS else ""
            value = total if view == TOTALS else count  # every text that can be cast is "1"
            before = added.get(place, (0, 0))
            added[place] = (before[0] + count, before[1] + value)
    return added


def _difference(living: Living, view: str, window_s: int, answer: Answer) -> str:
    expected = expect(living, view, window_s)
    wrong = {k: (answer.rows.get(k), expected.get(k)) for k in {*expected, *answer.rows}}
    return ", ".join(f"{k or 'all'}: {got} instead of {e}" for k, (got, e) in sorted(wrong.items()) if got != e)


def find_wrong_counters(living: Living) -> list[str]:
    """Return which sites did not account for every record: read = accepted + quarantined, accepted = evaluated + ..."""
    found = []
    for site in living.live_sites:
        status = living.machines[site].status
        for name, fragment in status.get("fragments", {}).items():
            account = fragment["account"]
            if account["unaccounted"]:
                found.append(f"{site}: {account['unaccounted']} records of {name} are unaccounted for")
            fed = living.feed.good_records(site)
            if site not in living.replaced_sites and account["accepted"] != fed:
                found.append(f"{site}: {name} accepted {account['accepted']} of {fed} records")
        aside = count_quarantined(living, site)
        if site not in living.replaced_sites and aside != living.feed.bad_records(site):
            found.append(f"{site}: {aside} records are in quarantine, {living.feed.bad_records(site)} are bad")
    return found


def count_quarantined(living: Living, site: str) -> int:
    """Return how many records a site has set aside; a file that is being written now counts for nothing yet."""
    count = 0
    for path in living.state_of(site).glob("quarantine/events/batch=*/*.parquet"):
        with contextlib.suppress(FileNotFoundError, pa.ArrowInvalid):
            count += pq.read_metadata(path).num_rows
    return count


def is_suspended(living: Living, window_s: int) -> bool:
    """Return whether the window of casts says that it was not computed as a whole."""
    answer = read_answers(living, CASTS).get(window_s)
    return answer is not None and answer.status == SUSPENDED


def show(problems: list[str]) -> str:
    """Return some of the problems, one per line."""
    more = f"\n... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return "\n".join(problems[:SHOWN]) + more
