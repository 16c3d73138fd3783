"""Feed views that are submitted while a cloud runs, for everyone or for some users. Pure.

A submitted view is planned together with the program of its project. One for some users is joined with a table of its
own, `NAME__users`, which has those users: so a user who comes or goes changes rows, and nothing for the others.

Law: a submission, or its end, never changes what another view does. A view that sends notices would send none if
another view read it, so that is refused; views that belong together are submitted, and dropped, together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from catchment.errors import FeedError, QueryError
from catchment.feeds.language.statements import Declared, Statement, ViewStatement, read_statements, view_statement
from catchment.feeds.language.template import FeedProgram
from catchment.query.sql.parse import read_feed_view
from catchment.query.sql.tokens import SqlText
from catchment.query.sql.tokens import read_statements as read_cursors

FORM = "CREATE FEED VIEW name [WITH (...)] AS SELECT ..."
USER = "user"  # the column of a table of users


@dataclass(frozen=True)
class SubmittedView:
    """A feed view as it was submitted, and whom it is for."""

    name: str
    sql: str
    users: tuple[str, ...] | None = None  # None: everyone

    @property
    def users_table(self) -> str:
        """The table of its users, which has its rows from here."""
        return f"{self.name}__users"


def read_submission(text: str, file: str, users: Sequence[str] = ()) -> list[SubmittedView]:
    """Read the feed views of a text; `file` is the name that errors give it."""
    try:
        views = list(_read_views(text, file))
    except QueryError as error:
        raise FeedError(error.message, where=error.where, hint=error.hint) from error
    if not views:
        raise FeedError("there is no statement in it", where=file, hint=FORM)
    chosen = tuple(dict.fromkeys(users)) or None
    return [replace(view, users=chosen) for view in views]


def _read_views(text: str, file: str) -> Iterator[SubmittedView]:
    for cursor in read_cursors(SqlText(text, file)):
        cursor.word("CREATE", possible=FORM)
        cursor.word("FEED", possible=f"{FORM}; streams and tables are declared in the project")
        view = read_feed_view(cursor)
        view_statement(view)  # refuses wrong options
        yield SubmittedView(view.name.lower(), view.to_sql())


def submitted_statements(views: Sequence[SubmittedView], declared: Collection[Declared]) -> list[Statement]:
    """Return the statements of submitted views, beside what their project declares."""
    streams = {item.name: item for item in declared if item.device is not None and not item.born_at_cloud}
    tables = {item.name for item in declared if not item.is_stream}
    statements: list[Statement] = []
    for view in views:
        (statement,) = read_statements(view.sql, f"submitted view {view.name!r}")
        assert isinstance(statement, ViewStatement)
        if view.users is not None:
            user = _first_user(statement, streams, tables)
            kind = streams[user[0]].type_of(user[2])
            statements.append(Declared(view.users_table, ((USER, kind),), statement.where, has_file=False))
            statement = _join_users(statement, view.users_table, user)
        statements.append(statement)
    return statements


def _first_user(view: ViewStatement, streams: Mapping[str, Declared], tables: set[str]) -> tuple[str, str, str]:
    """Return the stream of the first input, its alias, and the column that names its device: who is notified."""
    joins = view.select.args.get("joins") or []
    sources = [item.this for item in [view.select.args.get("from_"), *joins] if item is not None]
    inputs = [s for s in sources if isinstance(s, exp.Table) and s.name.lower() not in tables]
    stream = streams.get(inputs[0].name.lower()) if inputs else None
    if stream is None or stream.device is None:
        raise FeedError(
            f"view {view.name!r} is for some users, and its first input is no stream of devices",
            where=view.where,
            hint="the user of its first input is notified: let it read a stream there",
        )
    return stream.name, (inputs[0].alias or inputs[0].name).lower(), stream.device


def _join_users(view: ViewStatement, table: str, user: tuple[str, str, str]) -> ViewStatement:
    """Return a view over the rows of some users alone; their table stands directly behind the input that it ties."""
    _, alias, device = user
    select = view.select.copy()
    on = exp.EQ(this=exp.column(USER, table=table), expression=exp.column(device, table=alias))
    joins = list(select.args.get("joins") or [])
    names = [(item.this.alias or item.this.name).lower() for item in joins if isinstance(item.this, exp.Table)]
    at = names.index(alias) + 1 if alias in names else 0
    joins.insert(at, exp.Join(this=exp.to_table(table), on=on))
    select.set("joins", joins)
    return replace(view, select=select)


def check_submission(before: FeedProgram, after: FeedProgram) -> None:
    """Refuse a change that would begin or end the notices of a view that is in both programs."""
    for name in before.templates.keys() & after.templates.keys():
        if name in after.consumed and name not in before.consumed:
            raise FeedError(
                f"view {name!r} sends notices, and would send none if another view read it",
                hint=f"submit a view like {name!r} under another name together with those that read it",
            )
        if name in before.consumed and name not in after.consumed:
            raise FeedError(
                f"no view would read {name!r} any more, and it would begin to send notices",
                hint=f"drop {name!r} too, in the same command",
            )
