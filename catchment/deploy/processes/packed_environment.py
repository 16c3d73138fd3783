"""What the workers of a Spark cluster need of catchment, packed into one archive that Spark ships to them.

The archive has the packages that catchment needs, as they are installed here, and a launcher that runs the Python of
the worker's machine with them. PySpark itself is left out: a worker has it already. Whoever imports catchment in a
worker does so before Spark's own files for Python arrive, which is why these cannot carry it.

Native code is packed as it is: workers need the operating system, the kind of processor and the version of Python of
the machine that packed. What an archive was made of stands in it (`environment.json`), and is compared before use.
"""

from __future__ import annotations

import io
import json
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import catchment
from catchment.errors import ConfigError
from catchment.version import VERSION

ABOUT = "environment.json"
PACKAGES = "packages"
LAUNCHER = "catchment-python"
WORKER_EXTRAS = ("spark", "kafka")
OF_SPARK = ("pyspark", "py4j")  # every worker has them
COMPRESSION = 1  # most of it is native code, which hardly gets smaller
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")

SCRIPT = """#!/bin/sh
# Runs the Python of this machine with the packages beside this file.
wanted=@VERSION@
here=$(cd "$(dirname "$0")/.." && pwd) || exit 127
for name in ${CATCHMENT_PYTHON:-python$wanted python3 /usr/bin/python3 /usr/local/bin/python3}; do
  found=$(command -v "$name") || continue
  [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$wanted" ] || continue
  PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}"
  export PYTHONPATH
  exec "$found" "$@"
done
echo "there is no Python $wanted on this worker: install it, or name it in spark.executorEnv.CATCHMENT_PYTHON" >&2
exit 127
"""


@dataclass(frozen=True)
class PackedEnvironment:
    """What an archive was made of."""

    catchment: str
    python: str
    machine: str
    packages: tuple[str, ...]

    @classmethod
    def here(cls, packages: Iterable[str] = ()) -> PackedEnvironment:
        """Return what would be packed on this machine."""
        python = ".".join(map(str, sys.version_info[:2]))
        return cls(VERSION, python, f"{platform.system()} {platform.machine()}", tuple(packages))

    @classmethod
    def read(cls, archive: Path) -> PackedEnvironment:
        """Return what an archive says of itself; one that is not there, or was not made here, is refused."""
        hint = "make it with: catchment pack FILE.tar.gz"
        try:
            with tarfile.open(archive, "r|gz") as packed:
                first = packed.next()
                said = None if first is None or first.name != ABOUT else packed.extractfile(first)
                if said is None:
                    raise ConfigError(f"{archive} was not made by catchment pack", hint=hint)
                about = json.loads(said.read())
        except (OSError, tarfile.TarError) as cause:
            raise ConfigError(f"the packed environment {archive} cannot be read: {cause}", hint=hint) from cause
        return cls(about["catchment"], about["python"], about["machine"], tuple(about["packages"]))

    def refuse_other(self, archive: Path) -> None:
        """Refuse an archive of another release, or of a Python that could not read what tasks are sent."""
        here = PackedEnvironment.here()
        for what in ("catchment", "python"):
            packed, own = getattr(self, what), getattr(here, what)
            if packed != own:
                raise ConfigError(
                    f"the packed environment {archive} has {what} {packed}, and this process has {own}",
                    hint="pack it again, with the Python that runs this: catchment pack FILE.tar.gz",
                )


def pack_environment(archive: Path, extras: Sequence[str] = WORKER_EXTRAS) -> PackedEnvironment:
    """Write the archive; packages of extras that are not installed here are left out."""
    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"{archive.name} does not end in .tar.gz, by which Spark knows what it is")
    chosen = find_packages(extras)
    environment = PackedEnvironment.here(f"{d.name} {d.version}" for d in chosen)
    unfinished = archive.with_name(f".{archive.name}.part")
    with tarfile.open(unfinished, "w:gz", compresslevel=COMPRESSION) as packed:
        _add_text(packed, ABOUT, json.dumps(asdict(environment), indent=2), 0o644)
        _add_text(packed, f"bin/{LAUNCHER}", SCRIPT.replace("@VERSION@", environment.python), 0o755)
        for name, path in dict(_files_of(chosen)).items():
            packed.add(path, f"{PACKAGES}/{name}", recursive=False)
    unfinished.replace(archive)
    return environment


def find_packages(extras: Sequence[str]) -> list[Distribution]:
    """Return catchment with these extras, and everything that it needs and that is installed, by name."""
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [("catchment", frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in asked or name in OF_SPARK:
            continue
        asked.add((name, wanted))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform, or of an extra that is not used here
        found[name] = installed
        waiting += _requirements(installed, wanted)
    return [found[name] for name in sorted(found)]


def _requirements(installed: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what a package needs, each with its extras; conditions other than extras are left to what is installed."""
    for line in installed.requires or ():
        parsed = _REQUIREMENT.match(line)
        if parsed is None:
            continue
        name, inner, condition = parsed.groups()
        only_for = _EXTRA.findall(condition or "")
        if not only_for or extras.intersection(only_for):
            own = frozenset(extra.strip() for extra in (inner or "").split(",") if extra.strip())
            yield re.sub(r"[-_.]+", "-", name).lower(), own


def _files_of(packages: Sequence[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the files of packages, by their names below the folder of packages."""
    for package in packages:
        for file in package.files or ():
            name = file.as_posix()
            path = Path(str(file.locate()))
            if not name.startswith(("..", "/")) and _is_needed(name) and path.is_file():
                yield name, path
    root = Path(catchment.__file__).parent  # as it is imported here, also where it is installed as a link to its source
    for path in sorted(root.rglob("*")):
        name = f"catchment/{path.relative_to(root).as_posix()}"
        if path.is_file() and _is_needed(name):
            yield name, path


def _is_needed(name: str) -> bool:
    folders = name.split("/")[:-1]
    return not name.endswith((".pyc", ".pth")) and not {"__pycache__", "tests", "include"}.intersection(folders)


def _add_text(packed: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    entry.mode = mode
    packed.addfile(entry, io.BytesIO(text.encode()))
