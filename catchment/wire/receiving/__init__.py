"""The receiving end of links: the inbox, its server, whom it refuses, and what it has seen."""
