"""Where operators run on a WAN: ours against other ways, in virtual time."""
