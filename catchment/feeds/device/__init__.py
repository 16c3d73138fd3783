"""The device: its own feeds, the views that it computes, and a fleet of many devices in one process."""
