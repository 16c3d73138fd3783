"""What runs on a device: without Spark, without SQL. `FeedDevice` is one device as a library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from catchment.feeds.device.feed_device import FeedDevice

__all__ = ["FeedDevice"]


def __getattr__(name: str) -> Any:
    """Import the library only for those who use it: the cloud shares modules of this room, but needs no link."""
    if name != "FeedDevice":
        raise AttributeError(name)
    from catchment.feeds.device.feed_device import FeedDevice

    return FeedDevice
