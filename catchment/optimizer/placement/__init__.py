"""Placement: at which sites the operators of shared queries run, for the least traffic over the WAN."""
