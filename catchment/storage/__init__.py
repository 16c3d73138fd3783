"""What survives a kill and a power cut: durable files, the lock of a folder, one versioned codec, journal and host."""
