"""Who may look at the dashboard, and who may change what runs: one token for each of the two roles.

The tokens are made once per state folder, in a file that only its owner can read. A browser shows its token once, in
the address; from then on a cookie that scripts cannot read carries it. Programs send it as a bearer token.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from catchment.keys.private_files import create_secret
from catchment.storage.files import make_folder

TOKENS_FILE = "dashboard-tokens.json"
TOKEN_BYTES = 24


class AccessRole(StrEnum):
    """What a caller may do."""

    READER = "reader"  # look at everything
    OPERATOR = "operator"  # also submit and drop views


@dataclass(frozen=True)
class AccessTokens:
    """The token of each role."""

    reader: str
    operator: str

    @classmethod
    def of_state(cls, state: Path) -> AccessTokens:
        """Return the tokens of a state folder; make them where there are none."""
        path = state / TOKENS_FILE
        make_folder(state)
        made = {role: secrets.token_urlsafe(TOKEN_BYTES) for role in AccessRole}
        kept = json.loads(create_secret(path, json.dumps(made).encode()))
        return cls(kept[AccessRole.READER], kept[AccessRole.OPERATOR])

    def role_of(self, token: str | None) -> AccessRole | None:
        """Return the role that a token proves. Both are compared in constant time, so that the time tells nothing."""
        given = (token or "").encode()
        is_operator = hmac.compare_digest(given, self.operator.encode())
        is_reader = hmac.compare_digest(given, self.reader.encode())
        if is_operator:
            return AccessRole.OPERATOR
        return AccessRole.READER if is_reader else None
