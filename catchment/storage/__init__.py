"""Storage that survives a kill and a power cut: durable files, folder locks, one versioned codec, journal and host."""
