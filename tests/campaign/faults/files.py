"""Files of a role's state that are torn, zeroed, altered, gone, or older than the rest.

The role is killed, its folder is damaged and it is started again. It may go on, if nothing is lost by that; or it is
refused, by itself or by the role it sends to, with words for the operator. Then the operator puts the undamaged copy
back. What it may not do is to lose or double a record.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.campaign.faults.base import Fault
from tests.campaign.living import CENTER, HUB, RECEIVERS, ROLES, SITES
from tests.campaign.machines import Machine
from tests.worlds.waiting import wait_until

PARTS: Mapping[str, Sequence[str]] = {
    CENTER: ("journal", "inbox"),
    HUB: ("journal", "inbox", "outbox"),
    **dict.fromkeys(SITES, ("journal", "outbox")),
}
WATCH_S = 20.0  # how long a role that started with a damaged folder is watched for a refusal
FINAL_REFUSALS = ("other_history", "two_processes", "wrong_epoch", "blocked")


class StateFault(Fault):
    """A role is killed and its folder changed; it is started, and put right if it is refused."""

    targets = ROLES

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        """The role, and those that must be there to refuse it or to be refused by it."""
        others = {RECEIVERS[target]} if target in RECEIVERS else set()
        senders = {sender for sender, receiver in RECEIVERS.items() if receiver == target}
        return frozenset({target, f"link {target}", *others, *senders, *(f"link {s}" for s in senders)})

    def inject(self) -> None:
        self.machine.kill()
        self._copy = copy_folder(self.machine.state, self.living.folder / "copies" / f"{self.target}-right")
        self._since_us = time.time_ns() // 1000
        self.change(self.machine.state)
        self.machine.start()
        self.feed_windows(1)

    def change(self, state: Path) -> None:
        """Damage the folder."""

    def observe(self) -> None:
        """See whether it is refused; if it is not, the rest of the round shows whether all is right."""
        self.machine.wait_until_up()
        until_s = time.monotonic() + WATCH_S
        while time.monotonic() < until_s and not self.told:
            self.told = self.find_refusal()
            time.sleep(0.2)

    def find_refusal(self) -> str:
        """Return the words by which the role, or who receives from it, refuses."""
        if not self.machine.is_alive:
            code = self.machine.exit_code
            assert code, f"{self.target} ended with exit code {code} as if all were right"
            return f"exit code {code}: {last_error(self.machine.last_words)}"
        refusal = find_refusal_of(self.living.machines, self.target, self._since_us)
        return refusal or (find_stopped_reader(self.machine) if self.machine.has_reported else "")

    def heal(self) -> None:
        if self.told:
            self.machine.kill()
            put_folder(self._copy, self.machine.state)
            self.machine.start()
        else:
            self.told = "it went on by itself"


class DamagedFile(StateFault):
    """One file of a drawn part is damaged."""

    def change(self, state: Path) -> None:
        part = state / self.chance.choice(PARTS[self.target])
        files = sorted(p for p in part.rglob("*") if p.is_file() and p.stat().st_size and p.name != "in-use")
        if files:
            newest = sorted(files, key=lambda p: p.stat().st_mtime)[-3:]
            self.damage(self.chance.choice(newest))

    def damage(self, file: Path) -> None:
        """Damage the file."""


class TornFile(DamagedFile):
    kind = "torn file"

    def damage(self, file: Path) -> None:
        with file.open("r+b") as opened:
            opened.truncate(self.chance.randrange(file.stat().st_size))


class ZeroedFile(DamagedFile):
    kind = "zeroed file"

    def damage(self, file: Path) -> None:
        size = file.stat().st_size
        begin = self.chance.choice([0, size // 2])
        with file.open("r+b") as opened:
            opened.seek(begin)
            opened.write(bytes(size - begin))


class RottenFile(DamagedFile):
    kind = "one bit of a file altered"

    def damage(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        file.write_bytes(data)


class DeletedPart(StateFault):
    """The journal, the outbox or the inbox is gone."""

    kind = "part of the state deleted"

    def change(self, state: Path) -> None:
        shutil.rmtree(state / self.chance.choice(PARTS[self.target]), ignore_errors=True)


class OlderPart(StateFault):
    """The journal, the outbox or the inbox is an older copy."""

    kind = "part of the state older"

    def inject(self) -> None:
        self._part = self.chance.choice(PARTS[self.target])
        older = copy_folder(self.machine.state / self._part, self.living.folder / "copies" / f"{self.target}-part")
        self._older = older
        self._work()
        super().inject()

    def _work(self) -> None:
        """Let the role do something that the older copy does not know, and tell everybody that sends to it.

        A sender to which nothing was acknowledged since the copy would not notice that the copy is old. What it sends
        would be acknowledged, and lost when the right folder is put back.
        """
        names = _names(self.machine.state / "journal")
        senders = [self.living.machines[s] for s, link in self.living.links.items() if RECEIVERS[s] == self.target]
        sent = {sender.name: sender.status.get("bytes_sent", 0) for sender in senders}
        self.feed_windows(2)

        def has_worked() -> bool:
            is_acknowledged = all(
                sender.status.get("bytes_sent", 0) > sent[sender.name] and not sender.status.get("queued_bytes")
                for sender in senders
                if sender.is_alive
            )
            return is_acknowledged and _names(self.machine.state / "journal") != names

        wait_until(lambda: not self.machine.is_alive or has_worked(), f"{self.target} to work on", 120.0)

    def change(self, state: Path) -> None:
        put_folder(self._older, state / self._part)


class RestoredRole(OlderPart):
    """The whole folder of a role is an older copy."""

    kind = "restored from an older copy"

    def inject(self) -> None:
        older = copy_folder(self.machine.state, self.living.folder / "copies" / f"{self.target}-older")
        self._older = older
        self._work()
        StateFault.inject(self)

    def change(self, state: Path) -> None:
        put_folder(self._older, state)


def copy_folder(folder: Path, to: Path) -> Path:
    """Copy a folder that may be changing; return where the copy is."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for path in sorted(folder.rglob("*")):
        target = to / path.relative_to(folder)
        try:
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        except FileNotFoundError:  # it was removed while we looked
            continue
    return to


