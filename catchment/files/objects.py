"""A watched folder of an object store: its objects as files, known by name, size and the store's own mark of content.

An object never changes; another one may take its name. The store marks content with an ETag, which is the digest of an
object here: the store is asked for it before an object is read and after that, and where a listing shows another size
or time. The bytes themselves are read by whoever evaluates them.

Listings say the time of an object in seconds, by the clock of the store, so one that is younger than `settled_ns` is
asked for again. At most `MAX_OBJECTS` are listed: above that the stream stops with an error, and nothing is lost.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import pyarrow.fs as pafs

from catchment.errors import EngineError
from catchment.files.folder import SeenFile, compile_pattern, is_passed_over
from catchment.files.watch import FilePiece
from catchment.records.object_store import S3_PREFIX, S3Settings, StoreError, path_in_store
from catchment.site.known_files import FileStat

MAX_OBJECTS = 100_000  # in the folder of one stream
CALLS_AT_ONCE = 16  # to the store, about single objects
READ_BYTES = 8 << 20  # asked for at a time, of text
MAX_HEADER_BYTES = 1 << 20
_SECOND_NS = 1_000_000_000
_PATTERN = re.compile(r"[*?\[{]")


@dataclass
class ObjectFolder:
    """The objects below an address whose names match a pattern; folders named `column=value` are entered."""

    address: str  # such as s3://lake/hits, without a slash at its end
    pattern: str
    store: S3Settings
    settled_ns: ClassVar[int] = 10 * _SECOND_NS
    _listed: dict[str, SeenFile] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, path: str, store: S3Settings) -> ObjectFolder:
        """Return what a declared address names: a folder, an object, or the objects that match a pattern."""
        folder, slash, last = path_in_store(path).rpartition("/")
        if slash and (_PATTERN.search(last) or Path(last).suffix):
            return cls._checked(S3_PREFIX + folder, last, store)
        return cls._checked(path.rstrip("/"), "*", store)

    @classmethod
    def _checked(cls, folder: str, pattern: str, store: S3Settings) -> ObjectFolder:
        if _PATTERN.search(folder):
            raise EngineError(
                f"the folder {folder} has a pattern in it, and objects are found by the last part of their name",
                hint="name one folder; those named column=value below it are entered",
            )
        return cls(folder, pattern, store)

    def check(self) -> None:
        """Refuse a bucket that is not there, and keys that may not list it; a store that is away is waited for."""
        try:
            self.names()
        except StoreError as error:
            if error.is_refusal:
                raise EngineError(
                    str(error), hint="check the address, and the keys of store_config or AWS_*"
                ) from error

    # --- what is there ------------------------------------------------------------------------------------------

    def names(self) -> dict[str, None]:
        """List the objects that are there, and return their names."""
        with self.store.telling(self.address):
            self._listed = dict(self._list(path_in_store(self.address), ""))
        return dict.fromkeys(self._listed)

    def see(self, names: Iterable[str]) -> dict[str, SeenFile]:
        """Return those of the named objects that the last listing has."""
        return {name: self._listed[name] for name in names if name in self._listed}

    def place(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.address}/{name}"

    def marks(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those of the named objects that are there, with their ETags."""
        return {name: etag for name, (_, etag) in self._ask(names).items()}

    def digests(self, lengths: Mapping[str, int]) -> dict[str, bytes]:
        """Return the ETags of objects that have so many bytes."""
        return {name: etag for name, (_, etag) in self.examine(lengths).items()}

    def examine(self, lengths: Mapping[str, int]) -> dict[str, tuple[FileStat, bytes]]:
        """Return what the store says of objects that have so many bytes, and their ETags."""
        asked = self._ask(lengths)
        return {name: found for name, found in asked.items() if found[0].size_bytes == lengths[name]}

    def read_first_line(self, name: str) -> str:
        """Return the first line of an object of text."""
        suffix = Path(name).suffix.lower()
        if suffix in (".zst", ".lz4", ".snappy", ".deflate", ".xz"):
            raise EngineError(f"the header of {self.place(name)} cannot be read: it is compressed as {suffix}")
        with open_file(self.place(name), self.store) as file:
            plain: BinaryIO = file
            if suffix == ".gz":
                plain = cast(BinaryIO, gzip.GzipFile(fileobj=file))
            elif suffix == ".bz2":
                plain = cast(BinaryIO, bz2.BZ2File(file))
            return plain.readline(MAX_HEADER_BYTES).decode("utf-8-sig", errors="replace")

    def _list(self, folder: str, prefix: str, taken: int = 0) -> Iterator[tuple[str, SeenFile]]:
        selector = pafs.FileSelector(folder, allow_not_found=bool(prefix))
        try:
            found = self.store.filesystem().get_file_info(selector)
        except FileNotFoundError:
            return  # objects may come later
        for info in found:
            if is_passed_over(info.base_name):
                continue
            if info.type == pafs.FileType.Directory:
                if "=" in info.base_name:
                    for each in self._list(info.path, f"{prefix}{info.base_name}/", taken):
                        taken += 1
                        yield each
            elif self._matcher.fullmatch(info.base_name):
                taken += 1
                self._refuse_too_many(taken)
                changed_ns = info.mtime_ns // _SECOND_NS * _SECOND_NS
                name = prefix + info.base_name
                yield name, SeenFile(name, FileStat(info.size, 0, changed_ns), changed_ns)

    def _refuse_too_many(self, count: int) -> None:
        if count > MAX_OBJECTS:
            raise EngineError(
                f"there are more than {MAX_OBJECTS} objects in {self.address}, which are listed again and again",
                hint="let a lifecycle rule remove what was read (history has it), or name folders of their own",
            )

    def _ask(self, names: Iterable[str]) -> dict[str, tuple[FileStat, bytes]]:
        """Return what the store says of objects, and their ETags, for those that are there."""
        wanted = list(names)
        if len(wanted) <= 1:
            answers = [self._ask_one(name) for name in wanted]
        else:
            with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(wanted))) as pool:
                answers = list(pool.map(self._ask_one, wanted))
        return {name: answer for name, answer in zip(wanted, answers, strict=True) if answer is not None}

    def _ask_one(self, name: str) -> tuple[FileStat, bytes] | None:
        address = self.place(name)
        try:
            with self.store.telling(address), self.store.filesystem().open_input_file(path_in_store(address)) as file:
                said = file.metadata()
                changed = datetime.fromisoformat(said["Last-Modified"].decode())
                stat = FileStat(file.size(), 0, int(changed.timestamp()) * _SECOND_NS)
                return stat, bytes(said["ETag"])
        except FileNotFoundError:
            return None

    @cached_property
    def _matcher(self) -> re.Pattern[str]:
        return compile_pattern(self.pattern)


def open_file(path: str, store: S3Settings | None) -> BinaryIO:
    """Open a file on disk, or an object of a store, to be read."""
    if store is None:
        return Path(path).open("rb")
    with store.telling(path):
        return cast(BinaryIO, io.BufferedReader(store.filesystem().open_input_file(path_in_store(path)), READ_BYTES))


def copy_objects(pieces: Sequence[FilePiece], folder: Path, free_bytes: int = 0) -> list[str]:
    """Copy the objects of pieces into an empty folder, under their names; return where each is.

    At least `free_bytes` of the disk stay free.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = sum(piece.end for piece in pieces)
    if shutil.disk_usage(folder).free - size < free_bytes:
        raise OSError(errno.ENOSPC, f"No space left on device for copies of {size} bytes of objects", str(folder))

    def copy(piece: FilePiece) -> str:
        target = folder / piece.name
        target.parent.mkdir(parents=True, exist_ok=True)
        assert piece.store is not None
        with piece.store.telling(piece.path), open_file(piece.path, piece.store) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, READ_BYTES)
        return str(target)

    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        return list(pool.map(copy, pieces))
