"""How a campaign draws the deployment of a seed: its features, its project and its records."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from catchment.query.catalog import Catalog
from catchment.testing.campaigns.combinations import draw_covering
from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.generate import GeneratedProject, draw_features, draw_workload, write_project
from catchment.testing.campaigns.late_and_shed import choose_faults, draw_stalling_records, write_late_and_shed
from catchment.testing.simulated.records import Workload


@dataclass(frozen=True)
class Draw:
    """What is the same in all seeds of a campaign; everything else is drawn."""

    only: Features | None = None  # these features alone
    covering: bool = False  # combined features are drawn so often that every three of them meet
    late_and_shed: bool = False  # the deployment that holds bounds to their rates

    def features(self, chance: random.Random) -> Features:
        """Return the features of a seed."""
        drawn = draw_features(chance)
        if self.covering:
            drawn = draw_covering(chance, drawn)
        drawn = drawn if self.only is None else self.only
        return choose_faults(drawn) if self.late_and_shed else drawn

    def project(self, folder: Path, chance: random.Random, features: Features) -> GeneratedProject:
        """Write the project of a seed into a folder."""
        if self.late_and_shed:
            return write_late_and_shed(folder, chance, features)
        return write_project(folder, chance, features)

    def workload(self, catalog: Catalog, chance: random.Random, features: Features) -> Workload:
        """Return the records of a seed."""
        if self.late_and_shed:
            return draw_stalling_records(catalog, chance)
        return draw_workload(catalog, chance, features)

    def options(self) -> str:
        """Return the options of the command that draws in this way, each after a space."""
        given = f" --only '{_names(self.only)}'" if self.only else ""
        given += " --cover" if self.covering else ""
        return given + (" --late-and-shed" if self.late_and_shed else "")


def _names(features: Features) -> str:
    return ",".join(f.value for f in Feature if f in features)
