"""Settings of a broker's client, in a file of their own, so that no password stands in SQL."""

from __future__ import annotations

from pathlib import Path

from catchment.errors import ConfigError

OF_OTHERS = 0o077  # what group and others may do with a file


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


def check_password_file(path: str) -> str:
    """Return the path of a file of passwords for PostgreSQL, whose library would ignore one that it may not trust."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"the password_file {path} does not exist", hint="the path is relative to the project folder")
    if file.stat().st_mode & OF_OTHERS:
        raise ConfigError(f"the password_file {path} can be read by others", hint=f"chmod 600 {path}")
    return path
