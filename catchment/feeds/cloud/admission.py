"""Which devices a cloud takes: by rule, by the token that a device shows, and up to a number. Pure.

The rule is `allow` (any name that the program's streams can have), `deny` (only devices that have a token) or a
column of a reference table (the devices that it names). A device that has a token must show it, whatever the rule.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from catchment.errors import CatchmentError, FeedError
from catchment.feeds.forms.program import VERSION
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import CLOUD_FEED, FeedProgram
from catchment.feeds.project import typed_device
from catchment.feeds.protocol.messages import Hello
from catchment.feeds.protocol.mqtt_config import check_topic_name

ALLOW = "allow"
DENY = "deny"
MAX_DEVICES = 10_000  # devices that are registered at a time, unless [devices] says another number

TokenOf = Callable[[str], str | None]  # the token of a device, or None if it has none


@dataclass(frozen=True)
class AdmissionRule:
    """What a cloud asks of a device that says hello."""

    admit: str = ALLOW
    max_devices: int = MAX_DEVICES
    retire_after_us: int | None = None  # a device that is silent for longer has left for good

    def check(self, program: FeedProgram) -> None:
        """Refuse a rule that names a table or a column that the program does not have."""
        if self.admit in (ALLOW, DENY):
            return
        table, _, column = self.admit.partition(".")
        declared = program.tables.get(table)
        if declared is None or column not in declared.column_names:
            columns = [f"'{t.name}.{c}'" for t in program.tables.values() for c in t.column_names]
            raise FeedError(
                f"admit is {self.admit!r} in [devices]", hint=f"possible: 'allow', 'deny', {', '.join(columns)}"
            )

    def named_by(self, program: FeedProgram, data: ReferenceData) -> frozenset[str] | None:
        """Return the devices that the rule's column names; None if the rule has no column."""
        if self.admit in (ALLOW, DENY):
            return None
        table, _, column = self.admit.partition(".")
        at = program.tables[table].column_names.index(column)
        return frozenset(str(row[at]) for row in data.tables[table] if row[at] is not None)


@dataclass
class DeviceGate:
    """Says why a device is not taken; the reference data that it looks at is replaced when it changes."""

    program: FeedProgram
    rule: AdmissionRule = field(default_factory=AdmissionRule)
    token_of: TokenOf = lambda device: None
    named: frozenset[str] | None = None
    refused: int = 0

    def __post_init__(self) -> None:
        self.rule.check(self.program)

    def follow(self, data: ReferenceData) -> None:
        """Take the devices that the rule's table names now."""
        self.named = self.rule.named_by(self.program, data)

    def refusal(self, device: str, hello: Hello, registered: Collection[str]) -> str | None:
        """Return why a device that says hello is refused; None if it is admitted."""
        reason = self._reason(device, hello, registered)
        self.refused += reason is not None
        return reason

    def edge_refusal(self, edge: str, hello: Hello) -> str | None:
        """Return why an edge cloud that the project names is refused; None if it is admitted."""
        reason = self._general_reason(edge, hello)
        self.refused += reason is not None
        return reason

    def _general_reason(self, name: str, hello: Hello) -> str | None:
        """Return why nobody who says this hello is admitted, be it a device or an edge cloud."""
        if hello.version != VERSION:
            return f"the device speaks version {hello.version} of the protocol, this cloud version {VERSION}"
        try:
            expected = self.token_of(name)
        except CatchmentError as error:
            return error.message
        if expected is not None and not _is_same(expected, hello.token):
            return "the token is wrong" if hello.token else "a token is needed"
        if expected is None and self.rule.admit == DENY:
            return "this cloud takes only devices that it has a token for"
        return None

    def _reason(self, device: str, hello: Hello, registered: Collection[str]) -> str | None:
        try:
            check_topic_name(device, "a device")
            if device == CLOUD_FEED:
                return f"{CLOUD_FEED!r} is the name of the cloud"
            typed_device(self.program, device)
        except CatchmentError as error:
            return error.message
        general = self._general_reason(device, hello)
        if general is not None:
            return general
        if self.named is not None and device not in self.named:
            return f"{self.rule.admit} does not name this device"
        if device not in registered and len(registered) >= self.rule.max_devices:
            return f"{self.rule.max_devices} devices are registered, and no more are taken"
        return None


def _is_same(expected: str, shown: str | None) -> bool:
    return shown is not None and hmac.compare_digest(expected.encode(), shown.encode())
