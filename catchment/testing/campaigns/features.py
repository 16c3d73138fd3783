"""What a generated deployment may have: parts of a project, kinds of records, changes, and faults.

Each seed draws a subset (swarm testing: Groce et al., ISSTA 2012), so that no feature hides another by always being
there, and every pair and triple of features meets in some seed.
"""

from __future__ import annotations

from enum import StrEnum


class Feature(StrEnum):
    """Something that a seed may enable."""

    # the project
    CONTRACT = "contract"
    SHED = "shed"
    RELAY = "relay"
    JOIN = "join"
    LOOKUP = "look-up"
    POLICY = "policy"
    EARLY = "early"
    SLIDING = "sliding"
    # changes
    SUBMIT = "submit"
    DROP = "drop"
    MOVE = "move"
    # records
    LATE = "late"
    DUPLICATE = "duplicate"
    STRAY = "stray"
    BAD = "bad"
    # processes
    CRASH = "crash"
    AWAY = "away"
    DEAD = "dead"
    POWER_CUT = "power cut"
    RECOVERY_CRASH = "recovery crash"
    # disks
    DISK_ERROR = "disk error"
    TORN_WRITE = "torn write"
    SLOW_DISK = "slow disk"
    ROT = "rot"
    MISDIRECTED = "misdirected"
    # links
    LOSS = "loss"
    DOUBLED = "doubled"
    DELAY = "delay"
    ONE_WAY_CUT = "one-way cut"
    JAM = "jam"
    REPLAY = "replay"
    THROTTLE = "throttle"
    # sites that forward: links that are cut or throttled are gone around
    MESH = "mesh"
    # clocks
    SKEW = "skew"
    STEP_BACK = "step back"
    # load
    OVERLOAD = "overload"
    # views that are submitted and begin in the past
    PAST = "past"
    # views of other shapes: sessions, windows that grow, rows of arrays, views of views
    SHAPES = "shapes"
    # state that is older than what was sent, or lost, and is healed
    RESTORED = "restored"
    LOST = "lost"
    # every process is of the previous release at first, and upgraded at a time of its own
    UPGRADE = "upgrade"
    # views of some sites of their streams
    SITES = "sites"
    # sources that state their progress, and some that do not keep it
    PROGRESS = "progress"
    # views that are answered at other sites than the center, or at several
    SINKS = "sinks"
    # views whose estimates are made exact in a second round
    ROUNDS = "second round"
    # sites that are moved to other routes, through other relays
    REROUTE = "reroute"


Features = frozenset[Feature]
EVERYTHING: Features = frozenset(Feature)
