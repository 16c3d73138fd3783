"""A folder of records that were sent to a site: they land in whole files, which the site reads as a stream of files.

A file is written under a hidden name, synced, and renamed. Where senders name their deliveries (`key`), the names are
in a file beside it, which is written before the renaming and decides: a hidden file that has one is complete, and a
start shows it; one that has none was never confirmed, and is removed. So a delivery and its name are there together or
not at all, and what is sent again after a crash is recognised.

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

KEYS = ".keys"  # suffix of the file with the names of the deliveries in a file of records


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
    _keys_in: dict[Path, int] = field(default_factory=dict, init=False)  # files of keys, oldest first

    def open(self) -> None:
        """Make the folder, finish what a killed process has begun, and read which deliveries are known."""
        make_folder(self.folder)
        remove_remnants(self.folder)
        for path in sorted(self.folder.glob(f".*{KEYS}")):
            kept = (read_record(path) or {}).get("keys", {})
            self._remember(path, kept)
        for hidden in sorted(self.folder.glob(f".*.{self.suffix}")):
            name = hidden.name.removeprefix(".").removesuffix(f".{self.suffix}")
            if (self.folder / f".{name}{KEYS}").exists():
                rename_file(hidden, self.folder / f"{name}.{self.suffix}")
            else:
                remove_file(hidden)
        sync_folder(self.folder)
        self._life = f"{time.time_ns():020d}"

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
            path = self.folder / f".{name}{KEYS}"
            write_record(path, {"keys": keys})
            self._remember(path, keys)
        rename_file(hidden, self.folder / f"{name}.{self.suffix}")
        sync_folder(self.folder)

    def _remember(self, path: Path, keys: Mapping[str, str]) -> None:
        for key, digest in keys.items():
            self._keys.pop(key, None)  # what is known anew is the newest
            self._keys[key] = digest
        self._keys_in[path] = len(keys)
        while len(self._keys) > self.max_keys:
            del self._keys[next(iter(self._keys))]
        kept = sum(self._keys_in.values())
        for oldest, count in list(self._keys_in.items()):
            if kept - count < self.max_keys:
                break
            kept -= count
            del self._keys_in[oldest]
            remove_file(oldest)
