"""Small state folders of every released version, which later versions are tested to take up.

    python -m tests.worlds.state_fixtures tests/golden

writes one archive per kind of project to state/VERSION/, and what this version stores to stored_classes.txt. Both are
promises: what is there is replaced only with --overwrite.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import importlib
import io
import pkgutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

import catchment
from catchment.storage import codec
from catchment.storage.lock import LOCK_FILE
from catchment.version import VERSION
from tests.worlds import stopped_project
from tests.worlds.stopped_queries import JoinWorld, SharedWorld
from tests.worlds.stopped_sites import ContractWorld, RelayWorld, SheddingWorld, StarWorld
from tests.worlds.stopped_world import StoppedWorld

WORLDS: Mapping[str, type[StoppedWorld]] = {
    "star": StarWorld,
    "contract": ContractWorld,
    "shed": SheddingWorld,
    "relay": RelayWorld,
    "join": JoinWorld,
    "shared": SharedWorld,
}
SPARK_KIND = "spark"
CLASSES = "stored_classes.txt"
GOLDEN = Path(__file__).parents[1] / "golden"
MAX_ARCHIVE_BYTES = 200_000
SUFFIX = ".tar.gz"


def find_archives(golden: Path = GOLDEN) -> list[Path]:
    """Return the archives of all versions."""
    return sorted(golden.glob(f"state/*/*{SUFFIX}"))


def newest_archives() -> dict[str, Path]:
    """Return the archives of the newest version that is kept, by kind."""
    newest = max((path.parent for path in find_archives()), key=lambda f: [int(n) for n in f.name.split(".")])
    return {kind_of(path): path for path in find_archives() if path.parent == newest}


def kind_of(archive: Path) -> str:
    return archive.name.removesuffix(SUFFIX)


def pack(folder: Path, archive: Path) -> None:
    """Write a folder as an archive; who wrote it, and the locks of its processes, are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.name != LOCK_FILE and path.suffix != ".lock":
                tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_without_owner)
    data = gzip.compress(buffer.getvalue(), mtime=0)
    assert len(data) < MAX_ARCHIVE_BYTES, f"{archive.name} would have {len(data)} bytes"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(data)


def unpack(archive: Path, folder: Path) -> Path:
    """Put the content of an archive into a folder; return the folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def describe_stored_classes() -> list[str]:
    """Return a line per class that this version stores: its name, its version and its fields."""
    for module in pkgutil.walk_packages(catchment.__path__, "catchment."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    known = {n: r for n, r in codec._REGISTRY.items() if r.stored_class.__module__.startswith("catchment.")}
    return [f"{n} {r.version}: {', '.join(_contents(r.stored_class))}".rstrip() for n, r in sorted(known.items())]


def find_changes(promised: Sequence[str], stored: Sequence[str]) -> Iterator[str]:
    """Yield every class whose fields are not those that were promised for its version."""
    before, now = (dict(line.split(":", 1) for line in lines) for lines in (promised, stored))
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            yield f"{name} had the fields{before[name]}, and now has{now[name]}"


def write_fixtures(golden: Path, kinds: Sequence[str], overwrite: bool) -> None:
    """Make the archives of some kinds; those that are there must not be, unless they may be overwritten."""
    for kind in kinds:
        archive = golden / "state" / VERSION / f"{kind}{SUFFIX}"
        if archive.exists() and not overwrite:
            raise SystemExit(f"{archive} exists, and later versions rely on it: give --overwrite to replace it")
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / kind
            _run_to_the_middle(kind, folder)
            pack(folder, archive)
        print(f"{archive}: {archive.stat().st_size} bytes")


def write_classes(path: Path, overwrite: bool) -> None:
    """Write what this version stores; a class that changed under an old version number is refused."""
    stored = describe_stored_classes()
    promised = path.read_text().splitlines() if path.exists() else []
    changed = list(find_changes(promised, stored))
    if changed and not overwrite:
        raise SystemExit("\n".join([*changed, "raise the versions and add migrations, or give --overwrite"]))
    path.write_text("".join(f"{line}\n" for line in stored))
    print(f"{path}: {len(stored)} classes")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.state_fixtures", description=__doc__)
    parser.add_argument("folder", type=Path, help="where golden files are: tests/golden")
    parser.add_argument("--only", nargs="+", choices=[*WORLDS, SPARK_KIND, "classes"], metavar="KIND")
    parser.add_argument("--overwrite", action="store_true", help="replace what earlier runs promised")
    given = parser.parse_args(arguments)
    wanted = given.only or [*WORLDS, SPARK_KIND, "classes"]
    write_fixtures(given.folder, [kind for kind in wanted if kind != "classes"], given.overwrite)
    if "classes" in wanted:
        write_classes(given.folder / CLASSES, given.overwrite)


def _run_to_the_middle(kind: str, folder: Path) -> None:
    if kind != SPARK_KIND:
        WORLDS[kind].run_to_the_middle(folder)
        return
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    with tempfile.TemporaryDirectory() as warehouse:
        config = SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"})
        session = make_session("fixtures", config, warehouse=Path(warehouse))
        try:
            stopped_project.run_to_the_middle(session, folder)
        finally:
            session.stop()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(mtime=int(member.mtime), uid=0, gid=0, uname="", gname="", deep=False)


def _contents(stored_class: type) -> list[str]:
    if issubclass(stored_class, Enum):
        return [f"{member.name}={member.value!r}" for member in stored_class]
    assert dataclasses.is_dataclass(stored_class), f"{stored_class.__name__} is neither a dataclass nor an enum"
    return list(codec.stored_fields(stored_class))


if __name__ == "__main__":
    main(sys.argv[1:])
