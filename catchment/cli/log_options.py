"""The options of a command that runs something, by which its log is chosen."""

from __future__ import annotations

from typing import Annotated

import typer

from catchment.cli.run_log import LogFormat, LogLevel

LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="CATCHMENT_LOG_FORMAT",
        help="How the lines of state/logs/ are written; json also prints them on standard error.",
    ),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        envvar="CATCHMENT_LOG_LEVEL",
        help="The least that is written to state/logs/; debug has every micro-batch and every published window.",
    ),
]
