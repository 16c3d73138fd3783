"""Campaigns of many seeds: how a deployment is drawn from one, and whether all was tested that should be."""
