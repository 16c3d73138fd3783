"""The errors of catchment: one base, one subclass per room.

A message says what was given, what was expected, and where (query, site, window, file and line).
A user's mistake is an error with a hint; a bug is an assert.
"""

from __future__ import annotations

from typing import Self


class CatchmentError(Exception):
    """Base of every error that catchment raises on purpose."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def found_in(self, place: str) -> Self:
        """Put a place that only a caller knows before the place of the error; return the error."""
        self.where = f"{place}, {self.where}" if self.where else place
        self.args = (str(self),)
        return self

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class ConfigError(CatchmentError):
    """A project folder, a TOML file or a command line option is wrong."""


class TimelineError(CatchmentError):
    """A window or a duration is wrong."""


class AggregateError(CatchmentError):
    """An aggregate is unknown or used with arguments it cannot take."""


class FunctionError(AggregateError):
    """A function of the project's own has raised, or has returned what it did not declare."""


class QualityError(CatchmentError):
    """A contract or a bound was asked for with impossible numbers."""


class QueryError(CatchmentError):
    """A SQL statement cannot be understood or planned."""


class PlanError(CatchmentError):
    """An optimizer was given a plan or a topology that it cannot work on."""


class StorageError(CatchmentError):
    """Something durable cannot be written, or cannot be read back."""


class WireError(CatchmentError):
    """A message or a segment is refused, or a peer cannot be reached."""


class SiteError(CatchmentError):
    """A site core or a policy was asked for what it cannot do."""


class CenterError(CatchmentError):
    """A center core, a result table or a repair is in a state it must not be in."""


class FeedError(CatchmentError):
    """A feed template, a demand graph or a device is wrong."""


class SimulationError(CatchmentError):
    """A trace or a scenario cannot be simulated."""


class EngineError(CatchmentError):
    """Spark cannot be started or a pipeline cannot run."""
