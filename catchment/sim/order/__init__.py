"""How long a site waits for late records: slack controllers over traces of arrivals."""
