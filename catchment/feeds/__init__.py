"""Feeds: per-user views over the events of many devices, computed on devices or at the cloud so that least is sent."""
