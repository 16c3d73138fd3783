"""The cloud: it places views, tells devices what to send, routes feeds and computes the views placed on it."""
