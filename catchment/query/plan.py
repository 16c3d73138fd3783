"""The plan of a view: a tree of nodes (`catchment.query.plan_nodes`), and what follows from it.

From the tree follow the sides that are aggregated at the sites, the fragment that a site runs, and how answers come
from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from catchment.aggregates import quote
from catchment.aggregates.shed_terms import terms_in
from catchment.query.assembly import Assembly
from catchment.query.definition_names import view_of
from catchment.query.fragment import Explode, Fragment, Lookup
from catchment.query.join import Join
from catchment.query.plan_nodes import (
    COPIES,
    SLICES,
    WINDOW_END,
    WINDOW_START,
    Answer,
    Assemble,
    ExplodeRecords,
    Filter,
    Finish,
    LookupJoin,
    Node,
    OutputColumn,
    Scan,
    Sink,
    SliceScan,
    TopRows,
    ViewScan,
    WindowAggregate,
    WindowJoin,
    WindowUnion,
    transform,
)
from catchment.query.sql.view_options import NEVER, ViewOptions
from catchment.timeline import WindowSpec


@dataclass(frozen=True)
class QueryPlan:
    """A planned view: Sink over Finish over WindowAggregate over [Filter over] [LookupJoin over] Scan.

    For a view of several streams, Finish is over a WindowJoin or a WindowUnion of such WindowAggregates.
    """

    root: Sink

    @property
    def name(self) -> str:
        """The name of the view's definition (`catchment.query.definition_names`)."""
        return self.root.view

    @property
    def view(self) -> str:
        """The name of the view."""
        return view_of(self.root.view)

    def renamed(self, name: str) -> QueryPlan:
        """Return the plan under another name; its slices, if it has any, are named after it."""
        if name == self.name:
            return self
        root = transform(self.root, lambda node: _rename_slices(node, f"{name}{SLICES}"))
        assert isinstance(root, Sink)
        return QueryPlan(replace(root, view=name))

    @cached_property
    def finish(self) -> Finish:
        assert isinstance(self.root.input, Finish)
        return self.root.input

    @cached_property
    def aggregate(self) -> WindowAggregate:
        assert isinstance(self.finish.input, WindowAggregate)
        return self.finish.input

    @cached_property
    def answer(self) -> Answer:
        """The node that gives the aggregates of SELECT and HAVING."""
        assert isinstance(self.finish.input, Answer)
        return self.finish.input

    @cached_property
    def sides(self) -> tuple[QueryPlan, ...]:
        """The plans over one stream that it is made of: itself, the sides of its join, or the branches of its union.

        Sides are aggregated, sent and shared like any query, and never sampled. A view that is assembled from slices
        has those; a view of a view has none.
        """
        if self.slices is not None:
            return (self.slices,)
        if self.lower is not None:
            return ()
        if isinstance(self.answer, WindowUnion):
            branches = enumerate(self.answer.branches, start=1)
            return tuple(self._side(f"{self.name}.branch_{number}", node) for number, node in branches)
        if not isinstance(self.answer, WindowJoin):
            return (self,)
        streams = self.answer.streams
        return tuple(self._side(f"{self.name}.{place}", node, len(streams)) for place, node in streams.items())

    @property
    def lower(self) -> str | None:
        """The view that it reads, if it reads one."""
        is_composed = isinstance(self.answer, WindowAggregate) and isinstance(self.scan, ViewScan)
        return self.scan.stream if is_composed else None

    @cached_property
    def slices(self) -> QueryPlan | None:
        """The plan of the slices that its windows are assembled from, if they are."""
        if not isinstance(self.answer, Assemble):
            return None
        assert isinstance(self.scan, SliceScan)
        assert isinstance(self.scan.source, Sink)
        return QueryPlan(self.scan.source)

    @property
    def assembly(self) -> Assembly | None:
        """How its windows are assembled from slices, if they are."""
        return self.answer.assembly if isinstance(self.answer, Assemble) else None

    @property
    def is_union(self) -> bool:
        """Whether it merges the partials of several streams."""
        return isinstance(self.answer, WindowUnion)

    def _side(self, name: str, node: Node, sharing: int = 1) -> QueryPlan:
        """Return the plan of a side; of a join, each of several streams has its part of the contract.

        If every stream lacks at most a share of its records that has nothing to do with keys, pairs lack at most the
        sum of the shares.
        """
        assert isinstance(node, WindowAggregate)
        options = replace(self.options, shed=NEVER)
        if options.max_error is not None and sharing > 1:
            delta = (1.0 - options.confidence) / sharing
            options = replace(options, max_error=options.max_error / sharing, confidence=1.0 - delta)
        own = {n: t for n, t in node.columns.items() if n not in (WINDOW_START, WINDOW_END)}
        columns = tuple(OutputColumn(n, quote(n), t, n) for n, t in own.items())
        return QueryPlan(Sink(Finish(node, columns), name, self.root.site, options))

    @property
    def tolerates_deferral(self) -> bool:
        """Whether groups of the view may be merged later when a relay or the center is overloaded.

        It says so by `max_error`, or its stream by `shed`. A view without groups, of which only some rows are published
        (LIMIT), whose late records are not merged, or that is never to be shed, does not tolerate it; nor does a view
        of several streams, whose sides are merged whole, or one that makes several rows of a record.
        """
        options = self.options
        if (
            len(self.sides) > 1
            or self.fragment.explodes
            or self.lower is not None
            or self.top is not None
            or not self.fragment.keys
            or options.shed == NEVER
        ):
            return False
        may_be_shed = bool(terms_in(self.fragment.aggregates))
        return may_be_shed or (options.max_error is not None and options.repair != NEVER)

    @cached_property
    def join(self) -> Join | None:
        """How its answers come from what its streams aggregate; None for a view that joins none."""
        if not isinstance(self.answer, WindowJoin):
            return None
        return _join_of(self.name, self.answer, iter([side.fragment for side in self.sides]))

    @property
    def options(self) -> ViewOptions:
        return self.root.options

    @property
    def window(self) -> WindowSpec:
        return self.answer.window

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        return self.finish.columns

    @property
    def having(self) -> str | None:
        return self.finish.having

    @property
    def top(self) -> TopRows | None:
        return self.finish.top

    @property
    def trivial(self) -> bool:
        """Whether no expression has to be computed after the aggregates."""
        return self.finish.trivial

    @property
    def gives_records(self) -> bool:
        """Whether its rows are records: every column is a key, and equal records are only counted."""
        return [(a.name, a.function, a.argument) for a in self.answer.aggregates] == [(COPIES, "count", None)]

    @cached_property
    def scan(self) -> Scan:
        node: Node = self.aggregate
        while not isinstance(node, Scan):
            (node,) = node.inputs
        return node

    @cached_property
    def fragment(self) -> Fragment:
        """What each site of the stream computes; of several streams, the layout of answers, which no site computes."""
        if self.join is not None:
            return self.join.answers
        if self.is_union:
            return replace(self.sides[0].fragment, name=self.name)
        node = self.aggregate.input
        where: str | None = None
        lookups: list[Lookup] = []
        explodes: list[Explode] = []
        while not isinstance(node, Scan):
            if isinstance(node, Filter):
                where = node.sql
            elif isinstance(node, LookupJoin):
                lookups.insert(0, node.lookup)
            elif isinstance(node, ExplodeRecords):
                explodes.insert(0, node.explode)
            (node,) = node.inputs
        return Fragment(
            self.name,
            node.stream,
            node.event_time,
            self.aggregate.keys,
            self.aggregate.aggregates,
            (self.window,),
            where,
            tuple(lookups),
            tuple(explodes),
        )

    def without_sites(self) -> QueryPlan:
        """Return the plan of what is computed, wherever its streams are born."""
        root = transform(self.root, lambda node: replace(node, sites=()) if isinstance(node, Scan) else node)
        assert isinstance(root, Sink)
        return replace(self, root=root)

    def to_text(self) -> str:
        return self.root.to_text()


def _rename_slices(node: Node, name: str) -> Node:
    if not isinstance(node, SliceScan):
        return node
    assert isinstance(node.source, Sink)
    return replace(node, stream=name, source=replace(node.source, view=name))


def _join_of(name: str, node: WindowJoin, fragments: Iterator[Fragment]) -> Join:
    """Return a join over the fragments of its streams, which come in the order of their places."""
    left = _join_of(name, node.left, fragments) if isinstance(node.left, WindowJoin) else next(fragments)
    right = next(fragments)
    return Join(name, left, right, node.on, node.joined, node.pairs, node.compared, node.preserved, node.conditions)
