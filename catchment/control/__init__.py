"""Control over the wire: operators and readers ask the center, sites follow what is deployed there."""
