"""The files that a batch of history refers to: described when they are read, and found again as they were.

A file is told by all its bytes, not by samples of them: nothing else has its records. One that was renamed within its
folder is found by its content. What is gone, or has other content, is named (`FilesLostError`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from catchment.files.digest import content_of
from catchment.files.folder import WatchedFolder
from catchment.files.same_content import WantedFile, find_same_content
from catchment.files.watch import MAX_NAMED, NOT_SETTLED, FileChangedError, FilePiece, settled
from catchment.site.known_files import FileStat
from catchment.storage.referenced_batches import ReferencedFile

MAX_KNOWN = 10_000  # files whose digest is remembered until the file system says that they were changed


class FilesLostError(OSError):
    """Files that history refers to are gone, or are no longer what was read."""


@dataclass
class ReferencedFiles:
    """The files of one folder as history refers to them."""

    watched: WatchedFolder
    _known: dict[str, tuple[FileStat, str]] = field(default_factory=dict, init=False)

    def refer(self, pieces: Sequence[FilePiece]) -> tuple[ReferencedFile, ...]:
        """Return what tells the files of a batch that was just read."""
        return tuple(self._refer(piece) for piece in pieces)

    def _refer(self, piece: FilePiece) -> ReferencedFile:
        digest = self._digest_of(piece.name, piece.end)
        if digest is None:
            raise FileChangedError(
                f"the file {piece.path} was changed or removed while it was read: nothing of this batch counts",
                hint="history refers to it: write files elsewhere, rename them into the folder, and let them be",
            )
        return ReferencedFile(piece.name, piece.end, digest)

    def find(self, files: Sequence[ReferencedFile]) -> list[FilePiece]:
        """Return where files are that were read; raise `FilesLostError` if one of them is not as it was."""
        names = {file.name: file.name for file in files if self._digest_of(file.name, file.size_bytes) == file.digest}
        absent = [file for file in files if file.name not in names]
        if absent:
            names |= self._find_renamed(absent, names)
        lost = [file for file in absent if file.name not in names]
        if lost:
            raise FilesLostError(self._describe(lost))
        return [self._piece(names[file.name], file.size_bytes) for file in files]

    def _piece(self, name: str, size_bytes: int) -> FilePiece:
        return FilePiece(name, self.watched.place(name), 0, size_bytes, FileStat(size_bytes, 0, NOT_SETTLED))

    def _find_renamed(self, absent: Sequence[ReferencedFile], taken: Container[str]) -> dict[str, str]:
        """Return under which other name each of some files is, of those whose content is there; each is one file."""
        try:
            seen = self.watched.see(name for name in self.watched.names() if name not in taken)
        except FileNotFoundError:  # the whole folder is gone
            return {}
        wanted = [WantedFile(file.name, file.size_bytes, file.digest) for file in absent]
        sizes = {name: file.stat.size_bytes for name, file in seen.items()}
        return dict(find_same_content(wanted, sizes, self._digest_of))

    def _digest_of(self, name: str, size_bytes: int) -> str | None:
        """Return the digest of a file; None if it is gone or has another size.

        It is computed again only if the file system says that the file was changed, or could not say so.
        """
        stat = self.watched.stat(name)
        if stat is None:
            return None
        known = self._known.get(name)
        if known is not None and known[0] == stat:
            return known[1] if stat.size_bytes == size_bytes else None
        content = content_of(self.watched.path(name), size_bytes)
        if content is None:
            return None
        if settled(stat, self.watched.settled_ns) == stat:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[name] = stat, content.hex()
        return content.hex()

    def _describe(self, lost: Sequence[ReferencedFile]) -> str:
        named = [self._describe_one(file) for file in lost[:MAX_NAMED]]
        more = f", and {len(lost) - MAX_NAMED} others too" if len(lost) > MAX_NAMED else ""
        return "; ".join(named) + more

    def _describe_one(self, file: ReferencedFile) -> str:
        path = self.watched.path(file.name)
        if self.watched.stat(file.name) is None:
            return f"the file {path} is gone"
        return f"the file {path} has other content than when it ({file.size_bytes} bytes) was read"
