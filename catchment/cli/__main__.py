"""`python -m catchment.cli` is the command `catchment`."""

from catchment.cli.main import main

main()
