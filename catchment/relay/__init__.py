"""The relay merges what other sites sent, and sends it on towards the center."""
