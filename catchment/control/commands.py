"""The commands of a deployment, by name: who may run them, and how; the same at the center and over the wire.

Changes are made one at a time, under a lock of the state folder, and each is written into the audit log with who asked
for it, whether it was made or refused.
"""

from __future__ import annotations

import getpass
import inspect
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from filelock import FileLock, Timeout

from catchment.control import answers, changes
from catchment.control.audit import AuditEntry, AuditLog
from catchment.errors import CatchmentError, ConfigError, WireError
from catchment.keys.tokens import OPERATOR, READER, Caller
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.storage.files import make_folder
from catchment.timeline import SystemClock

LOCK_FILE = "control.lock"
LOCK_TIMEOUT_S = 60.0  # how long a change waits for another one


@dataclass(frozen=True)
class Command:
    """One command; operators may run all, readers those that change nothing."""

    name: str
    run: Callable[..., Mapping[str, Any]]
    role: str = READER

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The types of its arguments, by name."""
        hints = get_type_hints(self.run)
        return {name: hints[name] for name in inspect.signature(self.run).parameters if name != "folder"}

    def read_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return checked arguments; they may come from another machine."""
        for name in given:
            if name not in self.parameters:
                hint = did_you_mean(name, self.parameters)
                raise WireError(f"{self.name} has no argument {name!r:.80}", hint=hint)
        try:
            read = {name: msgspec.convert(value, self.parameters[name]) for name, value in given.items()}
            inspect.signature(self.run).bind(Path(), **read)
        except (msgspec.ValidationError, TypeError) as error:
            raise WireError(f"{self.name} cannot be run with these arguments: {error}") from error
        return read


COMMANDS = {
    command.name: command
    for command in (
        Command("submit", changes.submit, OPERATOR),
        Command("drop", changes.drop, OPERATOR),
        Command("feeds submit", changes.submit_feeds, OPERATOR),
        Command("feeds drop", changes.drop_feeds, OPERATOR),
        Command("repair", changes.repair, OPERATOR),
        Command("repair windows", changes.repair_windows, OPERATOR),
        Command("resume", changes.resume, OPERATOR),
        Command("sites add", changes.add_site, OPERATOR),
        Command("sites retire", changes.retire_site, OPERATOR),
        Command("sites move", changes.move_site, OPERATOR),
        Command("sites replace", changes.replace_site, OPERATOR),
        Command("sites heal", changes.heal_site, OPERATOR),
        Command("sites list", answers.list_sites),
        Command("show status", answers.show_status),
        Command("show results", answers.show_results),
        Command("show windows", answers.show_windows),
        Command("show revisions", answers.show_revisions),
        Command("show quarantine", answers.show_quarantine),
        Command("show contracts", answers.show_contracts),
        Command("show late", answers.show_late),
        Command("show quality", answers.show_quality),
        Command("show queries", answers.show_queries),
        Command("show sinks", answers.show_sinks),
        Command("feeds submitted", answers.show_submitted_feeds),
        Command("show audit", answers.show_audit),
        Command("explain", answers.explain),
        Command("sql", answers.sql),
    )
}


def run_command(folder: Path, name: str, arguments: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """Run a command over the project in a folder, if its caller may; a change is serialised and audited."""
    command = COMMANDS.get(name)
    if command is None:
        raise WireError(f"there is no command {name!r:.80}", hint=did_you_mean(name, COMMANDS))
    if caller.role != OPERATOR and not (caller.role == READER == command.role):
        raise WireError(
            f"{caller.name!r} has the role {caller.role}, and {name!r} needs the role {command.role}",
            hint="catchment keys issue NAME --role operator makes keys of an operator",
        )
    read = command.read_arguments(arguments)
    if command.role == READER or read.get("dry_run"):
        return command.run(folder, **read)
    return _change(command, folder, read, caller)


def local_caller() -> Caller:
    """Return who runs a command at the center itself: whoever can write its state folder may do everything."""
    return Caller(f"{getpass.getuser()}@{socket.gethostname()}", OPERATOR)


def _change(command: Command, folder: Path, arguments: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    project = Project.load(folder)
    _refuse_at_joined_site(project)
    make_folder(project.state_folder)
    log = AuditLog(project.state_folder)
    asked = {name: value for name, value in arguments.items() if value is not None}
    try:
        with FileLock(project.state_folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S):
            entry = AuditEntry(SystemClock().now_us(), caller.name, caller.role, command.name, asked)
            try:
                answer = command.run(folder, **arguments)
            except CatchmentError as error:
                log.append(_refused(entry, error))
                raise
            log.append(_made(entry, answer))
            return answer
    except Timeout as error:
        raise ConfigError(
            f"another change has been under way for {LOCK_TIMEOUT_S:.0f} s",
            where=str(project.state_folder),
            hint="ask again; changes are made one at a time",
        ) from error


def _made(entry: AuditEntry, answer: Mapping[str, Any]) -> AuditEntry:
    version = answer.get("version")
    return AuditEntry(entry.at_us, entry.who, entry.role, entry.command, entry.arguments, version)


def _refused(entry: AuditEntry, error: CatchmentError) -> AuditEntry:
    return AuditEntry(entry.at_us, entry.who, entry.role, entry.command, entry.arguments, refused=error.message)


def _refuse_at_joined_site(project: Project) -> None:
    if project.joined is not None:
        raise ConfigError(
            "this is the folder of a site, where nothing is changed",
            where=str(project.folder),
            hint=f"give the change to the center: --center {project.joined.center_address}",
        )
