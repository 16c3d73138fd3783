"""From the SELECT of a view to its plan, or to the first mistake in it."""
