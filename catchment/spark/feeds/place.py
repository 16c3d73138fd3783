"""Placement of demand graphs that do not fit one machine: the local step as Spark SQL.

The same steps as on one machine (feeds/placement/threshold_costs.py), with the same comparisons on the same doubles:
pairs are matched with their counterparts, every device gets a floor, the few rows above the floors become its cost
curve, the least cost is its choice. Only the conflicts, and the curves of the devices in conflict, come to the
driver, where the residual problem is solved; their number is bounded by MAX_CONFLICTS.

Between the steps tables are kept as Parquet in a scratch folder, so no step holds more than its own
partitions, and what a partition holds does not grow with the graph: their number does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from catchment.errors import FeedError
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import Outcome
from catchment.feeds.placement.pair_views.conflict_problem import LiftSolution
from catchment.feeds.placement.pair_views.conflicts import apply_lifts, conflicts_among
from catchment.feeds.placement.pair_views.residual import solve_lifts
from catchment.feeds.placement.threshold_costs import Curves

MAX_CONFLICTS = 5_000_000  # most pairs that the driver solves; with more, uploads cost far too much
WORTH_ANOTHER_PASS = 0.2  # raising the floors again pays while it drops at least this share of the rows
FEW_ROWS = 1_000_000  # with fewer rows, a pass costs more than a sort


@dataclass(frozen=True, eq=False, kw_only=True)
class SparkPlacement(Outcome):
    """Decisions as a table `src, dst, decision`, read from the scratch folder when it is used."""

    decisions: DataFrame


def place_edges(
    spark: SparkSession,
    edges: DataFrame,
    costs: DeviceCosts,
    scratch: str,
    *,
    budget: DataFrame | None = None,
    time_limit_s: float = 60.0,
    few_rows: int = FEW_ROWS,
    clock: Callable[[], float] = time.perf_counter,
) -> SparkPlacement:
    """Return the cheapest viable assignment of rows `src, dst, rate`; `budget` has rows `device, budget`.

    `scratch` is a folder that the driver and all executors see; what is in it belongs to this placement,
    and the decisions read from it.
    """
    began = clock()
    job = _Job(spark, scratch, *_scalars(costs), few_rows)
    pairs = job.keep(_pairs(edges, loads=budget is not None), "pairs")
    _refuse_bad_pairs(pairs)
    rows = _both_ways(pairs)
    floors, kept = job.raise_floors(rows)
    steps = job.keep(job.steps(kept, floors, budget), "steps")
    choices = job.keep(job.choose(steps, floors), "choices")
    conflicts = job.resolve(kept, steps, choices, time_limit_s, clock)
    totals = choices.agg(F.sum("best").alias("best"), F.sum("top").alias("top")).first()
    best, top = (float(totals[name] or 0.0) if totals else 0.0 for name in ("best", "top"))
    cost = best + conflicts.solution.cost
    return SparkPlacement(
        decisions=job.decide(rows, choices, conflicts.lifted),
        cost=cost,
        all_upload_cost=job.upload * top,
        conflicts=conflicts.pairs,
        residual_components=conflicts.solution.components,
        optimal=conflicts.solution.optimal,
        gap=conflicts.solution.gap * conflicts.solution.cost / cost if cost > 0 else 0.0,
        seconds=clock() - began,
    )


def _scalars(costs: DeviceCosts) -> tuple[float, float]:
    if np.ndim(costs.upload) or np.ndim(costs.download):
        raise FeedError("Spark places with one upload and one download cost for all devices", where="costs")
    return float(np.asarray(costs.upload)), float(np.asarray(costs.download))


def _pairs(edges: DataFrame, loads: bool) -> DataFrame:
    """Return one row per pair: both rates (and loads), how often each was given, and whether one is no rate."""
    carried = {"rate": F.col("rate").cast("double")}
    if loads:
        carried["load"] = F.col("load").cast("double") if "load" in edges.columns else F.lit(1.0)
    forth = (F.col("src") < F.col("dst")).alias("forth")
    bad = F.col("src").isNull() | F.col("dst").isNull()
    for value in carried.values():
        bad = bad | value.isNull() | F.isnan(value) | (value < 0) | (value == float("inf"))
    return (
        edges.select(
            F.least("src", "dst").alias("lo"),
            F.greatest("src", "dst").alias("hi"),
            forth,
            bad.alias("bad"),
            *(value.alias(name) for name, value in carried.items()),
        )
        .groupBy("lo", "hi")
        .agg(
            F.count_if("forth").alias("rows_lo"),
            F.count_if(~F.col("forth")).alias("rows_hi"),
            F.max("bad").alias("bad"),
            *(F.max(F.when(F.col("forth"), F.col(name))).alias(f"{name}_lo") for name in carried),
            *(F.max(F.when(~F.col("forth"), F.col(name))).alias(f"{name}_hi") for name in carried),
        )
    )


def _refuse_bad_pairs(pairs: DataFrame) -> None:
    """Refuse the first pair that is not a pair, and say what is wrong with it."""
    is_self = F.col("lo") == F.col("hi")
    wrong = F.col("bad") | is_self | (F.col("rows_lo") != 1) | (F.col("rows_hi") != 1)
    found = pairs.where(wrong).select("*", is_self.alias("is_self")).limit(1).collect()
    if not found:
        return
    row = found[0]
    where = f"demand graph, pair {row['lo']} and {row['hi']}"
    if row["bad"]:
        raise FeedError("a device is missing, or a rate is negative, missing or not finite", where=where)
    if row["is_self"]:
        raise FeedError("a device demands its own feed (self edge)", where=where, hint="drop the row")
    if row["rows_lo"] > 1 or row["rows_hi"] > 1:
        raise FeedError("the same demand is given twice (duplicate edge)", where=where, hint="keep one row each way")
    src, dst = (row["hi"], row["lo"]) if row["rows_lo"] else (row["lo"], row["hi"])
    raise FeedError(
        f"a demand has no counterpart {src} -> {dst}",
        where=where,
        hint=f"a view joins both feeds: add the row {src},{dst},<rate of {src}'s feed that {dst} demands>",
    )


def _both_ways(pairs: DataFrame) -> DataFrame:
    """Return a row for each direction: the device, its peer, the rate of its feed and of the peer's (and its load)."""
    return pairs.select(F.inline(F.array(_way(pairs, "lo", "hi"), _way(pairs, "hi", "lo"))))


