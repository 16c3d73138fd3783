"""Files that are found again by their content, whatever they are called now.

Two contents are the same if they have the same length and the same digest of that many first bytes. Which digest that
is follows from what would be lost by a mistake (`catchment.files.digest`); how files are matched does not: each one
that is there stands for one that is wanted, and where files may have grown, for the longest that fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple


class WantedFile(NamedTuple):
    """A file that was read: its name then, how much of it was read, and the digest of that."""

    name: str
    length: int
    digest: bytes | str


def find_same_content(
    wanted: Iterable[WantedFile],
    sizes: Mapping[str, int],
    digest_of: Callable[[str, int], bytes | str | None],
    *,
    may_be_longer: bool = False,
    is_likelier: Callable[[str, str], bool] = lambda old, new: False,
) -> Iterator[tuple[str, str]]:
    """Yield (name then, name now) of wanted files whose content some file has, given the sizes of those that are there.

    Where several wanted files have one content, the one that `is_likelier` is taken first.
    """
    by_content: dict[int, dict[bytes | str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in wanted:
        by_content[file.length][file.digest].append(file.name)
    for name, size in sizes.items():
        lengths = [length for length in by_content if length == size or (may_be_longer and length < size)]
        for length in sorted(lengths, reverse=True):
            digest = digest_of(name, length)
            fitting = None if digest is None else by_content[length].get(digest)
            if fitting:
                likeliest = next((old for old in reversed(fitting) if is_likelier(old, name)), fitting[-1])
                fitting.remove(likeliest)
                yield likeliest, name
                break
