"""What a relay's journal and snapshots are written of."""

from __future__ import annotations

from catchment.progress.landed import Landed
from catchment.quality.merge_sites import Estimate
from catchment.relay.events import Carried, Flushed, Gathered
from catchment.site.journalled import JOURNALLED as OF_THE_SITE_CORE
from catchment.wire.messages import Closing, Counted, Progress, Relayed, Repaired, Shed, Standing

JOURNALLED = (
    *OF_THE_SITE_CORE, Carried, Gathered, Landed, Flushed, Progress, Shed, Repaired, Standing, Closing, Counted,
    Relayed, Estimate,
)  # fmt: skip
