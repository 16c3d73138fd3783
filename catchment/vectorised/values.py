"""What operations of vectorised expressions are given and return."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

Value: TypeAlias = "pa.Array | pa.Scalar"  # a column, or one value for all records
