"""A shell for SQL over published results, with history and completion where there is readline."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from catchment.center.results.read import published_views
from catchment.center.results.sql import SqlLimits, query_results
from catchment.errors import CatchmentError

HISTORY = Path("~/.catchment_history")
HISTORY_LINES = 1_000
PROMPT = "catchment> "
CONTINUED = "      ...> "
HELP = (
    "Statements end with ; and read NAME (latest rows of a view) or NAME__revisions (all). \\d lists views, \\q ends."
)
WORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "ORDER",
    "HAVING",
    "LIMIT",
    "AS",
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "NULL",
    "DESC",
    "ASC",
    "JOIN",
    "ON",
    "USING",
    "WITH",
    "DISTINCT",
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "confidence",
    "window_start",
    "window_end",
    "status",
    "coverage",
    "revision",
    "published_at",
    "missing_sites",
]


@dataclass
class SqlShell:
    """Takes lines, answers statements. `show` prints rows, `say` a line, `fail` an error."""

    state: Path
    limits: SqlLimits
    show: Callable[[Sequence[dict[str, object]]], None]
    say: Callable[[str], None]
    fail: Callable[[CatchmentError], None]
    is_over: bool = False
    _pending: list[str] = field(default_factory=list)

    @property
    def prompt(self) -> str:
        return CONTINUED if self._pending else PROMPT

    def take(self, line: str) -> None:
        """Take one line: a command, or a part of a statement."""
        if not self._pending and line.strip().startswith("\\"):
            self._command(line.strip())
        elif line.strip() or self._pending:
            self._pending.append(line)
            if line.rstrip().endswith(";"):
                self._answer()

    def end(self) -> None:
        """Take the end of the input: what is pending is answered as it stands."""
        if self._pending:
            self._answer()
        self.is_over = True

    def drop_pending(self) -> None:
        """Forget the lines of a statement that was interrupted."""
        self._pending.clear()

    def complete(self, begun: str) -> list[str]:
        """Return the views, columns and words that begin so, whatever the case."""
        views = published_views(self.state)
        names = [*views, *(f"{view}__revisions" for view in views), *self._columns(views), *WORDS]
        return sorted({name for name in names if name.lower().startswith(begun.lower())})

    def _columns(self, views: Sequence[str]) -> list[str]:
        from deltalake import DeltaTable

        found: list[str] = []
        for view in views:
            with suppress(Exception):  # a table that is being made: completion is a convenience
                found += [column.name for column in DeltaTable(self.state / "results" / view).schema().fields]
        return found

    def _command(self, line: str) -> None:
        if line in ("\\q", "\\quit"):
            self.is_over = True
        elif line == "\\d":
            self.say("\n".join(published_views(self.state)) or "no view has published yet")
        else:
            self.say(HELP)

    def _answer(self) -> None:
        statement = "\n".join(self._pending)
        self._pending.clear()
        try:
            self.show(query_results(self.state, statement, self.limits).to_pylist())
        except CatchmentError as error:
            self.fail(error)


def run_shell(shell: SqlShell, read_line: Callable[[str], str] = input) -> None:
    """Read lines until the shell or its input is over; Ctrl-C forgets the statement that is being written."""
    _use_history(shell)
    shell.say(HELP)
    while not shell.is_over:
        try:
            shell.take(read_line(shell.prompt))
        except KeyboardInterrupt:
            shell.drop_pending()
            shell.say("")
        except EOFError:
            shell.end()


def _use_history(shell: SqlShell) -> None:
    """Let readline, where there is one, complete names and keep what was written."""
    try:
        import readline
    except ImportError:  # Windows
        return
    path = Path(os.environ.get("CATCHMENT_HISTORY", HISTORY)).expanduser()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)

    def keep() -> None:
        with suppress(OSError):
            readline.write_history_file(path)

    atexit.register(keep)

    def complete(begun: str, number: int) -> str | None:
        found = shell.complete(begun)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,();=<>")
    readline.parse_and_bind("tab: complete")
