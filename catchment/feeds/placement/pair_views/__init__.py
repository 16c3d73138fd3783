"""Views of one level, each over the feeds of two devices: the demand graph and its optimal assignment."""
