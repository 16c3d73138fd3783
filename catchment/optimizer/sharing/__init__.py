"""Sharing: one fragment serves many queries, and what that sends, costs and when to change it."""
