"""`catchment simulate`: what-if runs of the cores alone, in virtual time."""

from __future__ import annotations

import typer

from catchment.cli.commands import simulate_edge, simulate_order

simulate_app = typer.Typer(help="Try policies on a trace, in virtual time, without Spark.", no_args_is_help=True)
simulate_edge.register(simulate_app)
simulate_order.register(simulate_app)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(simulate_app, name="simulate")
