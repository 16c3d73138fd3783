"""The catalog: the streams, tables, views and sinks of a project.

A catalog is a value: adding a statement gives another catalog. In any catalog, names are unique whatever
their case, every name that a view reads exists, no view reads itself (through others), and every stream's
sites are declared and have a route to the center.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from catchment.errors import QueryError
from catchment.functions.project_functions import ProjectFunctions, load_functions
from catchment.project.config import Project
from catchment.project.option_kinds import REFERENCE
from catchment.project.options import did_you_mean
from catchment.project.routes import Routes
from catchment.query.feed_matches import Relations, has_table, matches_of, table_of
from catchment.query.own_functions import check_names
from catchment.query.own_sources import use_own_source
from catchment.query.sql.connectors import (
    FilesConnector,
    HttpConnector,
    KafkaConnector,
    MqttConnector,
    PythonConnector,
    ReplayConnector,
)
from catchment.query.sql.feed_statements import DeviceStream, FeedView
from catchment.query.sql.parse import AnyStatement, parse_file, parse_sql
from catchment.query.sql.statements import DeclaredSink, DropView, Explain, Stream, Table, View

Declared = Stream | Table | View | DeclaredSink | DeviceStream | FeedView


@dataclass(frozen=True)
class Catalog:
    """What is declared in a project, by name.

    `star` restricts it to what can be run: every site has a route to the center, and results are wanted at the center.
    Plans may go further.
    """

    project: Project
    streams: Mapping[str, Stream] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    views: Mapping[str, View] = field(default_factory=dict)
    star: bool = True
    sinks: Mapping[str, DeclaredSink] = field(default_factory=dict)
    functions: ProjectFunctions = field(default_factory=ProjectFunctions)
    retired_sites: frozenset[str] = frozenset()  # no stream is born there any more; views may still name them
    device_streams: Mapping[str, DeviceStream] = field(default_factory=dict)
    feed_views: Mapping[str, FeedView] = field(default_factory=dict)  # those with a table are among the views too

    def add(self, *statements: AnyStatement) -> Catalog:
        """Return the catalog after some statements; within one call, a view may read what is declared after it."""
        catalog = self
        for statement in statements:
            catalog = catalog._with(statement)
        if any(isinstance(statement, FeedView) for statement in statements):
            catalog = catalog._with_notices()
        for statement in statements:
            if isinstance(statement, View) and catalog.views.get(statement.name) is statement:
                catalog._check_reads(statement)
        return catalog

    def find(self, name: str) -> Declared | None:
        """Return the stream, table, view or sink of a name, whatever its case."""
        everything: dict[str, Declared] = {
            **self.device_streams,
            **self.feed_views,
            **self.streams,
            **self.tables,
            **self.views,
            **self.sinks,
        }
        return next((d for n, d in everything.items() if n.lower() == name.lower()), None)

    def without_sites(self, retired: Collection[str]) -> Catalog:
        """Return the catalog with streams that are not born at some sites any more; each must be born somewhere."""
        streams = {}
        for name, stream in self.streams.items():
            left = tuple(site for site in stream.sites or () if site not in retired)
            if not left:
                raise QueryError(
                    f"every site of stream {name!r} is retired: {', '.join(stream.sites or ())}",
                    where=stream.where,
                    hint="bring one back with catchment sites add, or drop the views that read the stream",
                )
            streams[name] = replace(stream, sites=left)
        return replace(self, streams=streams, retired_sites=frozenset(retired))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.streams, *self.tables, *self.views)

    def sinks_of(self, view: View) -> tuple[str, ...]:
        """Return the sites at which a view is answered, the one first that delivers to other systems."""
        return view.options.sink or (self.project.center,)

    def answering_site(self, view: View) -> str:
        """Return where the answers of a view are made: of what runs, at the center that this catalog is of."""
        return self.project.center if self.star else self.sinks_of(view)[0]

    @property
    def sink_sites(self) -> tuple[str, ...]:
        """The sites beside the center at which some view is answered."""
        named = dict.fromkeys(sink for view in self.views.values() for sink in self.sinks_of(view))
        return tuple(sink for sink in named if sink != self.project.center)

    def at_sink(self, sink: str) -> Catalog:
        """Return what is declared as it is to one site at which views are answered, with those views."""
        routes = Routes.of(self.project)
        project = self.project.at_sink(sink, {light: routes.hops[light] for light in routes.light})
        views = {name: view for name, view in self.views.items() if sink in self.sinks_of(view)}
        return replace(self, project=project, views=views)

    def with_own_sinks(self) -> Catalog:
        """Return the catalog with those sinks whose views are delivered from here: where each is answered first."""
        first = {v.name.lower() for v in self.views.values() if self.sinks_of(v)[0] == self.project.center}
        return replace(self, sinks={name: sink for name, sink in self.sinks.items() if sink.view.lower() in first})

    def view(self, name: str, where: str | None = None) -> View:
        """Return the view of a name."""
        found = self.find(name)
        if not isinstance(found, View):
            message = f"there is no view {name!r}" if found is None else f"{name!r} is a {_kind(found)}, not a view"
            raise QueryError(message, where=where, hint=did_you_mean(name, self.views))
        return found

    def _with(self, statement: AnyStatement) -> Catalog:
        if isinstance(statement, DropView | Explain):
            view = self.view(statement.name, statement.where)
            if isinstance(statement, Explain):
                return self
            return replace(self, views={n: v for n, v in self.views.items() if n != view.name})
        self._check_new(statement)
        if isinstance(statement, Stream):
            return replace(self, streams={**self.streams, statement.name: self._locate(statement)})
        if isinstance(statement, Table):
            return replace(self, tables={**self.tables, statement.name: statement})
        if isinstance(statement, DeclaredSink):
            return replace(self, sinks={**self.sinks, statement.name: statement})
        if isinstance(statement, DeviceStream):
            return replace(self, device_streams={**self.device_streams, statement.name: statement})
        if isinstance(statement, FeedView):
            return replace(self, feed_views={**self.feed_views, statement.name: statement})
        self.check_sinks(statement)
        return replace(self, views={**self.views, statement.name: statement})

    def _with_notices(self) -> Catalog:
        """Return the catalog with a stream and a table of the notices of each feed view that has them."""
        declared: Relations = {**self.device_streams, **self.tables, **self.feed_views}
        relations = {name.lower(): relation for name, relation in declared.items()}
        catalog = self
        for view in self.feed_views.values():
            catalog._check_feed_reads(view)
            if view.name not in self.views and has_table(view, self.feed_views.values()):
                matches = matches_of(view, relations, self.project.center)
                catalog._check_new(matches)
                catalog = replace(
                    catalog,
                    streams={**catalog.streams, matches.name: matches},
                    views={**catalog.views, view.name: table_of(view, matches)},
                )
        return catalog

    def _check_feed_reads(self, view: FeedView) -> None:
        for table in view.tables:
            found = self.find(table.name)
            if isinstance(found, View) and found.name not in self.feed_views:
                raise view.text.error(
                    f"feed view {view.name!r} reads the materialized view {found.name!r}, whose answers are no stream",
                    table,
                    hint="declare one: CREATE STREAM name (columns) WITH (born = 'cloud', "
                    f"view = {found.name!r}), and read that",
                )
            if not isinstance(found, DeviceStream | Table | FeedView | View):
                raise view.text.error(
                    f"feed view {view.name!r} reads {table.name!r}, which is no stream of devices, table or view",
                    table,
                    hint=did_you_mean(table.name, (*self.device_streams, *self.tables, *self.feed_views)),
                )

    def _check_new(self, statement: Declared) -> None:
        known = self.find(statement.name)
        if known is not None:
            raise QueryError(
                f"the name {statement.name!r} is already taken by a {_kind(known)}",
                where=statement.where,
                hint=f"it was declared at {known.where}; choose another name",
            )

    def _locate(self, stream: Stream) -> Stream:
        """Return the stream with its sites: those that it names, or all but the center."""
        located = stream if stream.sites is not None else replace(stream, sites=self.project.edge_sites)
        assert located.sites is not None
        for site in located.sites:
            if site not in self.project.sites:
                raise QueryError(
                    f"stream {stream.name!r} is born at the undeclared site {site!r}",
                    where=stream.where,
                    hint=did_you_mean(site, self.project.sites),
                )
            self._check_link(stream, site)
            self._check_reference(stream, site)
        self._check_path(located, located.sites)
        return located

    def _check_link(self, stream: Stream, site: str) -> None:
        center = self.project.center
        if self.star and not Routes.of(self.project).reaches(site):
            raise QueryError(
                f"stream {stream.name!r} is born at {site!r}, which has no link to the center {center!r}",
                where=stream.where,
                hint=f'add to catchment.toml [[links]] from = "{site}", to = "{center}", or links through other sites',
            )

    def _check_reference(self, stream: Stream, site: str) -> None:
        """Refuse a history of references where records are evaluated elsewhere than their files are."""
        if stream.history == REFERENCE and self.project.is_light(site):
            raise QueryError(
                f"stream {stream.name!r} asks for history = 'reference', but {site!r} sends its records elsewhere, and "
                f"the files that arrive there are removed when they were read",
                where=stream.where,
                hint="leave history out: then it is a copy, where the records are evaluated",
            )

    def _check_path(self, stream: Stream, sites: tuple[str, ...]) -> None:
        connector = stream.connector
        if isinstance(connector, KafkaConnector):
            self._check_topic(stream, connector.topic, f"{connector.topic}{connector.brokers}", sites)
            return
        if isinstance(connector, MqttConnector):
            shown = "{site}" if connector.topic.startswith("$share/") else connector.topic
            self._check_topic(stream, connector.topic, f"{shown}{connector.broker}", sites)
            return
        if isinstance(connector, PythonConnector):
            self._check_argument(stream, connector, sites)
            return
        if isinstance(connector, HttpConnector):
            self._check_listening(stream, sites)
            return
        if not isinstance(connector, FilesConnector | ReplayConnector) or len(sites) == 1 or "{site}" in connector.path:
            return
        if not connector.path.startswith("/"):
            raise QueryError(
                f"the {len(sites)} sites of stream {stream.name!r} would all read {connector.path!r}",
                where=stream.where,
                hint="put {site} in the path, such as 'data/{site}'; an absolute path on disk may be one for all",
            )

    @staticmethod
    def _check_topic(stream: Stream, topic: str, told_apart_by: str, sites: tuple[str, ...]) -> None:
        """Refuse one topic for several sites: each would read, and count, all of its records."""
        if len(sites) > 1 and "{site}" not in told_apart_by:
            kafka = isinstance(stream.connector, KafkaConnector)
            where, shared = ("brokers", "") if kafka else ("broker", "; or share it: '$share/catchment/...'")
            raise QueryError(
                f"the {len(sites)} sites of stream {stream.name!r} would all read topic {topic!r}",
                where=stream.where,
                hint=f"put {{site}} into topic or {where}, such as topic = 'requests-{{site}}', or name one site"
                f"{shared}",
            )

    @staticmethod
    def _check_argument(stream: Stream, python: PythonConnector, sites: tuple[str, ...]) -> None:
        """Refuse a source of the project's own that cannot tell its sites apart."""
        if len(sites) > 1 and "{site}" not in python.argument:
            raise QueryError(
                f"the {len(sites)} sites of stream {stream.name!r} would all read what {python.reader} reads",
                where=stream.where,
                hint="put {site} into argument, by which the class tells sites apart, or name one site",
            )

    def _check_listening(self, stream: Stream, sites: tuple[str, ...]) -> None:
        """Refuse a stream that is posted to a site which listens nowhere."""
        for site in sites:
            if self.project.sites[site].http is None:
                raise QueryError(
                    f"the records of stream {stream.name!r} are posted to site {site!r}, which listens nowhere",
                    where=stream.where,
                    hint=f'add to catchment.toml, in [sites.{site}]: http = "0.0.0.0:8420"',
                )

    def check_sinks(self, view: View) -> None:
        """Refuse a view that is to be answered where that cannot be done."""
        for sink in self.sinks_of(view):
            if sink not in self.project.sites:
                raise QueryError(
                    f"view {view.name!r} wants its results at the undeclared site {sink!r}",
                    where=view.where,
                    hint=did_you_mean(sink, self.project.sites),
                )
            if self.star and self.project.is_light(sink):
                raise QueryError(
                    f"view {view.name!r} wants its results at {sink!r}, which has compute = false",
                    where=view.where,
                    hint="name a site that computes: it merges and answers",
                )

    def _check_reads(self, view: View) -> None:
        for table in view.tables:
            found = self.find(table.name)
            if isinstance(found, DeviceStream | FeedView):
                raise view.text.error(_unreadable(view, found), table, hint=_way_to_read(found))
            if not isinstance(found, Stream | Table | View):
                raise view.text.error(
                    f"view {view.name!r} reads {table.name!r}, which is not declared",
                    table,
                    hint=did_you_mean(table.name, (*self.streams, *self.tables)),
                )
        cycle = self._cycle(view, (view.name,))
        if cycle:
            raise QueryError(
                f"view {view.name!r} reads itself: {' -> '.join(cycle)}",
                where=view.where,
                hint="a view reads streams and tables",
            )

    def _cycle(self, view: View, path: tuple[str, ...]) -> tuple[str, ...]:
        for read in (self.find(name) for name in view.reads):
            if isinstance(read, View):
                found = (*path, read.name) if read.name in path else self._cycle(read, (*path, read.name))
                if found:
                    return found
        return ()


