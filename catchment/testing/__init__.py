"""A deterministic simulation of a whole deployment, to test projects with: one seed gives one run.

Real are the cores, journals, outboxes, inboxes, the relays, the center and the deployment; simulated are time, disks,
links, Spark's group-by and the result tables. See docs/testing.md.
"""

from catchment.testing.campaigns.features import EVERYTHING, Feature, Features
from catchment.testing.campaigns.states import RareState
from catchment.testing.check_operator import check_operator
from catchment.testing.check_source import SourceError, check_source
from catchment.testing.function_laws import LawBrokenError, check_aggregate, check_function
from catchment.testing.simulated.records import ArrivingRecords, Workload
from catchment.testing.simulated.world import BrokenSimulationError, World, WorldOptions
from catchment.testing.simulation import DeploymentSimulation, RunReport

__all__ = [
    "EVERYTHING",
    "ArrivingRecords",
    "BrokenSimulationError",
    "DeploymentSimulation",
    "Feature",
    "Features",
    "LawBrokenError",
    "RareState",
    "RunReport",
    "SourceError",
    "Workload",
    "World",
    "WorldOptions",
    "check_aggregate",
    "check_function",
    "check_operator",
    "check_source",
]
