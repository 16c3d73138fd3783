"""Make this project's topology, statistics and data from the public data sets it is modelled on.

    python examples/wan_workload/make.py DATA_FOLDER [--records]

DATA_FOLDER has wan-regions/region_pairs.csv.zst (Skyplane's measurements, Apache-2.0) and, in wiki-edits,
wikiticker.json.zst (Apache Druid's tutorial sample). Bandwidths are mapped linearly onto 20 to 280 Mbit/s, the range
that Sana reports between EC2 regions; a link's latency is half its round trip (of the way back where only that was
measured; where neither was, a sixth of the median one). With --records each edit is given to a site by its channel and
page, and its fields are renamed as queries/streams.sql has them.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from catchment.sim.wan_worlds import table_views

HERE = Path(__file__).parent
REGIONS = {
    "virginia": "us-east-1", "california": "us-west-1", "canada": "ca-central-1", "london": "eu-west-2",
    "frankfurt": "eu-central-1", "sydney": "ap-southeast-2", "tokyo": "ap-northeast-1", "singapore": "ap-southeast-1",
    "ohio": "us-east-2", "oregon": "us-west-2", "ireland": "eu-west-1", "seoul": "ap-northeast-2",
    "mumbai": "ap-south-1", "saopaulo": "sa-east-1",
}  # fmt: skip
SOURCES = ("ohio", "oregon", "ireland", "seoul", "mumbai", "saopaulo")
LOW_MBIT, HIGH_MBIT = 20.0, 280.0
ROWS_PER_S = 7_000  # Sana plays its trace back at 6,000 to 8,000 records a second
FIELDS = {
    "time": "time", "channel": "channel", "namespace": "namespace", "page": "page", "user": "user",
    "countryIsoCode": "country", "isRobot": "robot", "isAnonymous": "anonymous", "isNew": "new", "isMinor": "minor",
    "added": "added", "deleted": "deleted", "delta": "delta",
}  # fmt: skip


def read_text(path: Path) -> str:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read().decode()


def links(data: Path) -> Iterator[tuple[str, str, float, float]]:
    """(from, to, Mbit/s, latency in ms) of every ordered pair whose end computes."""
    rows = list(csv.DictReader(io.StringIO(read_text(data / "wan-regions" / "region_pairs.csv.zst"))))
    known = {(r["src_region"], r["dst_region"]): r for r in rows}
    names = {site: f"aws:{region}" for site, region in REGIONS.items()}
    pairs = [(a, b) for a in names for b in names if a != b and b not in SOURCES]
    speed = {p: float(known[names[p[0]], names[p[1]]]["gbps_20221128"]) for p in pairs}
    usual = statistics.median(float(r["rtt_ms"]) for r in rows if r["rtt_ms"])
    low, high = min(speed.values()), max(speed.values())
    for a, b in pairs:
        trips = [known.get((names[x], names[y]), {}).get("rtt_ms") for x, y in ((a, b), (b, a))]
        trip = next((float(t) for t in trips if t), usual / 3)
        yield a, b, LOW_MBIT + (speed[a, b] - low) / (high - low) * (HIGH_MBIT - LOW_MBIT), trip / 2


def topology(data: Path) -> str:
    sites = "".join(f"[sites.{s}]\n{'compute = false' + chr(10) if s in SOURCES else ''}" for s in REGIONS)
    lines = [
        f'[[links]]\nfrom = "{a}"\nto = "{b}"\nbandwidth = "{speed:.1f} Mbit/s"\nlatency = "{round(delay * 1000)} us"\n'
        for a, b, speed, delay in links(data)
    ]
    head = "# Made by make.py of this folder: 8 sites that compute, 6 where edits are born.\n"
    return f'{head}[project]\nname = "wan-workload"\ncenter = "virginia"\n\n{sites}\n' + "\n".join(lines)


def edits(data: Path) -> list[dict[str, Any]]:
    rows = (json.loads(line) for line in read_text(data / "wiki-edits" / "wikiticker.json.zst").splitlines())
    return [{ours: row[theirs] for theirs, ours in FIELDS.items()} for row in rows]


def site_of(edit: dict[str, Any]) -> str:
    """Editions are spread over the sites; the large ones by page, so that no site has only one."""
    return SOURCES[zlib.crc32(f"{edit['channel']} {edit['page']}".encode()) % len(SOURCES)]


def measured(rows: list[dict[str, Any]]) -> str:
    shares = {s: sum(site_of(r) == s for r in rows) / len(rows) for s in SOURCES}
    distinct = {c: len({r[c] for r in rows}) for c in FIELDS.values() if c not in ("time", "added", "deleted", "delta")}
    kept = {c: sum(bool(r[c]) for r in rows) / len(rows) for c in ("anonymous", "new", "minor")}
    kept["robot"] = sum(not r["robot"] for r in rows) / len(rows)  # every condition on it here is NOT robot
    width = sum(len(json.dumps(r)) for r in rows) / len(rows)
    return "\n".join([
        "# Made by make.py of this folder from the edits themselves; only the rate is that of Sana's trace.",
        "[streams.edits]", f"rows_per_s = {ROWS_PER_S}", f"row_bytes = {width:.0f}",
        "\n[streams.edits.share]", *(f"{s} = {share:.4f}" for s, share in shares.items()),
        "\n[streams.edits.distinct]", *(f"{c} = {n}" for c, n in distinct.items()), '"categories.category" = 4',
        "\n[streams.edits.selectivity]", *(f"{c} = {share:.4f}" for c, share in kept.items()), "",
    ])  # fmt: skip


def main() -> None:
    data = Path(sys.argv[1])
    rows = edits(data)
    (HERE / "catchment.toml").write_text(topology(data), encoding="utf-8")
    (HERE / "statistics.toml").write_text(measured(rows), encoding="utf-8")
    sinks = tuple(site for site in REGIONS if site not in SOURCES)
    head = "-- Made by make.py of this folder: Table 1 of Sana by the rule in README.md, in the order of submission.\n"
    (HERE / "queries" / "views.sql").write_text(head + "\n".join(table_views(sinks)) + "\n", encoding="utf-8")
    if "--records" in sys.argv:
        for site in SOURCES:
            folder = HERE / "data" / site
            folder.mkdir(parents=True, exist_ok=True)
            mine = "".join(json.dumps(r) + "\n" for r in rows if site_of(r) == site)
            (folder / "edits.json").write_text(mine, encoding="utf-8")


if __name__ == "__main__":
    main()
