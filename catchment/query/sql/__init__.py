"""From SQL text to statements, with the place of every mistake."""
