"""The epoch of an outbox: a name that no other folder has, which says in which life of its site it began.

An inbox that was told that a site was healed takes no folder that began before that: one that was refused may try again
at any time, and its segments may be under way.
"""

from __future__ import annotations

import uuid

_SEPARATOR = "."


def make_epoch(life: int) -> str:
    """Return an epoch that nobody has, of a life."""
    name = uuid.uuid4().hex
    return f"{life}{_SEPARATOR}{name}" if life else name


def life_of_epoch(epoch: str) -> int:
    """Return in which life an epoch began; 0 where it does not say."""
    number, separator, _ = epoch.partition(_SEPARATOR)
    return int(number) if separator and number.isdecimal() else 0
