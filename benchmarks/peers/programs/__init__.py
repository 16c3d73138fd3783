"""One program per engine, run by the Python of its environment; those of other engines import nothing of catchment."""
