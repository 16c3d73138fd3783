"""Feeds on Spark: the cloud as a Structured Streaming query, and placement of graphs larger than one machine."""
