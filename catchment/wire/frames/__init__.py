"""Frames: the bytes of segments, their layout, their versions and their bounds."""
