"""The default policy: hold every key while the link can carry all of them, then send those least likely to return."""
