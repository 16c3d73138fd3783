"""catchment beside other engines: the same files, the same query, the answers compared before any time is believed."""
