"""Everything that crosses a link, exactly once: messages and their bytes, outbox, sender, gRPC calls and inbox."""
