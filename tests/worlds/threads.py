"""Things that happen at the same time, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def run_together(*actions: Callable[[], object]) -> None:
    """Run all actions at once, and raise what one of them raises."""
    with ThreadPoolExecutor(len(actions)) as pool:
        for future in [pool.submit(action) for action in actions]:
            future.result()
