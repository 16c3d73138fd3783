"""Web pages about a running deployment."""
