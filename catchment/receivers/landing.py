"""A folder of records that were sent to a site: they land in whole files, which the site reads as a stream of files.

A file is written under a hidden name, synced, and renamed. Where senders name their deliveries (`key`), the names are
in a file of their own, in `.keys/`, which is written before the renaming and decides: a hidden file that has one is
complete, and a start shows it; one that has none was never confirmed, and is removed. So a delivery and its name are
there together or not at all, and what is sent again after a crash is recognised.

Bounds: beyond `max_bytes` of files that the site has not read yet, nothing more is taken. The newest `max_keys` names
are remembered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from catchment.storage.files import (
    make_folder,
    read_record,
    remove_file,
    remove_remnants,
    rename_file,
    sync_folder,
    write_durably,
    write_record,
)

KEYS_FOLDER = ".keys"  # within the folder: files with the names of deliveries, each named as the file of its records


@dataclass(frozen=True, slots=True)
class ReceivedLines:
    """Records that arrived together: complete lines, each with its end.

    `key` is what the sender calls the delivery, and `digest` tells contents apart. With `may_repeat`, a delivery of a
    known key and an equal digest is the known one, sent again.
    """

    lines: bytes
    records: int
    key: str | None = None
    digest: str = ""
    may_repeat: bool = True


@dataclass
class LandingFolder:
    """Where the records of one stream land; `suffix` is that of its files. One process writes, from one thread."""

    folder: Path
    suffix: str
    max_bytes: int
    max_keys: int
    _life: str = field(default="", init=False)  # begins the names of the files of this process
    _files: int = field(default=0, init=False)
    _keys: dict[str, str] = field(default_factory=dict, init=False)  # the digests of known deliveries, oldest first
    _keys_in: dict[Path, int] = field(default_factory=dict, init=False)  # keys in each file of them, oldest first
    _kept_keys: int = field(default=0, init=False)  # in all these files

    def open(self) -> None:
        """Make the folder, finish what a killed process has begun, and read which deliveries are known."""
        make_folder(self._keys_folder)
        remove_remnants(self.folder)
        remove_remnants(self._keys_folder)
        for path in sorted(self._keys_folder.iterdir()):
            self._remember(path, (read_record(path) or {}).get("keys", {}))
        for hidden in sorted(self.folder.glob(f".*.{self.suffix}")):
            name = hidden.name.removeprefix(".").removesuffix(f".{self.suffix}")
            if (self._keys_folder / name).exists():
                rename_file(hidden, self.folder / f"{name}.{self.suffix}")
            else:
                remove_file(hidden)
        sync_folder(self.folder)
        self._life = f"{time.time_ns():020d}"

    @property
    def _keys_folder(self) -> Path:
        return self.folder / KEYS_FOLDER

    def waiting_bytes(self) -> int:
        """Return the size of the files that the site has not removed yet."""
        sizes = 0
        for path in self.folder.glob(f"*.{self.suffix}"):
            try:
                sizes += path.stat().st_size
            except FileNotFoundError:
                continue  # the site has read and removed it
        return sizes

    def has_room(self) -> bool:
        """Return whether more may land."""
        return self.waiting_bytes() < self.max_bytes

    def digest_of(self, key: str) -> str | None:
        """Return the digest of a known delivery."""
        return self._keys.get(key)

    def land(self, deliveries: Sequence[ReceivedLines]) -> None:
        """Put deliveries into one file; when this returns, they survive a power cut."""
        self._files += 1
        name = f"{self._life}-{self._files:08d}"
        hidden = self.folder / f".{name}.{self.suffix}"
        write_durably(hidden, b"".join(delivery.lines for delivery in deliveries))
        keys = {delivery.key: delivery.digest for delivery in deliveries if delivery.key is not None}
        if keys:
            path = self._keys_folder / name
            write_record(path, {"keys": keys})
            self._remember(path, keys)
        rename_file(hidden, self.folder / f"{name}.{self.suffix}")
        sync_folder(self.folder)

    def _remember(self, path: Path, keys: Mapping[str, str]) -> None:
        for key, digest in keys.items():
            self._keys.pop(key, None)  # what is known anew is the newest
            self._keys[key] = digest
        self._keys_in[path] = len(keys)
        self._kept_keys += len(keys)
        while len(self._keys) > self.max_keys:
            del self._keys[next(iter(self._keys))]
        while self._kept_keys - self._keys_in[oldest := next(iter(self._keys_in))] >= self.max_keys:
            self._kept_keys -= self._keys_in.pop(oldest)
            remove_file(oldest)
