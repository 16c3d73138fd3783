"""The normal form of plans and expressions: equal meaning, equal text."""
