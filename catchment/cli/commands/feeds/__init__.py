"""The commands about feeds."""
