"""How a campaign draws the deployment of a seed: which features it has, and how many sites."""

from __future__ import annotations

import random
from dataclasses import dataclass

from catchment.testing.combinations import draw_covering
from catchment.testing.features import Feature, Features
from catchment.testing.generate import draw_features

NOTHING: Features = frozenset()


@dataclass(frozen=True)
class Draw:
    """What is the same in all seeds of a campaign; everything else is drawn."""

    only: Features | None = None  # these features alone
    always: Features = NOTHING  # beside those that are drawn
    covering: bool = False  # combined features are drawn so often that every three of them meet
    sites: int | None = None  # that streams are born at

    def features(self, chance: random.Random) -> Features:
        """Return the features of a seed."""
        drawn = draw_features(chance)
        if self.covering:
            drawn = draw_covering(chance, drawn)
        return (drawn if self.only is None else self.only) | self.always

    def options(self) -> str:
        """Return the options of the command that draws in this way, each after a space."""
        given = f" --only '{_names(self.only)}'" if self.only else ""
        given += f" --always '{_names(self.always)}'" if self.always else ""
        given += " --cover" if self.covering else ""
        return given + (f" --sites {self.sites}" if self.sites else "")


def _names(features: Features) -> str:
    return ",".join(f.value for f in Feature if f in features)
