"""Settings of a broker's client, in a file of their own, so that no password stands in SQL."""

from __future__ import annotations

from pathlib import Path

from catchment.errors import ConfigError


def read_client_config(path: str) -> dict[str, str]:
    """Return the settings of a file of `name = value` lines, as Kafka's own tools read them; none without a file."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"the client_config {path} cannot be read: {error.strerror}",
            hint="the path is relative to the project folder",
        ) from error
    settings = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = line.partition("=")
        if line.strip().startswith("#") or not line.strip():
            continue
        if not equals:
            raise ConfigError("a setting is written name = value", where=f"{path}:{number}")
        settings[name.strip()] = value.strip()
    return settings
