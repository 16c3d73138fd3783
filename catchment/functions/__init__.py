"""Functions and aggregates that a project brings along: declared in Python over Arrow, told apart by their code."""