def _way(pairs: DataFrame, src: str, dst: str) -> Column:
    columns = {"src": src, "dst": dst, "own": f"rate_{src}", "peer": f"rate_{dst}", "load": f"load_{src}"}
    return F.struct(*(F.col(column).alias(name) for name, column in columns.items() if column in pairs.columns))


@dataclass(frozen=True)
class _Resolved:
    """What the driver decided: devices whose thresholds were lifted, and the solution behind it."""

    lifted: DataFrame | None
    pairs: int
    solution: LiftSolution


@dataclass(frozen=True)
class _Job:
    """One placement: its session, its scratch folder and its costs."""

    spark: SparkSession
    scratch: str
    upload: float
    download: float
    few_rows: int

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Return the same table, computed once and kept in the scratch folder."""
        frame.write.mode("overwrite").parquet(f"{self.scratch}/{name}")
        return self.spark.read.parquet(f"{self.scratch}/{name}")

    def raise_floors(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return a floor under each device's threshold and the rows above the floors, as long as that pays."""
        first = rows.groupBy("src").agg(self._floor(F.lit(0.0)).alias("floor"), F.max("own").alias("top"))
        floors = self.keep(first, "floors-0")
        kept = self.keep(_above(rows, floors), "kept-0")
        after = kept.count()
        turn = 0
        before = math.inf
        while after > self.few_rows and after < (1 - WORTH_ANOTHER_PASS) * before:
            turn += 1
            raised = kept.groupBy("src").agg(self._floor(F.col("floor")).alias("raised"))
            raised = floors.join(raised, "src", "left").select(
                "src", F.greatest("floor", F.coalesce("raised", "floor")).alias("floor"), "top"
            )
            floors = self.keep(raised, f"floors-{turn}")
            kept = self.keep(_above(kept.drop("floor"), floors), f"kept-{turn}")
            before = after
            after = kept.count()
        return floors, kept

    def _floor(self, floor: Column) -> Column:
        """Return the largest rate up to which lifting the threshold from a floor costs nothing."""
        free = F.lit(self.download) * F.col("peer") >= F.lit(self.upload) * (F.col("own") - floor)
        return F.max(F.when(free, F.col("own")).otherwise(0.0))

    def steps(self, kept: DataFrame, floors: DataFrame, budget: DataFrame | None) -> DataFrame:
        """Return the cost curves above the floors: a row for each (device, distinct rate) and one for each floor.

        The floor's row is that of the threshold below all rates kept; its `own` is the floor itself.
        """
        sums = {"mass": F.sum(F.lit(self.download) * F.col("peer"))}
        if budget is not None:
            sums["load"] = F.sum("load")
        each = kept.groupBy("src", "own").agg(*(total.alias(name) for name, total in sums.items()))
        floor = floors.select("src", F.col("floor").alias("own"), *(F.lit(0.0).alias(name) for name in sums))
        above = Window.partitionBy("src").orderBy(F.desc("own")).rowsBetween(Window.unboundedPreceding, -1)
        beyond = {name: F.coalesce(F.sum(name).over(above), F.lit(0.0)) for name in sums}
        cost = F.lit(self.upload) * F.col("own") + beyond.pop("mass")
        loads = (load.alias(name) for name, load in beyond.items())
        steps = each.unionByName(floor).select("src", "own", cost.alias("cost"), *loads)
        return steps if budget is None else _within(steps, budget)

    def choose(self, steps: DataFrame, floors: DataFrame) -> DataFrame:
        """Return each device's least cost; ties take the largest threshold."""
        least = F.min(F.struct(F.col("cost"), (-F.col("own")).alias("below"))).alias("least")
        return (
            steps.groupBy("src")
            .agg(least)
            .join(floors.select("src", "top"), "src")
            .select("src", (-F.col("least.below")).alias("threshold"), F.col("least.cost").alias("best"), "top")
        )

    def resolve(
        self,
        kept: DataFrame,
        steps: DataFrame,
        choices: DataFrame,
        time_limit_s: float,
        clock: Callable[[], float],
    ) -> _Resolved:
        """Solve the residual problem on the driver, from the conflicts and their devices' curves."""
        none = _Resolved(None, 0, LiftSolution(np.zeros(0, dtype=np.int64), 0.0, 0.0))
        if self.upload <= self.download:
            return none  # each device's own optimum fits all others'
        table = self.keep(_conflicts(kept, choices), "conflicts")
        count = table.count()
        if count > MAX_CONFLICTS:
            raise FeedError(
                f"{count:,} pairs are in conflict; the driver takes {MAX_CONFLICTS:,}",
                where="residual",
                hint="bring the upload cost nearer to the download cost",
            )
        if count == 0:
            return none
        devices = table.select(F.explode(F.array("src", "dst")).alias("src")).distinct()
        curves, names = _curves(steps.join(devices, "src"), choices.join(devices, "src"))
        return self._solve(table, curves, names, time_limit_s, clock)

    def _solve(
        self,
        table: DataFrame,
        curves: Curves,
        names: NDArray[Any],
        time_limit_s: float,
        clock: Callable[[], float],
    ) -> _Resolved:
        pairs = table.toPandas()
        a, b = (np.searchsorted(names, pairs[side].to_numpy()) for side in ("src", "dst"))
        conflicts = conflicts_among(curves, a, b, pairs["own"].to_numpy(), pairs["peer"].to_numpy())
        solution = solve_lifts(conflicts.problem, time_limit_s, clock)
        threshold = apply_lifts(curves, conflicts, solution.reached)
        lifted = np.flatnonzero(threshold > curves.threshold)
        rows = [(name, float(t)) for name, t in zip(names[lifted].tolist(), threshold[lifted], strict=True)]
        schema = f"src {table.schema['src'].dataType.simpleString()}, lifted double"
        return _Resolved(self.spark.createDataFrame(rows, schema), len(pairs), solution)

    def decide(self, rows: DataFrame, choices: DataFrame, lifted: DataFrame | None) -> DataFrame:
        """Return U where the threshold covers the row's rate, else D."""
        threshold = choices.select("src", "threshold")
        if lifted is not None:
            threshold = threshold.join(F.broadcast(lifted), "src", "left").select(
                "src", F.coalesce("lifted", "threshold").alias("threshold")
            )
        decision = F.when(F.col("own") <= F.col("threshold"), "U").otherwise("D").alias("decision")
        return rows.join(threshold, "src").select("src", "dst", decision)


