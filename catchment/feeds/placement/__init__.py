"""Placement: which device, or the cloud, computes each view at the least cost of sending and receiving."""
