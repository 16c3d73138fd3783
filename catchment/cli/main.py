"""The command line: one file a group of commands, gathered here.

A mistake of the user's ends with its message and exit code 2; nothing else is caught.
"""

from __future__ import annotations

import sys

import typer

import catchment
from catchment.cli.commands import bench, explain, plan, project, repair, shed, show, simulate, sql, submit
from catchment.cli.commands.feeds import feeds, place
from catchment.cli.output import report
from catchment.errors import CatchmentError

app = typer.Typer(
    name="catchment",
    help="Wide-area streaming analytics on Spark: fast now, exact later, few bytes.",
    epilog="Start with: catchment demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"catchment {catchment.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Wide-area streaming analytics on Spark: fast now, exact later, few bytes."""


for group in (project, submit, explain, plan, show, sql, simulate, place, feeds, shed, repair, bench):
    group.register(app)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except CatchmentError as error:
        report(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
