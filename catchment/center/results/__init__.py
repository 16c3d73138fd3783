"""Results as Delta tables: written by the center, read by anyone."""
