"""Rows of open windows outside of the driver: parts of partials in files, divided into shards by their keys."""
