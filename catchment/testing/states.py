"""Rare states of a deployment: a campaign that never enters one of them has not tested it, and fails."""

from __future__ import annotations

from enum import StrEnum


class RareState(StrEnum):
    """Something that happens seldom, and must have happened before anyone trusts a campaign."""

    BATCH_REPLAYED = "a committed batch came again after a restart"
    BATCH_SHED = "a batch was sampled"
    SHED_REPAIRED = "a sampled batch was repaired"
    GROUPS_DEFERRED = "groups were deferred, because more landed than could be merged"
    DEFERRED_MERGED = "deferred groups were merged"
    PAST_READ = "a view that began in the past read batches from history"
    RECORD_QUARANTINED = "a record was quarantined"
    RECORD_HELD = "a record was too far ahead, and held"
    LINK_BLOCKED = "the outbox was full, and updates waited in the cache"
    REQUEST_LOST = "a segment or a greeting was lost"
    ANSWER_LOST = "an acknowledgement was lost"
    MESSAGE_DOUBLED = "a message came twice"
    MESSAGE_OVERTAKEN = "a message overtook another"
    OLD_MESSAGE = "an old message came again"
    EARLIER_LIFE = "a message arrived that an earlier life of its sender had sent"
    MESSAGES_JAMMED = "messages piled up and came at once"
    SENDER_HELD_BACK = "the center held senders back, because it held too much for open windows"
    SEGMENT_REFUSED = "an inbox refused a segment"
    FRAGMENT_UNKNOWN = "an inbox refused a fragment that it did not know yet"
    RECOVERED_ENTRIES = "a restart replayed entries of the journal"
    RECOVERED_SNAPSHOT = "a restart began from a snapshot"
    KILLED_IN_RECOVERY = "a process ended while it recovered"
    POWER_CUT_LOST = "a power cut took something back"
    RESULTS_LOST = "a power cut took back published rows, which were published again"
    DISK_FAILED = "a call of the disk failed"
    DAMAGE_REFUSED = "a damaged file was refused"
    DAMAGE_RESTORED = "a damaged file was restored from a copy"
    DAMAGE_SURVIVED = "a restart succeeded though a file was damaged"
    CLOCK_WENT_BACK = "a clock was set back"
    WINDOW_EARLY = "a window was answered before it closed"
    CLOSED_WITHOUT_SITE = "a window was closed without a site"
    SITE_RETURNED = "a missing site returned, and its window became exact"
    WINDOW_REPAIRED = "late records were merged into a published window"
    RECORDS_EXPIRED = "records came too late to be merged"
    CLOSED_UNDER_CONTRACT = "a window was closed under its contract while records were missing"
    QUERY_BEGUN = "a query was submitted during the run, and answered"
    QUERY_DROPPED = "a query was dropped during the run"
    QUERY_MOVED = "a query moved to another fragment"
    FRAGMENT_RETIRED = "a fragment that queries had left was ended"
    STATE_RESTORED = "a site or a relay came back with an older copy of its state"
    STATE_LOST = "a site or a relay came back with an empty disk"
    HISTORY_REFUSED = "an inbox refused a site whose history was another one"
    WINDOW_RENEWED = "a published window was computed again, and replaced"
    SITE_DEAD = "a site ended for good"


# Entered only with features that are enabled by name.
ON_REQUEST_STATES = frozenset(
    {RareState.STATE_RESTORED, RareState.STATE_LOST, RareState.HISTORY_REFUSED, RareState.WINDOW_RENEWED}
)
