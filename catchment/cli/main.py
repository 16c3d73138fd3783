"""The command line, put together from one module per group of commands.

User errors, missing packages, a full disk and a machine that fails end with a message and an exit code. Nothing else
is caught.
"""

from __future__ import annotations

import errno
import sys

import typer

import catchment
from catchment.cli.commands import (
    bench,
    check,
    dashboard,
    demo,
    device,
    doctor,
    explain,
    keys,
    pack,
    plan,
    project,
    quarantine,
    repair,
    resume,
    shed,
    show,
    simulate,
    sites,
    sql,
    submit,
    whatif,
)
from catchment.cli.commands.feeds import feeds
from catchment.cli.exit_codes import ExitCode
from catchment.cli.output import notes, report
from catchment.errors import CatchmentError, ConfigError, StorageError
from catchment.storage.free_space import DiskFullError, is_disk_full

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


GROUPS = (
    demo,
    project,
    submit,
    sites,
    check,
    doctor,
    explain,
    whatif,
    plan,
    show,
    sql,
    dashboard,
    resume,
    quarantine,
    simulate,
    feeds,
    device,
    shed,
    repair,
    keys,
    pack,
    bench,
)
for group in GROUPS:
    group.register(app)

# Where `--help` lists a command that is not for running a project.
PANELS = {
    "shed": "Research tools",
    "simulate": "Research tools",
    "bench": "Research tools",
    "feeds": "Feeds on devices",
    "device": "Feeds on devices",
}
for command in app.registered_commands:
    command.rich_help_panel = PANELS.get(str(command.name or getattr(command.callback, "__name__", "")), "Commands")
for listed in app.registered_groups:
    listed.rich_help_panel = PANELS.get(str(listed.name or ""), "Commands")


# The extra of the distribution that installs a package.
EXTRAS = {
    "pyspark": "spark",
    "deltalake": "spark",
    "duckdb": "spark",
    "scipy": "plan",
    "matplotlib": "plots",
    "starlette": "page",
    "uvicorn": "page",
    "confluent_kafka": "kafka",
    "fastavro": "kafka",
    "psycopg": "postgres",
    "opentelemetry": "traces",
}


def _missing_package(error: ModuleNotFoundError) -> ConfigError | None:
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        return None
    return ConfigError(
        f"this command needs {package}, which is not installed", hint=f"pip install 'catchment[{EXTRAS[package]}]'"
    )


# What the machine below does wrong, and no input can cause: a disk with errors, or one that the kernel has made
# read-only since; too many open files, of the process or of all.
MACHINE_FAILURES = (errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)


def _report_machine(error: OSError) -> ExitCode:
    """Report a call of the operating system that failed because of the machine; anything else is a bug."""
    if is_disk_full(error):
        hint = "make room and start again: everything that was acknowledged is on disk"
        report(DiskFullError(f"the disk is full: {error.strerror}", where=error.filename, hint=hint))
        return ExitCode.DISK_FULL
    if error.errno not in MACHINE_FAILURES:
        raise error
    hint = "look at the machine, then start again: everything that was acknowledged is on disk"
    report(StorageError(f"a call of the operating system failed: {error.strerror}", where=error.filename, hint=hint))
    return ExitCode.MACHINE_FAILED


def main() -> None:
    """Run the command line."""
    try:
        app()
    except CatchmentError as error:
        report(error)
        sys.exit(ExitCode.DISK_FULL if is_disk_full(error) else ExitCode.USER_ERROR)
    except OSError as error:
        sys.exit(_report_machine(error))
    except ModuleNotFoundError as error:
        needed = _missing_package(error)
        if needed is None:
            raise
        report(needed)
        sys.exit(ExitCode.USER_ERROR)
    except KeyboardInterrupt:
        notes.print("interrupted; what was read and published before is kept", highlight=False)
        sys.exit(ExitCode.INTERRUPTED)
