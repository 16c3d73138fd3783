"""The demo: a recorded web log arrives at three sites, and what goes wrong on a wide-area network happens to it."""
