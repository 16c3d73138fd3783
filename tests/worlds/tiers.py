"""How far tests search: a little in `make quick`, enough for the claim in `make test`, long in `make soak`.

The tier is the Hypothesis profile (`--hypothesis-profile`); loops over seeds scale with it too.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

EXAMPLES_PER_TIER = {"quick": 20, "test": 100, "soak": 2_000}  # what a test gets that asks for no number
FEWEST = 3  # below that a search says nothing


def register_tiers() -> None:
    """Make a Hypothesis profile of each tier, and load that of `make test`.

    `make quick` and `make test` draw the same examples every time, so that a change is never refused for an example
    that a random draw found in code it does not touch. `make soak` draws new examples every time, and many more.
    No profile has a deadline, or minds how long drawing takes: that says more about the machine than about the code.
    """
    for tier, count in EXAMPLES_PER_TIER.items():
        settings.register_profile(
            tier,
            max_examples=count,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            derandomize=tier != "soak",
            print_blob=tier == "soak",
        )
    settings.load_profile("test")


def examples(count: int) -> int:
    """Return how many examples to draw in this tier, where `count` are drawn in `make test`."""
    tier_count: int = settings.default.max_examples  # type: ignore[union-attr]
    return max(min(count, FEWEST), count * tier_count // EXAMPLES_PER_TIER["test"])


def seeds(count: int) -> range:
    """Return the seeds to try in this tier, where `count` are tried in `make test`."""
    return range(examples(count))
