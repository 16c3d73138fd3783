"""Light sites: they read, pack and send their records, and another site evaluates them under their name."""
