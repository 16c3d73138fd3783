"""When the certificates of the sites of a process end, said in time for someone to replace them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catchment.log_fields import about
from catchment.timeline import Clock
from catchment.units import SECOND_US

if TYPE_CHECKING:
    from catchment.deploy.processes.connections import Connections

CHECK_EVERY_US = 60 * SECOND_US  # files may be replaced at any time
WARN_EVERY_US = 86_400 * SECOND_US
WARN_BEFORE_US = 30 * 86_400 * SECOND_US  # a certificate is replaced before this much of its time is left

_log = logging.getLogger(__name__)


def days_left(expires_us: int, now_us: int) -> int:
    """Return the whole days until an instant; negative if it has passed."""
    return (expires_us - now_us) // (86_400 * SECOND_US)


@dataclass
class ExpiryWatch:
    """Looks at the certificates now and then, and warns once a day of those that end soon."""

    connections: Connections
    clock: Clock
    _expires_us: dict[str, int | None] = field(default_factory=dict, init=False)
    _checked_us: dict[str, int] = field(default_factory=dict, init=False)
    _warned_us: dict[str, int] = field(default_factory=dict, init=False)

    def expiry_us(self, site: str) -> int | None:
        """Return when the certificate of a site ends; None if it has none."""
        now_us = self.clock.now_us()
        if now_us - self._checked_us.get(site, -CHECK_EVERY_US) >= CHECK_EVERY_US:
            self._checked_us[site] = now_us
            self._expires_us[site] = self.connections.certificate_expiry_us(site)
        expires_us = self._expires_us[site]
        if expires_us is not None and expires_us - now_us < WARN_BEFORE_US:
            self._warn(site, expires_us, now_us)
        return expires_us

    def _warn(self, site: str, expires_us: int, now_us: int) -> None:
        if now_us - self._warned_us.get(site, -WARN_EVERY_US) < WARN_EVERY_US:
            return
        self._warned_us[site] = now_us
        _log.warning(
            "the certificate of site %s ends in %d days: replace it with `catchment keys rotate %s`",
            site,
            days_left(expires_us, now_us),
            site,
            extra=about(site=site),
        )
