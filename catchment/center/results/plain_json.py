"""Values of answers as plain JSON: instants in ISO 8601, bytes in hexadecimal, NaN and infinity as null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Any


def to_plain_json(value: Any) -> Any:
    """Convert a value, and everything in it, to plain JSON types."""
    match value:
        case Mapping():
            return {str(k): to_plain_json(v) for k, v in value.items()}
        case list() | tuple():
            return [to_plain_json(v) for v in value]
        case float():
            return value if math.isfinite(value) else None
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case None | bool() | int() | str():
            return value
    return str(value)
