"""catchment: wide-area streaming analytics on Spark. Fast now, exact later, few bytes.

>>> import catchment
>>> geo = catchment.open("my-project")       # a folder with catchment.toml and queries/*.sql
>>> geo.run(seconds=30)                      # every site and the center, in this process
>>> geo.results("totals").to_pandas()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from catchment.errors import CatchmentError
from catchment.version import VERSION

if TYPE_CHECKING:
    from catchment.facade import Catchment, Results, open

__version__ = VERSION
__all__ = ["Catchment", "CatchmentError", "Results", "__version__", "open"]


def __getattr__(name: str) -> Any:
    """The facade is imported when it is first used: rooms below it must not pay for it."""
    if name in ("Catchment", "Results", "open"):
        from catchment import facade

        return getattr(facade, name)
    raise AttributeError(f"module 'catchment' has no attribute {name!r}")
