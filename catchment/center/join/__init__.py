"""Queries that join streams, as far as the center treats them differently from a query of one stream."""
