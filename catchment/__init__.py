"""catchment: wide-area streaming analytics on Spark. Fast now, exact later, few bytes."""

__version__ = "0.1.0"
