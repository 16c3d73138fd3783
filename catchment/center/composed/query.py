"""A composed query as the center knows it: whose windows it reads, and which of them lie in each of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from catchment.query.assembly import CalendarPeriods
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import ViewScan
from catchment.storage.codec import stored
from catchment.timeline import Window, WindowSpec


@stored(version=3, migrations={1: dict, 2: dict})  # version 2 has lookback_us and lookahead_us, version 3 calendar
@dataclass(frozen=True)
class ComposedQuery:
    """A query over the windows of another view, `lower`; a row of that is at the start of its window.

    A window of it reads the lower windows in it, from `lookback_us` before it to `lookahead_us` after it. With a
    `calendar` (unit and time zone) it has one window per period, the slice that this ends in.
    """

    name: str
    lower: str
    window: WindowSpec
    lower_window: WindowSpec
    lookback_us: int = 0
    lookahead_us: int = 0
    calendar: tuple[str, str] | None = None

    @classmethod
    def of(cls, plan: QueryPlan, definitions: Mapping[str, str] = MappingProxyType({})) -> ComposedQuery:
        """Return the query of a plan that reads another one; `definitions` name those of views."""
        assert isinstance(plan.scan, ViewScan)
        lower = definitions.get(plan.scan.stream, plan.scan.stream)
        assembly = plan.assembly
        around = (0, 0) if assembly is None else (assembly.lookback_us, assembly.lookahead_us)
        calendar = (assembly.unit, assembly.zone) if isinstance(assembly, CalendarPeriods) else None
        return cls(plan.name, lower, plan.window, plan.scan.window, *around, calendar)

    def reading(self, lower_start_us: int) -> Iterator[Window]:
        """Yield its windows that read a lower window."""
        if self._periods is not None:
            yield self.window_at(self._periods.last_slice_us(lower_start_us))
            return
        start_us = lower_start_us - self.lookahead_us
        while start_us <= lower_start_us + self.lookback_us:
            yield from self.window.containing(start_us)
            start_us += self.window.slide_us

    @cached_property
    def _periods(self) -> CalendarPeriods | None:
        return None if self.calendar is None else CalendarPeriods(*self.calendar)

    def window_at(self, start_us: int) -> Window:
        """Return its window that starts at an instant."""
        return Window(start_us, start_us + self.window.size_us)

    def settled_us(self, window: Window) -> int:
        """Return the end of the last lower window that one of its own reads."""
        lower = self.lower_window
        end_us = window.end_us + self.lookahead_us
        last_start_us = (end_us - 1 - lower.offset_us) // lower.slide_us * lower.slide_us + lower.offset_us
        return last_start_us + lower.size_us