def put_folder(copy: Path, folder: Path) -> None:
    """Make a folder equal to a copy; the folder itself stays, because a disk may be mounted there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(copy, folder, dirs_exist_ok=True)


def find_refusal_of(machines: Mapping[str, Machine], role: str, since_us: int) -> str:
    """Return why a role is refused for good, or refuses who sends to it; empty if nobody is refused."""
    concerned = {s: r for s, r in RECEIVERS.items() if role in (s, r)}
    return next(iter(find_refusals(machines, since_us, concerned)), "")


def find_refusals(machines: Mapping[str, Machine], since_us: int, links: Mapping[str, str] = RECEIVERS) -> list[str]:
    """Return why senders of some links are refused for good."""
    found = []
    for sender, receiver in links.items():
        if sender not in machines:
            continue
        status = machines[receiver].status
        if sender in status.get("blocked", {}):
            found.append(f"blocked: {status['blocked'][sender]}")
        for reason, told in status.get("refusals", {}).get(sender, {}).items():
            if reason in FINAL_REFUSALS and told["last_us"] >= since_us:
                found.append(f"{reason}: {told['message']}")
    return found


def find_stopped_reader(machine: Machine) -> str:
    """Return why a reader of a site does not read; empty if all do."""
    for name, reader in machine.status.get("streams", {}).items():
        if reader["state"] in ("failed", "retrying"):
            return f"{name} {reader['state']}: {reader.get('reason')}"
    return ""


def last_error(words: str) -> str:
    """Return the last error that a process printed."""
    lines = [line for line in words.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error")]
    return " ".join(lines[errors[-1] :] if errors else lines[-3:])[:300]


def _names(folder: Path) -> list[tuple[str, int]]:
    return sorted((p.name, p.stat().st_size) for p in folder.glob("*") if p.exists())


KINDS = (TornFile, ZeroedFile, RottenFile, DeletedPart, OlderPart, RestoredRole)
