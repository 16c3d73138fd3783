"""What happens at a site between a micro-batch and the outbox: a cache of partials, policies to empty it."""
