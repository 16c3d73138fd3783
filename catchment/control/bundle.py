"""What a center tells its sites: what is declared and what is deployed, at one version, whole.

A bundle is made of the deployment that the center runs, not of its files: a person may be editing those. It has what
all sites agree on (sites, links, limits, defaults), streams, tables and views in SQL, and the encoded deployment. Sinks
are left out: no site delivers anything, and none needs to know where answers go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.errors import WireError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.storage.codec import decode, encode


@dataclass(frozen=True)
class Bundle:
    """One version of what a site is to run: an encoded `Deployed`, and what is declared.

    That is the `tables` of catchment.toml, `statements` in SQL, and which code of which `functions` they call.
    """

    version: int
    document: bytes
    declared: Mapping[str, Any]

    @classmethod
    def of(cls, deployment: Deployment) -> Bundle:
        """Return what sites are told of a deployment."""
        catalog = deployment.declared
        statements = [
            *(stream.to_sql() for stream in catalog.streams.values()),
            *(table.to_sql() for table in catalog.tables.values()),
            *(view.to_sql() for view in catalog.views.values()),
        ]
        declared = {
            "tables": deployment.project.to_tables(),
            "statements": statements,
            "functions": catalog.functions.summary,
        }
        return cls(deployment.deployed.version, encode(deployment.deployed), declared)

    @cached_property
    def digest(self) -> str:
        """A checksum of all of it."""
        declared = json.dumps(self.declared, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(
            b"%d\0%s\0%s" % (self.version, hashlib.sha256(self.document).digest(), declared)
        ).hexdigest()

    @cached_property
    def deployed(self) -> Deployed:
        """What is deployed; of a newer catchment it is refused by name."""
        found = decode(self.document)
        if not isinstance(found, Deployed) or found.version != self.version:
            raise WireError(f"version {self.version} of what is deployed came with something else in its place")
        return found

    def to_message(self) -> dict[str, Any]:
        """Return it as it is sent."""
        return {
            "version": self.version,
            "document": self.document,
            "declared": dict(self.declared),
            "digest": self.digest,
        }

    @classmethod
    def from_message(cls, message: Any) -> Bundle:
        """Return what was sent; refused if it does not match its checksum."""
        try:
            found = cls(int(message["version"]), bytes(message["document"]), dict(message["declared"]))
            matches = found.digest == message["digest"]
        except (TypeError, KeyError, ValueError) as error:
            raise WireError(f"what the center has deployed cannot be read: {type(error).__name__}") from error
        if not matches:
            raise WireError("the checksum of what the center has deployed does not match its content")
        return found
