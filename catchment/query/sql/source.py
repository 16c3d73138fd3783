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

    def place(self, expression: exp.Expr | None) -> str:
        """file:line:column where an expression begins, or what it is part of if it has no place itself."""
        while expression is not None:
            starts = [node.meta["start"] for node in expression.walk() if "start" in node.meta]
            if starts:
                return self.at(min(starts))
            expression = expression.parent
        return self.at(0)

    def error(self, message: str, at: exp.Expr | int | None, hint: str | None = None) -> QueryError:
        """An error at an expression or at a character."""
        where = self.at(at) if isinstance(at, int) else self.place(at)
        return QueryError(message, where=where, hint=hint)
