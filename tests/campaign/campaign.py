"""The loop of a campaign: inject the faults of a round, heal them, wait for rest, judge, and write the result down.

Results are lines of JSON, one per fault, appended and forced to disk; a campaign that was ended goes on after the last
of them, with the deployment that it left. A round that fails keeps its deployment for a look, and the next round begins
with a new one; so does one that was ended in the middle.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.campaign.faults.base import Fault, NotPossibleError
from tests.campaign.faults.files import find_refusals
from tests.campaign.living import SITES, Living
from tests.campaign.schedule import KINDS, Drawn, draw_round, needs_own_deployment
from tests.campaign.verdict import find_false_claims, find_problems, find_wrong_counters, show
from tests.worlds.waiting import PATIENCE_S

HELD, FAILED, NOT_STRUCK, NOT_POSSIBLE = "held", "failed", "not struck", "not possible"
REST_PATIENCE_S = PATIENCE_S
SETTLE_PATIENCE_S = 180.0
REFUSED_PATIENCE_S = 90.0  # after which a sender that is still refused for good is not waited for
REFUSED_US = 5_000_000  # how recent a refusal must be to count as one of now
FAILED_MARK = "FAILED"  # the file in the folder of a deployment that shows what went wrong
HARMED_MARK = "HARMED"  # the file that is there during a round: whoever ends then leaves faults that nobody heals


class RoundError(Exception):
    """What a round has shown to be wrong."""


@dataclass(frozen=True)
class Result:
    """What became of one fault."""

    seed: int
    round: int
    kind: str
    target: str
    outcome: str
    told: str  # what the operator saw
    problem: str
    heal_to_rest_s: float  # from the end of the faults until every answer was exact again
    round_s: float
    commit: str


@dataclass
class Campaign:
    """Runs the rounds of one seed in one folder."""

    folder: Path
    results: Path
    seed: int
    kinds: Sequence[str] = tuple(KINDS)
    sites: Sequence[str] = SITES
    say: Callable[[str], None] = print

    def run(self, faults: int, seconds: float | None = None) -> bool:
        """Run rounds until there are results of so many faults, or the time is over; return whether all held."""
        deadline_s = None if seconds is None else time.monotonic() + seconds
        all_held = True
        while self._is_due(faults, deadline_s):
            number = self._next_round()
            if needs_own_deployment(self._draw(number)):
                all_held &= self.run_alone(number)
                continue
            with self._next_living().running() as living:
                settle(living)
                is_held = True
                while is_held and self._is_due(faults, deadline_s):
                    drawn = self._draw(self._next_round())
                    if needs_own_deployment(drawn):
                        break
                    is_held = self.run_round(living, self._next_round(), drawn)
            all_held &= is_held
        return all_held

    def run_alone(self, number: int) -> bool:
        """Run one round with a new deployment; return whether it held."""
        drawn = self._draw(number)
        folder = self.folder / f"seed-{self.seed}-round-{number}-{os.getpid()}"
        with Living(folder, self.seed, self.sites, horizon=KINDS[drawn[0].kind].horizon).running() as living:
            settle(living)
            is_held = self.run_round(living, number, drawn)
        if is_held:
            shutil.rmtree(folder, ignore_errors=True)
        return is_held

    def _draw(self, number: int) -> list[Drawn]:
        return draw_round(self.seed, number, self.kinds, self.sites)

    def _next_round(self) -> int:
        done = [r.round for r in read_results(self.results) if r.seed == self.seed]
        return max(done, default=-1) + 1

    def _is_due(self, faults: int, deadline_s: float | None) -> bool:
        done = [r for r in read_results(self.results) if r.seed == self.seed and r.outcome in (HELD, FAILED)]
        return len(done) < faults and (deadline_s is None or time.monotonic() < deadline_s)

    def _next_living(self) -> Living:
        """Return the deployment to go on with: the newest that has not failed, and was left at rest."""
        number = 0
        while any((self.folder / f"seed-{self.seed}-{number}" / m).exists() for m in (FAILED_MARK, HARMED_MARK)):
            number += 1
        return Living(self.folder / f"seed-{self.seed}-{number}", self.seed, self.sites)

    def run_round(self, living: Living, number: int, drawn: Sequence[Drawn]) -> bool:
        """Inject the faults of a round, heal them, wait for rest, and write down what came of it; whether it held."""
        began_s = time.monotonic()
        named = ", ".join(f"{d.kind} at {d.target}" for d in drawn)
        self.say(f"round {number}: {named}")
        (living.folder / HARMED_MARK).write_text(named)
        faults = [d.make(living) for d in drawn]
        problem = ""
        rest_s = 0.0
        impossible: dict[Fault, str] = {}
        try:
            impossible = _harm(living, faults)
            rest_s = _recover(living, [f for f in faults if f not in impossible])
        except Exception as error:  # noqa: BLE001 - whatever a round leads to is its result
            place = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
        results = [
            Result(
                self.seed,
                number,
                fault.kind,
                fault.target,
                _outcome(fault, fault in impossible, problem),
                impossible.get(fault, fault.told),
                problem[:2000],
                round(rest_s, 1),
                round(time.monotonic() - began_s, 1),
                commit_of_code(),
            )
            for fault in faults
        ]
        append_results(self.results, results)
        self._tell(living, number, results)
        (living.folder / HARMED_MARK).unlink()
        return not problem

    def _tell(self, living: Living, number: int, results: Sequence[Result]) -> None:
        first = results[0]
        if not first.problem:
            self.say(f"  held; at rest {first.heal_to_rest_s:.0f} s after the end of the faults, {first.round_s:.0f} s")
            return
        (living.folder / FAILED_MARK).write_text(first.problem)
        words = "\n".join(f"--- {m.name}\n{m.last_words}" for m in living.machines.values())
        (living.folder / "last-words.txt").write_text(words)
        self.say(f"  FAILED: {first.problem}")
        self.say(f"  the deployment is kept in {living.folder}")
        self.say(f"  run this round again: {replay_command(self.seed, number, self.kinds, self.sites)}")


def _outcome(fault: Fault, is_impossible: bool, problem: str) -> str:
    if is_impossible:
        return NOT_POSSIBLE
    if problem:
        return FAILED
    return HELD if fault.has_struck else NOT_STRUCK


def _harm(living: Living, faults: Sequence[Fault]) -> dict[Fault, str]:
    """Inject the faults while records come; return those that this machine cannot inject, and why."""
    impossible: dict[Fault, str] = {}
    living.rest_s = dict(living.feed.next_s)
    living.feed.write_windows(living.live_sites, 1)
    for fault in faults:
        try:
            fault.inject()
        except NotPossibleError as error:
            impossible[fault] = str(error)
    living.feed.write_windows(living.live_sites, 1)
    injected = [fault for fault in faults if fault not in impossible]
    for fault in injected:
        fault.observe()
    return impossible


def _recover(living: Living, faults: Sequence[Fault]) -> float:
    """Heal the faults and wait for rest; return how long that took."""
    for fault in sorted(faults, key=lambda f: f.heals_last):
        fault.heal()
    healed_s = time.monotonic()
    until_s = living.feed.close_windows(living.live_sites)
    wait_for_rest(living, until_s)
    rest_s = time.monotonic() - healed_s
    _wait_for_none(lambda: find_wrong_counters(living), "counters do not add up")
    _wait_for_none(living.left_over, "processes were left over")
    return rest_s


def settle(living: Living) -> None:
    """Bring a deployment that has just started to rest."""
    living.feed.write_windows(living.live_sites, 1)
    wait_for_rest(living, living.feed.close_windows(living.live_sites))


def wait_for_rest(living: Living, until_s: int) -> None:
    """Wait until every window that ends by an event time is right; fail as soon as something is claimed wrongly."""
    began_s = time.monotonic()
    deadline_s = began_s + REST_PATIENCE_S
    while True:
        dead = [m for m in living.machines.values() if m.is_wanted and not m.is_alive]
        if dead:
            raise RoundError("; ".join(f"{m.name} ended with {m.exit_code}: {m.last_words[-600:]}" for m in dead))
        false = find_false_claims(living)
        if false:
            raise RoundError(f"windows claim what is not so:\n{show(false)}")
        problems = find_problems(living, until_s)
        if not problems:
            return
        refused = find_refusals(living.machines, time.time_ns() // 1000 - REFUSED_US)
        if time.monotonic() > began_s + REFUSED_PATIENCE_S and refused:
            raise RoundError(f"refused for good after the end of the faults: {refused[0]}:\n{show(problems)}")
        if time.monotonic() > deadline_s:
            raise RoundError(f"not at rest {REST_PATIENCE_S:.0f} s after the end of the faults:\n{show(problems)}")
        time.sleep(0.4)


def _wait_for_none(find: Callable[[], list[str]], what: str) -> None:
    deadline_s = time.monotonic() + SETTLE_PATIENCE_S
    while found := find():
        if time.monotonic() > deadline_s:
            raise RoundError(f"{what}:\n{show(found)}")
        time.sleep(0.5)


def read_results(path: Path) -> list[Result]:
    """Return the results of a file; a last line that is torn is left out."""
    return list(_read_lines(path.read_text().splitlines())) if path.exists() else []


def _read_lines(lines: Iterable[str]) -> Iterator[Result]:
    for line in lines:
        try:
            yield Result(**json.loads(line))
        except (ValueError, TypeError):
            continue


def append_results(path: Path, results: Iterable[Result]) -> None:
    """Append results and force them to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
        file.flush()
        os.fsync(file.fileno())


def replay_command(seed: int, number: int, kinds: Sequence[str], sites: Sequence[str]) -> str:
    """Return the command that runs one round again."""
    among = "" if tuple(sites) == SITES else f" --sites {','.join(sites)}"
    only = "" if tuple(kinds) == tuple(KINDS) else f" --kinds '{','.join(kinds)}'"
    return f"{Path(sys.executable).name} -m tests.campaign --seed {seed} --round {number}{only}{among}"


def commit_of_code() -> str:
    """Return the commit that is checked out."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
