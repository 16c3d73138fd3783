"""What catchment costs before and beside the work: start-up, an idle site, a trickle of records."""
