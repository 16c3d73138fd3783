"""The pipelines of sites, and the runner that drives all pipelines of a process."""
