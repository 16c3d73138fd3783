"""Streams and tables as Spark DataFrames, and raw history on disk."""
