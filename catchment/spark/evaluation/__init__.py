"""The evaluation of fragments and of the last step of queries by Spark."""
