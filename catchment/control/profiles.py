"""How a person names a center: HOST:PORT, or a profile in `~/.config/catchment/profiles.toml`.

```toml
[prod]
center = "center.example.org:9410"
keys = "keys/prod"        # the folder of your keys, relative to this file; "keys" where it is absent
```

The keys of HOST:PORT are in the folder that `CATCHMENT_KEYS` names, or in `~/.config/catchment/keys`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from catchment.control.center_link import CenterLink, person_files
from catchment.errors import ConfigError
from catchment.project import option_kinds as kinds
from catchment.project.option_kinds import join_address
from catchment.project.options import did_you_mean, option, options_of, read_options, required
from catchment.project.toml_file import TomlFile

PROFILES_FILE = "profiles.toml"
DEFAULT_KEYS = "keys"
KEYS_VARIABLE = "CATCHMENT_KEYS"


@dataclass(frozen=True)
class Profile:
    """A center that a person has given a name."""

    center: tuple[str, int] = field(
        metadata=required(kinds.address(), doc="where the center is", example=("center.example.org", 9410))
    )
    keys: str = option(
        kinds.text("the path of a folder"),
        DEFAULT_KEYS,
        doc="the folder of your keys, relative to that of profiles.toml or absolute",
    )


def config_folder() -> Path:
    """Return where the settings of a person are."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "catchment"


def find_center(name: str) -> CenterLink:
    """Return the link to a center by its address or the name of its profile."""
    try:
        host, port = kinds.address().read(name)
    except ValueError:
        return _of_profile(name)
    keys = os.environ.get(KEYS_VARIABLE)
    return _link(join_address(host, port), Path(keys) if keys else config_folder() / DEFAULT_KEYS)


def _of_profile(name: str) -> CenterLink:
    path = config_folder() / PROFILES_FILE
    if not path.is_file():
        raise ConfigError(
            f"{name!r} is neither an address nor a profile: there is no {path}",
            hint='write HOST:PORT, or make the file with [NAME] and center = "HOST:PORT"',
        )
    file = TomlFile.load(path)
    given = file.tables.get(name)
    if not isinstance(given, dict):
        raise ConfigError(f"there is no profile {name!r}", where=str(path), hint=did_you_mean(name, file.tables))
    read = read_options(given, options_of(Profile), what=f"[{name}]", where=lambda key: file.at(name, key))
    profile = Profile(**read)
    return _link(join_address(*profile.center), path.parent / Path(profile.keys).expanduser())


def _link(address: str, keys: Path) -> CenterLink:
    files = person_files(keys)
    if files.token is None or not files.token.is_file():
        raise ConfigError(
            f"there are no keys of yours in {keys}, and the center at {address} asks who calls",
            hint=f"copy there what `catchment keys issue NAME --role operator` makes, or name its folder in "
            f"{KEYS_VARIABLE}",
        )
    return CenterLink(address, files)
