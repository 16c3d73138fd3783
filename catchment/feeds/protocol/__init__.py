"""What devices and the cloud say to each other: messages, their encoding, and the transports that carry them."""