def _above(rows: DataFrame, floors: DataFrame) -> DataFrame:
    return rows.join(floors.select("src", "floor"), "src").where(F.col("own") > F.col("floor"))


def _within(steps: DataFrame, budget: DataFrame) -> DataFrame:
    """Forbid the thresholds that leave a device more load than its budget."""
    limits = budget.select(F.col("device").alias("src"), F.col("budget").cast("double").alias("budget"))
    over = F.col("load") > F.coalesce(F.col("budget"), F.lit(float("inf")))
    cost = F.when(over, F.lit(float("inf"))).otherwise(F.col("cost")).alias("cost")
    return steps.join(limits, "src", "left").select("src", "own", cost)


def _conflicts(kept: DataFrame, choices: DataFrame) -> DataFrame:
    """Return pairs on which neither side uploads, each once."""
    mine = choices.select("src", F.col("threshold").alias("mine"))
    theirs = choices.select(F.col("src").alias("dst"), F.col("threshold").alias("theirs"))
    return (
        kept.where(F.col("src") < F.col("dst"))
        .join(mine, "src")
        .where(F.col("own") > F.col("mine"))
        .join(theirs, "dst")
        .where(F.col("peer") > F.col("theirs"))
        .select("src", "dst", "own", "peer")
    )


def _curves(steps: DataFrame, choices: DataFrame) -> tuple[Curves, NDArray[Any]]:
    """Return the curves of some devices, numbered in the order of their names."""
    chosen = choices.toPandas().sort_values("src", ignore_index=True)
    names = chosen["src"].to_numpy()
    table = steps.toPandas()
    device = np.searchsorted(names, table["src"].to_numpy())
    order = np.lexsort((table["own"].to_numpy(), device))
    curves = Curves(
        device[order],
        table["own"].to_numpy()[order],
        table["cost"].to_numpy()[order],
        chosen["threshold"].to_numpy(),
        chosen["best"].to_numpy(),
        down=np.zeros(0, dtype=np.int64),  # rows stay on the executors
    )
    return curves, names
