"""How to reach an MQTT broker, and how clients log in there.

Secrets come from files that only their owner can read, or from the environment: never from the command line, which
other users see, and never into a text that is printed or logged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from catchment.errors import FeedError
from catchment.keys.private_files import read_secret

PASSWORD_VARIABLE = "CATCHMENT_MQTT_PASSWORD"
PORTS = {"mqtt": 1883, "mqtts": 8883}
_NAME = re.compile(r"[^/+#\x00]{1,64}")
_HINT = "write HOST:PORT or mqtt://HOST:PORT, or mqtts://HOST:PORT for TLS"


def check_topic_name(name: str, what: str) -> None:
    """Refuse a name that cannot be one level of a topic."""
    if not _NAME.fullmatch(name):
        raise FeedError(f"{what} cannot be called {name!r} on MQTT: 1 to 64 characters without / + #")


@dataclass(frozen=True)
class MqttConfig:
    """A broker, and how clients log in: by `username`, or each by its own name.

    In `password_file`, `{client}` is the name of the client: "cloud", or that of the device.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    app: str = "catchment"
    keepalive_s: int = 30
    max_unsent: int = 10_000  # messages of a client that wait for the broker; past it publishing is an error
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    tls: bool = False
    ca_certs: Path | None = None  # None: the authorities that the system trusts

    def __post_init__(self) -> None:
        check_topic_name(self.app, "an app")
        if not 0 < self.port < 65536:
            raise FeedError(f"there is no port {self.port}")
        if self.ca_certs is not None and not self.tls:
            raise FeedError("an authority is of no use without TLS", hint="write mqtts://HOST:PORT")
        if self.sends_password and not self.tls and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise FeedError("a password would cross the network in plain text", hint="write mqtts://HOST:PORT")

    @property
    def sends_password(self) -> bool:
        return self.password is not None or self.password_file is not None

    @property
    def address(self) -> str:
        """The broker as people write it, without secrets."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    @classmethod
    def parse(
        cls,
        broker: str,
        app: str = "catchment",
        *,
        username: str | None = None,
        password_file: Path | None = None,
        ca_certs: Path | None = None,
    ) -> MqttConfig:
        """Return the broker that a person writes; the password is in a file or in the environment."""
        written = urlsplit(broker if "://" in broker else f"mqtt://{broker}")
        if written.password is not None:
            raise FeedError(
                "a password in the address of a broker can be seen by other users",
                hint=f"put it into a file (password_file) or into the variable {PASSWORD_VARIABLE}",
            )
        try:
            port = written.port
        except ValueError:
            port = 0
        if written.scheme not in PORTS or not written.hostname or written.path.strip("/") or port == 0:
            raise FeedError(f"cannot read {broker!r} as a broker", hint=_HINT)
        return cls(
            host=written.hostname,
            port=port or PORTS[written.scheme],
            app=app,
            username=username or written.username,
            password=None if password_file else os.environ.get(PASSWORD_VARIABLE),
            password_file=password_file,
            tls=written.scheme == "mqtts",
            ca_certs=ca_certs,
        )

    def login_of(self, client: str) -> tuple[str, str] | None:
        """Return user name and password of a client; None if clients do not log in."""
        if not self.sends_password:
            return None
        return self.username or client, self._password_of(client)

    def _password_of(self, client: str) -> str:
        if self.password_file is None:
            return self.password or ""
        path = Path(str(self.password_file).replace("{client}", client))
        return read_secret(path, f"the MQTT password of {client!r}").decode().strip()

    def up(self, device: str) -> str:
        return f"{self.app}/up/{device}"

    def down(self, device: str) -> str:
        return f"{self.app}/down/{device}"
