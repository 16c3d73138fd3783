"""What devices were told to upload, what of it they have confirmed, and what they download. Pure.

An edge cloud uploads what is wanted beyond it, as a device does, and is told what to hand to its devices: that too is
asked for and confirmed. What the cloud itself sends down needs no answer.

A raise is asked for with a token and holds once the device has confirmed it: from then on every event later
than the confirmed time that the share keeps is uploaded. Lowering needs no answer. A feed that gets more columns is
asked for again, and what was confirmed before counts no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US


@stored(version=2, migrations={1: dict})  # version 2 has columns and first_token
@dataclass
class Upload:
    """One feed on one link: the share asked for, the share confirmed, and raises still to be confirmed."""

    asked: float = 0.0
    confirmed: float = 0.0
    since_us: int = START_OF_TIME_US
    pending: dict[int, float] = field(default_factory=dict)  # token -> share, in the order of asking
    columns: int = 0  # how many columns its events have, as the device was last told
    first_token: int = 0  # of those with which so many columns were asked for

    def token_for(self, share: float) -> int | None:
        """Return the pending raise to wait for until this share is uploaded; None when it already is."""
        if share <= self.confirmed:
            return None
        return next(token for token, asked in self.pending.items() if token >= self.first_token and asked >= share)

    def ask(self, share: float, columns: int, token: int) -> None:
        """Note that a share, and events of so many columns, are asked for."""
        self.asked = share
        self.pending[token] = share
        if columns > self.columns:
            self.columns = columns
            self.confirmed = 0.0
            self.first_token = token

    def lower(self, share: float) -> None:
        self.asked = share
        self.confirmed = min(self.confirmed, share)

    def confirm(self, token: int, since_us: int) -> None:
        share = min(self.pending.pop(token, 0.0), self.asked)
        if token >= self.first_token and share > self.confirmed:
            self.confirmed = share
            self.since_us = since_us


class RouteTable:
    """Uploads and downloads by feed and device."""

    def __init__(self) -> None:
        self.uploads: dict[str, dict[str, Upload]] = {}
        self.downloads: dict[str, dict[str, float]] = {}
        self.handed_on: dict[str, dict[str, Upload]] = {}  # by an edge cloud, to devices that are attached to it

    def upload(self, feed: str, device: str) -> Upload:
        return self.uploads.setdefault(feed, {}).setdefault(device, Upload())

    def hand_on(self, feed: str, device: str) -> Upload:
        return self.handed_on.setdefault(feed, {}).setdefault(device, Upload())

    def download(self, feed: str, device: str) -> float:
        return self.downloads.get(feed, {}).get(device, 0.0)

    def set_download(self, feed: str, device: str, share: float) -> None:
        devices = self.downloads.setdefault(feed, {})
        if share > 0:
            devices[device] = share
        else:
            devices.pop(device, None)

    def uploads_of(self, device: str) -> Iterator[tuple[str, float]]:
        """Yield the feeds that a device was told to upload, with their shares."""
        for feed, devices in self.uploads.items():
            if device in devices and devices[device].asked > 0:
                yield feed, devices[device].asked

    def handed_to(self, device: str) -> Iterator[tuple[str, float]]:
        """Yield the feeds that a device's edge cloud was told to hand to it, with their shares."""
        for feed, devices in self.handed_on.items():
            if device in devices and devices[device].asked > 0:
                yield feed, devices[device].asked

    def forget(self, feed: str) -> None:
        """Drop what nobody wants or waits for any more of a feed."""
        for asked in (self.uploads, self.handed_on):
            for place, upload in list(asked.get(feed, {}).items()):
                if upload.asked == 0 and not upload.pending:
                    del asked[feed][place]
        for table in (self.uploads, self.downloads, self.handed_on):
            if not table.get(feed):
                table.pop(feed, None)
