"""A SQL text and the places in it, so that every error can say file:line:column."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from catchment.errors import QueryError


@dataclass(frozen=True)
class SqlText:
    """One text and the name of the file that it stands in."""

    text: str = field(repr=False)
    file: str = "<sql>"

    def at(self, offset: int) -> str:
        """file:line:column of a character."""
        line = self.text.count("\n", 0, offset) + 1
        column = offset - (self.text.rfind("\n", 0, offset) + 1) + 1
        return f"{self.file}:{line}:{column}"

    def place(self, expression: exp.Expr | None, otherwise: int = 0) -> str:
        """file:line:column where an expression begins."""
        starts = [n.meta["start"] for n in expression.walk() if "start" in n.meta] if expression else []
        return self.at(min(starts) if starts else otherwise)

    def error(self, message: str, at: exp.Expr | int | None, hint: str | None = None) -> QueryError:
        """An error at an expression or at a character."""
        where = self.at(at) if isinstance(at, int) else self.place(at)
        return QueryError(message, where=where, hint=hint)