def load_catalog(project: Project, *, star: bool = True) -> Catalog:
    """Return the catalog of the project's queries/*.sql; their order does not matter, and a DROP counts last.

    At a site that has joined a deployment it is what the center has declared, read from the site's own sources.
    """
    if project.joined is None:
        statements = [s for path in project.query_files for s in parse_file(path)]
    else:
        statements = [s for text in project.statements for s in parse_sql(text, "what the center has declared")]
        statements = [use_own_source(statement, project.joined) for statement in statements]
    functions = check_names(load_functions(project))
    return Catalog(project, star=star, functions=functions).add(*sorted(statements, key=_rank))


def _kind(declared: Declared) -> str:
    names = {DeclaredSink: "sink", DeviceStream: "stream of devices", FeedView: "feed view"}
    return names.get(type(declared), type(declared).__name__.lower())


def _unreadable(view: View, read: DeviceStream | FeedView) -> str:
    why = "its records stay on their devices" if isinstance(read, DeviceStream) else "its notices are in no table"
    return f"view {view.name!r} reads the {_kind(read)} {read.name!r}: {why}"


def _way_to_read(read: DeviceStream | FeedView) -> str:
    if isinstance(read, DeviceStream):
        return "let a feed view select what is needed of it, and read that"
    return f"let another feed view select from it: CREATE FEED VIEW ... AS SELECT ... FROM {read.name}"


def _rank(statement: AnyStatement) -> int:
    kinds: Iterable[type] = (Stream, DeviceStream, Table, FeedView, View, DeclaredSink, DropView, Explain)
    return next(rank for rank, kind in enumerate(kinds) if isinstance(statement, kind))
