"""What a device pays for its own link to the cloud, per unit of rate, each way.

Law: `cost_i = upload_i * max{r_ij : i uploads on (i, j)} + download_i * sum{r_ji : i downloads on (i, j)}`.
Uploads nest (a lower rate is sampled from a higher one that the cloud already holds); downloads do not, for
each is another device's feed. One number serves every device; an array gives each device its own
(Chandramouli et al., VLDB'13, section 3.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catchment.arrays import Floats
from catchment.errors import FeedError


@dataclass(frozen=True)
class LinkCosts:
    """What one message costs a device, each way; the same for all devices."""

    upload: float = 1.0
    download: float = 1.0

    def __post_init__(self) -> None:
        if not (self.upload >= 0 and self.download >= 0):
            raise FeedError(f"link costs must be 0 or more, not {self.upload} and {self.download}")

    def to_device_costs(self) -> DeviceCosts:
        """Return the same costs per unit of rate."""
        return DeviceCosts(self.upload, self.download)


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
