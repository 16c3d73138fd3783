"""catchment: wide-area streaming analytics on Spark. Fast now, exact later, few bytes.

>>> import catchment
>>> geo = catchment.open("my-project")       # a folder with catchment.toml and queries/*.sql
>>> with geo.start():                        # every site and the center, in the background of this process
...     for change in geo.follow("totals"):  # every published window, and every revision of it
...         print(change)
>>> geo.results("totals").to_pandas()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from catchment.errors import CatchmentError
from catchment.version import VERSION

if TYPE_CHECKING:
    from catchment.facade import Catchment, Change, Results, RunningProject, open, open_feeds
    from catchment.functions.declared import aggregate, function

__version__ = VERSION
__all__ = [
    "Catchment",
    "CatchmentError",
    "Change",
    "Results",
    "RunningProject",
    "__version__",
    "aggregate",
    "function",
    "open",
    "open_feeds",
]
_FACADE = ("Catchment", "Change", "Results", "RunningProject", "open", "open_feeds")


_DECLARATIONS = ("aggregate", "function")


def __getattr__(name: str) -> Any:
    """The facade is imported when it is first used: rooms below it must not pay for it."""
    if name in _FACADE:
        from catchment import facade

        return getattr(facade, name)
    if name in _DECLARATIONS:
        from catchment.functions import declared

        return getattr(declared, name)
    raise AttributeError(f"module 'catchment' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names that completion offers: the public ones, whether or not they are imported yet."""
    return sorted(__all__)
