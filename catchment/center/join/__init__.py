"""Queries that join two streams: what differs at the center from a query of one stream."""
