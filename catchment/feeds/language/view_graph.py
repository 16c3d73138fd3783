"""The view graph: physical views, one per pair of devices, generated from templates and reference data.

A feed is named by its kind and device (`location@12`), a physical view by its template and its input feeds
(`nearby(location@12,location@57)`), so that what two templates or two rows share meets under one name
(Chandramouli et al., VLDB'13, section 2.1). Both directions of a friendship need the same two feeds: they
are two *rows* of one physical view, and the view demands of each feed the larger of their shares.

Invariant: a graph depends on the set of reference rows only, not on their order; a view's inputs are feeds or
views of the same graph; no view joins a feed with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from catchment.errors import FeedError
from catchment.feeds.forms.expression import Evaluate, Slots
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow, view_name
from catchment.feeds.language.expressions import Layout, compile_sql
from catchment.feeds.language.reference import AliasedTable, ReferenceData, Row, join, layout_of
from catchment.feeds.language.template import (
    CLOUD_FEED,
    DEVICES,
    FEED_COLUMN,
    NOTIFIED_COLUMN,
    FeedInput,
    FeedProgram,
    FeedTemplate,
    TableUse,
    feed_kind,
)

RejectJoined = Callable[[FeedError, Sequence[tuple[str, Row]]], None]  # why; tables and rows


@dataclass(frozen=True, slots=True)
class SourceFeed:
    """The feed that one device produces for one feed kind; those of the cloud have `CLOUD_FEED` for a device."""

    name: str
    kind: str
    device: str

    @property
    def is_of_cloud(self) -> bool:
        return self.device == CLOUD_FEED


@dataclass(frozen=True)
class ViewDelta:
    """What a change of the reference data means for the views; `changed` views keep their name."""

    added: tuple[PhysicalView, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[PhysicalView, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True)
class ViewGraph:
    """Source feeds and physical views; views stand after the views that they read."""

    program: FeedProgram = field(repr=False)
    feeds: Mapping[str, SourceFeed]
    views: Mapping[str, PhysicalView]

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted({f.device for f in self.feeds.values() if not f.is_of_cloud}))

    @cached_property
    def consumers(self) -> dict[str, list[PhysicalView]]:
        """The views that read each feed or view."""
        found: dict[str, list[PhysicalView]] = {}
        for view in self.views.values():
            for name in view.inputs:
                found.setdefault(name, []).append(view)
        return found

    @cached_property
    def _origins(self) -> dict[str, frozenset[str]]:
        found = {name: frozenset({feed.device}) for name, feed in self.feeds.items()}
        for name, view in self.views.items():
            found[name] = frozenset().union(*(found[i] for i in view.inputs))
        return found

    def origins(self, name: str) -> frozenset[str]:
        """Return the devices whose data is in a feed or a view, and the cloud if it has a part in it."""
        return self._origins[name]

    def restricted_to(self, devices: Collection[str]) -> ViewGraph:
        """Return the part of this graph whose data is all from these devices."""
        feeds = {name: feed for name, feed in self.feeds.items() if feed.device in devices or feed.is_of_cloud}
        views: dict[str, PhysicalView] = {}
        for name, view in self.views.items():
            if all(i in feeds or i in views for i in view.inputs):
                views[name] = view
        return ViewGraph(self.program, feeds, views)

    def without_templates(self, names: Collection[str]) -> ViewGraph:
        """Return this graph without the views of these templates, of which no other view reads one."""
        views = {name: view for name, view in self.views.items() if view.template not in names}
        read = {feed for view in views.values() for feed in view.inputs}
        feeds = {name: feed for name, feed in self.feeds.items() if name in read}
        return ViewGraph(self.program, feeds, views)

    def delta_to(self, newer: ViewGraph) -> ViewDelta:
        """Return the changes that lead from this graph to a newer one."""
        old = self.views
        new = newer.views
        return ViewDelta(
            added=tuple(v for name, v in new.items() if name not in old),
            removed=tuple(name for name in old if name not in new),
            changed=tuple(v for name, v in new.items() if name in old and old[name] != v),
        )


def generate_views(program: FeedProgram, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
    """Return the physical views of a program over reference data.

    A wrong row is an error; with `reject` only that row is left out, and `reject` is told why. A row that names a
    device that is not among the known ones is then no mistake: the device may come later.
    """
    feeds: dict[str, SourceFeed] = {}
    views: dict[str, PhysicalView] = {}
    relations: dict[str, AliasedTable] = {}
    for template in program.templates.values():
        rows = list(_Generator(program, template, data, relations, reject).rows())
        relations[template.name] = AliasedTable(template.name, _relation_columns(template), [r for _, r in rows])
        if not template.is_pair and template.name in program.consumed:
            continue  # unfolded into the views that read it
        for row, _ in rows:
            feeds.update((f.name, f) for f in _source_feeds(program, template, row))
        views.update(_group_by_inputs(template, [row for row, _ in rows]))
    return ViewGraph(program, feeds, views)


def _relation_columns(template: FeedTemplate) -> tuple[str, ...]:
    static = tuple(o.name for o in template.outputs if o.static_sql is not None)
    return (*static, FEED_COLUMN, NOTIFIED_COLUMN)


def _source_feeds(program: FeedProgram, template: FeedTemplate, row: ViewRow) -> Iterator[SourceFeed]:
    for item, name, device in zip(template.inputs, row.inputs, row.devices, strict=True):
        if item.is_stream:
            source = CLOUD_FEED if program.streams[item.source].born_at_cloud else str(device)
            yield SourceFeed(name, feed_kind(item.source, item.where), source)


def _group_by_inputs(template: FeedTemplate, rows: list[ViewRow]) -> Iterator[tuple[str, PhysicalView]]:
    groups: dict[tuple[str, ...], set[ViewRow]] = {}
    for row in rows:
        groups.setdefault(tuple(sorted(row.inputs)), set()).add(row)
    for inputs in sorted(groups):
        name = view_name(template.name, inputs)
        ordered = tuple(sorted(groups[inputs], key=lambda r: r.sort_key))
        yield name, PhysicalView(name, template.name, inputs, ordered)


class _Generator:
    """Generates the rows of one template."""

    def __init__(
        self,
        program: FeedProgram,
        template: FeedTemplate,
        data: ReferenceData,
        lower: Mapping[str, AliasedTable],
        reject: RejectJoined | None,
    ) -> None:
        self.program = program
        self.template = template
        self.reject = reject
        self.known = None if data.devices is None or reject is not None else {str(d) for d in data.devices}
        self.relations = [self._relation(use, data, lower) for use in template.tables]
        layout = layout_of(self.relations)
        self.devices = [self._compile(i.device, layout) for i in template.inputs]
        self.shares = [self._compile(i.share, layout) for i in template.inputs]
        self.params = [layout[p] for p in template.params]
        self.names = [self._name_of(i, layout) for i in template.inputs]
        self.static = [self._compile(o.static_sql, layout) for o in template.outputs if o.static_sql is not None]
        first = template.inputs[0]
        self.notified = self.devices[0] if first.is_stream else self._column(f"{first.alias}.{NOTIFIED_COLUMN}", layout)

    def rows(self) -> Iterator[tuple[ViewRow, Row]]:
        """Yield each joined row as a view row, and as a row of the relation that views above this one read."""
        for slots in join(self.relations, self.template.static, self.program.functions):
            inputs = tuple(name(slots) for name in self.names)
            notified = self.notified(slots)
            row = ViewRow(
                inputs=inputs,
                shares=tuple(float(share(slots) or 0) for share in self.shares),
                devices=tuple(
                    d(slots) if i.is_stream else None for d, i in zip(self.devices, self.template.inputs, strict=True)
                ),
                params=tuple(slots[slot][at] for slot, at in self.params),
                notified=str(notified),
            )
            if not self._is_sound(row, slots):
                continue
            relation_row = (
                *(o(slots) for o in self.static),
                view_name(self.template.name, tuple(sorted(inputs))),
            )
            yield row, (*relation_row, notified)

    def _relation(self, use: TableUse, data: ReferenceData, lower: Mapping[str, AliasedTable]) -> AliasedTable:
        if use.is_view:
            return AliasedTable(use.alias, lower[use.table].columns, lower[use.table].rows)
        if use.table == DEVICES:
            if data.devices is None:
                raise FeedError(
                    f"view {self.template.name!r} runs on every device, but the known devices are not listed",
                    hint="give ReferenceData(devices=...)",
                )
            return AliasedTable(use.alias, ("device",), [(d,) for d in data.devices])
        columns = self.program.tables[use.table].column_names
        return AliasedTable(use.alias, columns, data.rows(use.table, len(columns)))

    def _compile(self, sql: str | None, layout: Layout) -> Evaluate:
        return compile_sql(sql, layout, self.program.functions)

    def _column(self, column: str, layout: Layout) -> Evaluate:
        slot, at = layout[column]
        return lambda slots: slots[slot][at]

    def _name_of(self, item: FeedInput, layout: Layout) -> Evaluate:
        if not item.is_stream:
            return self._column(f"{item.alias}.{FEED_COLUMN}", layout)
        device = self._compile(item.device, layout)
        kind = feed_kind(item.source, item.where)
        return lambda slots: f"{kind}@{device(slots)}"

    def _is_sound(self, row: ViewRow, slots: Slots) -> bool:
        try:
            self._check(row)
        except FeedError as error:
            if self.reject is None:
                raise
            tables = [u.table for u in self.template.tables]
            self.reject(error, list(zip(tables, slots, strict=True)))
            return False
        return True

    def _check(self, row: ViewRow) -> None:
        where = f"view {self.template.name!r}"
        if len(set(row.inputs)) != len(row.inputs):
            raise FeedError(
                f"a self edge: {row.inputs[0]!r} is joined with itself",
                where=where,
                hint="remove the rows of the reference table that tie a device to itself",
            )
        for item, device, share in zip(self.template.inputs, row.devices, row.shares, strict=True):
            if item.is_stream and device is None:
                raise FeedError(f"a reference row names no device for {item.alias!r}: {row!r}", where=where)
            of_device = item.is_stream and not self.program.streams[item.source].born_at_cloud
            if of_device and self.known is not None and str(device) not in self.known:
                raise FeedError(
                    f"unknown device {device!r} for {item.alias!r}",
                    where=where,
                    hint="list it among the known devices, or remove its reference rows",
                )
            if not 0 < share <= 1:
                raise FeedError(
                    f"the share of {item.alias!r} is {share!r} for {row.inputs}; expected over 0, at most 1",
                    where=where,
                )
