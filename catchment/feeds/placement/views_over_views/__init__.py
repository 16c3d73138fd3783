"""Views whose inputs are views: the hierarchy, what its links carry and its optimal assignment."""
