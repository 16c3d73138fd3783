"""The simulated parts of a deployment: time, disks, links, tables, sites, relays and the center."""
