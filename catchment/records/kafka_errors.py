"""Why a Kafka client gets no answer: what brokers and networks said while it waited.

A client whose user is refused connects again and again, and in the end its caller is told only that time is over. The
reason comes beside, to a callback, which this is.
"""

from __future__ import annotations

from typing import Protocol

REFUSALS = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
DELETED = "has deleted records"  # what an error says where records were asked for that their source no longer has
MAX_TOLD = 300  # characters of what a client says


class TellingError(Protocol):
    """An error of the client library."""

    def name(self) -> str:
        """Return its name."""

    def str(self) -> str:
        """Return what it says."""


class ClientErrors:
    """The last refusal that one client was told; errors of a network are told to its caller anyway."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    def __call__(self, error: TellingError) -> None:
        """Note what the client says beside its answers."""
        if error.name() in REFUSALS:
            self.refusal = error.str()[:MAX_TOLD]

    def explain(self, reason: str) -> str:
        """Return why something failed: the refusal, if there was one, or else the reason that was given."""
        if self.refusal is None:
            return reason
        return f"user or certificate of client_config is refused: {self.refusal}"
