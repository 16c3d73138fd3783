"""The choices that a person has about a plan. Commands offer them, so this module imports nothing that is slow."""

from __future__ import annotations

from enum import StrEnum


class Strength(StrEnum):
    """How much is shared."""

    NONE = "none"  # nothing
    STRICT = "strict"  # equal fragments are one (IN-OP)
    FULL = "full"  # also what can be derived from another fragment, where that sends fewer bytes
    MAX = "max"  # everything that can be shared, whatever it sends


class Planner(StrEnum):
    """How operators are placed."""

    GREEDY = "greedy"  # the greedy, then a local search from where it ends
    EXACT = "exact"  # the integer program
    RUN = "run"  # as a run does it: sites compute their partials, sites on the route merge, the sink answers
