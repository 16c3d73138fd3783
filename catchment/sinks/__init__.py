"""Sinks deliver the answers of views to other systems: topics of Kafka, tables of PostgreSQL, classes of the user's."""
