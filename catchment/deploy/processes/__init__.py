"""What a process holds open and looks after: connections, relays, forwarding, housekeeping, environments of workers."""
