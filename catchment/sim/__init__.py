"""Experiments in virtual time that drive the same cores as a deployment."""
