"""What crosses a link, exactly once: messages, their bytes, and the outbox, sender, Flight call and inbox they pass."""
