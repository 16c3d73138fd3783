"""What a center costs: landing segments, merging partials, holding open keys."""
