"""The sending end of a link: the outbox, the sender with its lanes, and the uplink to the other end."""
