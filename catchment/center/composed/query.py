"""A composed query as the center knows it: whose windows it reads, and which of them lie in each of its own."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.storage.codec import stored
from catchment.timeline import Window, WindowSpec


@stored()
@dataclass(frozen=True)
class ComposedQuery:
    """A query over the windows of another view, `lower`; a row of that is at the start of its window."""

    name: str
    lower: str
    window: WindowSpec
    lower_window: WindowSpec

    def window_at(self, start_us: int) -> Window:
        """Return its window that starts at an instant."""
        return Window(start_us, start_us + self.window.size_us)

    def settled_us(self, window: Window) -> int:
        """Return the end of the last lower window that starts within one of its own."""
        lower = self.lower_window
        last_start_us = (window.end_us - 1 - lower.offset_us) // lower.slide_us * lower.slide_us + lower.offset_us
        return last_start_us + lower.size_us
