"""Timestamped logs laid out for replay in order of arrival."""
