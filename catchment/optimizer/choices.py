"""The choices that a person has about a plan. Commands offer them, so this module imports nothing that is slow."""

from __future__ import annotations

from enum import StrEnum


class Strength(StrEnum):
    """How much is shared."""

    NONE = "none"  # nothing
    STRICT = "strict"  # equal fragments are one (IN-OP)
    FULL = "full"  # and what can be derived is not computed again, where that sends fewer bytes
    MAX = "max"  # and whatever can be shared is, without looking at bytes or bandwidth


class Planner(StrEnum):
    """How operators are placed."""

    GREEDY = "greedy"  # the greedy, then a local search from where it ends
    EXACT = "exact"  # the integer program
    RUN = "run"  # as a run does it: sites compute their partials, sites on the route merge, the sink answers
