"""The kinds of faults, by name; each says what it does, how it ends, and what the operator must have been told."""
