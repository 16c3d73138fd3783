"""Queries that join two streams, as far as the center treats them differently from a query of one stream."""
