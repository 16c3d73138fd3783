"""What a device pays for its own link to the cloud, per unit of rate, each way.

Law: `cost_i = upload_i * max{r_ij : i uploads on (i, j)} + download_i * sum{r_ji : i downloads on (i, j)}`.
Uploads nest (a lower rate is sampled from a higher one that the cloud already holds); downloads do not, for
each is another device's feed. One number serves every device; an array gives each device its own
(Chandramouli et al., VLDB'13, section 3.7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Floats
from catchment.errors import FeedError


@dataclass(frozen=True)
class LinkCosts:
    """What one message costs a device, each way: the same for all devices, but for those that pay otherwise."""

    upload: float = 1.0
    download: float = 1.0
    of_device: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # upload and download

    def __post_init__(self) -> None:
        for upload, download in ((self.upload, self.download), *self.of_device.values()):
            if not (0 <= upload < np.inf and 0 <= download < np.inf):
                raise FeedError(f"link costs must be 0 or more, not {upload} and {download}")

    def upload_of(self, device: str) -> float:
        return self.of_device[device][0] if device in self.of_device else self.upload

    def download_of(self, device: str) -> float:
        return self.of_device[device][1] if device in self.of_device else self.download

    def of_messages(self, up: Mapping[str, float], down: Mapping[str, float]) -> float:
        """Return what messages per device cost, each way."""
        return sum(self.upload_of(d) * n for d, n in up.items()) + sum(self.download_of(d) * n for d, n in down.items())

    def to_device_costs(self, devices: Sequence[str]) -> DeviceCosts:
        """Return the costs of these devices per unit of rate."""
        if not self.of_device:
            return DeviceCosts(self.upload, self.download)
        upload = np.array([self.upload_of(d) for d in devices], dtype=np.float64)
        return DeviceCosts(upload, np.array([self.download_of(d) for d in devices], dtype=np.float64))


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """Cost of sending and of receiving one unit of rate: a number for all devices, or one per device."""

    upload: float | Floats
    download: float | Floats

    def __post_init__(self) -> None:
        for side in ("upload", "download"):
            values = np.asarray(getattr(self, side), dtype=np.float64)
            if values.ndim > 1 or not (np.isfinite(values) & (values >= 0)).all():
                raise FeedError(
                    f"the {side} cost is {getattr(self, side)!r}; expected a finite number, 0 or more",
                    where="costs",
                    hint="only the ratio of the two costs matters; 1 and 1 is a symmetric link",
                )

    def per_device(self, devices: int) -> tuple[Floats, Floats]:
        """Return the two costs as one array entry per device."""
        return self._spread("upload", devices), self._spread("download", devices)

    def _spread(self, side: str, devices: int) -> Floats:
        values = np.asarray(getattr(self, side), dtype=np.float64)
        if values.ndim == 1 and values.shape[0] != devices:
            raise FeedError(
                f"{values.shape[0]} {side} costs were given for {devices} devices",
                where="costs",
                hint="give one number for all devices, or one entry for each",
            )
        return np.broadcast_to(values, (devices,))
