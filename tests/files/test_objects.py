"""A folder of a real object store against what was read of it: every object is read once, and one that changed is told.

Catches: an object that is missed, read twice, or read though another took its name; keys in the text of an error.
Cannot catch: what is made of the bytes; `tests/spark/test_objects.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.errors import EngineError
from catchment.files import objects
from catchment.files.objects import ObjectFolder, copy_objects, open_file
from catchment.files.watch import FileChangedError, FilePiece, FolderWatch
from catchment.records.object_store import S3Settings, StoreError
from catchment.site.known_files import FilesRead, KnownFiles, StreamTimes
from tests.worlds.s3_server import BUCKET, MISSING, REGION, S3Server, has_server

TIMES = StreamTimes(0, 0, 0)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    if not has_server():
        pytest.skip(MISSING)
    started = S3Server().start()
    started.make_bucket()
    yield started
    started.remove()


def settings_of(server: S3Server, secret_key: str | None = None) -> S3Settings:
    return S3Settings(server.endpoint, REGION, server.access_key, secret_key or server.secret_key)


class Bucket:
    """A folder of the store with one reader, which remembers what it has read."""

    def __init__(self, server: S3Server, folder: str, pattern: str = "*.json") -> None:
        self.server = server
        self.folder = folder
        self.watch = FolderWatch(
            "s", ObjectFolder.of(f"s3://{BUCKET}/{folder}/{pattern}", settings_of(server)), horizon_us=1
        )
        self.known = KnownFiles()

    def put(self, name: str, text: str) -> None:
        self.server.client().put_object(Bucket=BUCKET, Key=f"{self.folder}/{name}", Body=text.encode())

    def remove(self, name: str) -> None:
        self.server.client().delete_object(Bucket=BUCKET, Key=f"{self.folder}/{name}")

    def pieces(self) -> tuple[FilePiece, ...]:
        look = self.watch.look(self.known, TIMES)
        if look.seen is not None:
            self.known.note_seen(look.seen, TIMES)
        return self.watch.mark(look.pieces)

    def read(self) -> list[str]:
        pieces = self.pieces()
        texts = [text_of(piece) for piece in pieces]
        self.known.note_read(FilesRead("s", tuple(self.watch.settle(pieces))))
        return texts


def text_of(piece: FilePiece) -> str:
    with open_file(piece.path, piece.store) as file:
        return file.read().decode()


@pytest.mark.integration
def test_every_object_is_read_once_by_name_pattern_and_content(server: S3Server) -> None:
    bucket = Bucket(server, "once")
    assert bucket.read() == [], "objects may come later"
    bucket.put("a.json", "one")
    bucket.put("day=1/b.json", "two")
    for name in ("_c.json", ".d.json", "e.csv", "other/f.json", "empty.json"):
        bucket.put(name, "" if name == "empty.json" else "passed over")
    assert sorted(bucket.read()) == ["one", "two"]
    assert bucket.read() == []
    bucket.put("g.json", "one")
    assert bucket.read() == ["one"], "two objects of equal content that are there together are two"
    bucket.remove("day=1/b.json")
    bucket.put("h.json", "two")
    assert bucket.read() == [], "it was renamed"
    assert bucket.known.status()["renamed"] == 1


@pytest.mark.integration
def test_another_object_of_the_same_name_is_an_error_until_it_is_put_right(server: S3Server) -> None:
    """It has the same length and comes within the same second: only its ETag tells."""
    bucket = Bucket(server, "changed")
    bucket.put("a.json", "one")
    assert bucket.read() == ["one"]
    bucket.put("a.json", "two")
    bucket.put("b.json", "new")
    with pytest.raises(FileChangedError, match=f"s3://{BUCKET}/changed/a.json has other content than when it"):
        bucket.read()
    bucket.put("a.json", "one")
    assert bucket.read() == ["new"]


@pytest.mark.integration
def test_an_object_that_is_replaced_while_it_is_read_does_not_count(server: S3Server) -> None:
    bucket = Bucket(server, "replaced")
    bucket.put("a.json", "one")
    pieces = bucket.pieces()
    bucket.put("a.json", "two")
    with pytest.raises(FileChangedError, match="was changed while it was read"):
        bucket.watch.settle(pieces)
    assert bucket.read() == ["two"]
    bucket.put("b.json", "three")
    gone = bucket.pieces()
    bucket.remove("b.json")
    assert bucket.watch.mark(gone) == ()


@pytest.mark.integration
def test_objects_are_copied_for_readers_that_need_files(server: S3Server, tmp_path: Path) -> None:
    bucket = Bucket(server, "copied")
    bucket.put("day=1/a.json", "one")
    bucket.put("b.json", "two")
    places = copy_objects(bucket.pieces(), tmp_path / "copies")
    assert sorted((Path(p).relative_to(tmp_path / "copies").as_posix(), Path(p).read_text()) for p in places) == [
        ("b.json", "two"),
        ("day=1/a.json", "one"),
    ]
    with pytest.raises(OSError, match="No space left on device"):
        copy_objects(bucket.pieces(), tmp_path / "copies", free_bytes=1 << 60)


@pytest.mark.integration
def test_more_objects_than_are_listed_stop_the_stream_by_name(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(server, "many")
    for number in range(4):
        bucket.put(f"day={number % 2}/{number}.json", "x")
    monkeypatch.setattr(objects, "MAX_OBJECTS", 3)
    with pytest.raises(EngineError, match=f"more than 3 objects in s3://{BUCKET}/many"):
        bucket.read()


@pytest.mark.integration
def test_a_store_that_is_away_is_an_outage_and_one_that_refuses_is_an_error(server: S3Server) -> None:
    folder = ObjectFolder.of(f"s3://{BUCKET}/away", settings_of(server))
    with pytest.raises(EngineError, match="there is no such bucket"):
        ObjectFolder.of("s3://nobody/x", settings_of(server)).check()
    server.check_keys()
    try:
        with pytest.raises(EngineError, match="secret_access_key is wrong") as wrong:
            ObjectFolder.of(f"s3://{BUCKET}/away", settings_of(server, "not-this-one")).check()
        assert "not-this-one" not in str(wrong.value)
        folder.check()
    finally:
        server.check_keys(False)
    server.stop()
    try:
        folder.check()  # it is waited for
        with pytest.raises(StoreError, match="the store does not answer") as away:
            folder.names()
        assert not away.value.is_refusal
        assert server.secret_key not in str(away.value)
    finally:
        server.start()
    folder.names()


@pytest.mark.parametrize(
    ("path", "address", "pattern"),
    [
        ("s3://lake/hits/*.json", "s3://lake/hits", "*.json"),
        ("s3://lake/hits/one.json", "s3://lake/hits", "one.json"),
        ("s3://lake/hits", "s3://lake/hits", "*"),
        ("s3://lake/v1.2/", "s3://lake/v1.2", "*"),
        ("s3://lake", "s3://lake", "*"),
        ("s3://lake.v2", "s3://lake.v2", "*"),
    ],
)
def test_what_an_address_names(path: str, address: str, pattern: str) -> None:
    folder = ObjectFolder.of(path, S3Settings())
    assert (folder.address, folder.pattern) == (address, pattern)


def test_a_pattern_in_a_folder_is_refused() -> None:
    with pytest.raises(EngineError, match="s3://lake/\\*/hits has a pattern in it"):
        ObjectFolder.of("s3://lake/*/hits/a.json", S3Settings())
