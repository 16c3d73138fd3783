"""The relay: what other sites sent is merged where it meets, and goes on towards the center."""
