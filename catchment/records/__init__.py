"""Records as brokers hold them: bytes, read as the texts that a stream's parser expects."""
