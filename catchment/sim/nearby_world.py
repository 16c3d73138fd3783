"""Nearby friends: a world of users with friends and positions, real where the data is there, else made up.

Friends are a connected part of SNAP's ego-Facebook graph, positions follow real aircraft trajectories (OpenSky),
both read from the folder named by CATCHMENT_DATA and never copied. Without them a graph of overlapping circles of
friends and straight walks between random places are used instead, and the world says so in `source`.

As in Chandramouli et al. (VLDB'13, section 5.2) the rate of a feed is drawn from a Zipf distribution (z = 2) over 1
to 10 units, and the share that a friend demands of it from the shares of time in which two users were near each
other, for those who ever were.
"""

from __future__ import annotations

import csv
import heapq
import io
import os
import random
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from catchment.errors import SimulationError
from catchment.feeds.cloud.budgets import Budgets
from catchment.feeds.cloud.retention import Retention
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import FeedProject, open_project
from catchment.feeds.runs.workload import Workload, WorldChoice, open_workload

DECLARED = {
    "location": (("user", "BIGINT"), ("lat", "DOUBLE"), ("lon", "DOUBLE")),
    "friends": (
        ("user", "BIGINT"),
        ("friend", "BIGINT"),
        ("share", "DOUBLE"),
        ("friend_share", "DOUBLE"),
        ("radius", "DOUBLE"),
    ),
}
DATA_VARIABLE = "CATCHMENT_DATA"  # names the folder of the data sets
RADIUS_M = 10_000.0  # aircraft fly this in about 45 s
MIN_SHARE = 0.02  # least share of a feed that a friend demands
ZIPF_UNITS = np.arange(1, 11)
GRAPH_FILE = Path("social-graph-facebook", "facebook_combined.txt.zst")
TRACKS_FILE = Path("positions-adsb", "adsb_switzerland.csv.zst")
_TRACKS_USED = 400  # distinct trajectories that users share, each from its own starting point
_MEETING_TIMES = 150  # instants at which it is checked who is near whom

Track = list[tuple[float, float, float]]  # seconds from its start, lat, lon
Friend = tuple[int, int, float, float, float]  # user, friend, share of each one's feed, radius


def data_folder() -> Path | None:
    """Return the folder of real data sets that CATCHMENT_DATA names, if they are there."""
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    return folder if (folder / GRAPH_FILE).exists() and (folder / TRACKS_FILE).exists() else None


@dataclass
class NearbyWorld:
    """Users, friends, trajectories and rates; `rates` (events per second of each device) may change during a run."""

    source: str
    program: FeedProgram
    friends: list[Friend]
    tracks: list[Track]
    starts_s: list[float]
    rates: dict[str, float]
    seed: int
    costs: LinkCosts = field(default_factory=LinkCosts)
    retention: Retention = field(default_factory=Retention)
    budgets: Budgets = field(default_factory=Budgets)

    def read_reference(self) -> ReferenceData:
        return ReferenceData({"friends": self.friends}, tuple(int(d) for d in self.rates))

    @property
    def feed_rates(self) -> dict[str, float]:
        return {f"location@{device}": rate for device, rate in self.rates.items()}

    def position(self, device: int, at_s: float) -> tuple[float, float]:
        """Return where a user is: along the trajectory, and back when it ends."""
        return _along(self.tracks[device % len(self.tracks)], at_s + self.starts_s[device])

    def records(self, from_us: int = 0, devices: Collection[str] | None = None) -> Iterator[DeviceRecord]:
        """Yield positions of (some) users at their rates, merged in order of time; endless."""
        chosen = [d for d in self.rates if devices is None or d in devices]
        heap = [(from_us + 1 + int(self._chance("phase", d) * 1e6 / self.rates[d]), d) for d in chosen]
        heapq.heapify(heap)
        while heap:
            at_us, device = heap[0]
            lat, lon = self.position(int(device), at_us / 1e6)
            yield DeviceRecord(at_us, device, "location", (int(device), round(lat, 5), round(lon, 5)))
            heapq.heapreplace(heap, (at_us + round(1e6 / self.rates[device]), device))

    def change_rates(self) -> None:
        """Change the rates as the paper does: half of the users report 5 times as often, the others 2.33 times less."""
        for device in self.rates:
            self.rates[device] *= 5.0 if self._chance("change", device) < 0.5 else 1 / 2.33

    def _chance(self, what: str, device: str) -> float:
        """Return a number in [0, 1) that depends on the seed and the device alone, not on who else is asked for."""
        return random.Random(f"{self.seed} {what} {device}").random()


def open_world(folder: Path, choice: WorldChoice | None = None) -> Workload:
    """Open the workload of a project folder, recorded or made up, with what was chosen in place of its settings."""
    return open_workload((choice or WorldChoice()).apply(open_project(folder)), make_nearby_world)


def make_nearby_world(project: FeedProject) -> NearbyWorld:
    """Make the world that a project asks for in [world]."""
    world = project.world
    users = world["users"]
    seed = world["seed"]
    rate_unit = world["rate_unit"]
    made = make_world(project.program, users, seed=seed, rate_unit=rate_unit, costs=project.costs)
    return replace(made, retention=project.retention, budgets=project.budgets)


def make_world(
    program: FeedProgram,
    users: int,
    *,
    seed: int = 7,
    rate_unit: float = 0.1,
    real: bool | None = None,
    costs: LinkCosts | None = None,
) -> NearbyWorld:
    """Make a world of this many users; `real` insists on the real data (True) or on made-up data (False)."""
    if users < 2 or rate_unit <= 0:
        raise SimulationError(f"a world needs 2 users or more and a positive rate, not {users} and {rate_unit}")
    _check_program(program)
    folder = None if real is False else data_folder()
    if real and folder is None:
        raise SimulationError(
            f"a real world needs {GRAPH_FILE} and {TRACKS_FILE}",
            where=os.environ.get(DATA_VARIABLE),
            hint=f"set {DATA_VARIABLE} to the folder of the data sets",
        )
    rng = np.random.default_rng(seed)
    pairs = _real_friends(folder, users) if folder else _made_up_friends(rng, users)
    tracks = _real_tracks(folder, rng) if folder else _made_up_tracks(rng)
    starts_s = [float(s) for s in rng.uniform(0, 3600, users)]
    friends = _draw_shares(pairs, _meeting_shares(tracks, starts_s, rng), rng)
    rates = _draw_rates(users, rate_unit, rng)
    source = "SNAP ego-Facebook, OpenSky trajectories" if folder else "made up: circles of friends, straight walks"
    return NearbyWorld(source, program, friends, tracks, starts_s, rates, seed, costs or LinkCosts())


def _draw_shares(pairs: list[tuple[int, int]], shares: NDArray[np.float64], rng: np.random.Generator) -> list[Friend]:
    """Draw how much each friend demands of the other's feed, for both directions of every friendship."""
    draws = rng.choice(shares, size=(len(pairs), 2)).clip(MIN_SHARE, 1.0).round(4)
    friends: list[Friend] = []
    for (user, friend), (share, friend_share) in zip(pairs, draws.tolist(), strict=True):
        friends.append((user, friend, share, friend_share, RADIUS_M))
        friends.append((friend, user, friend_share, share, RADIUS_M))
    return friends


def _draw_rates(users: int, rate_unit: float, rng: np.random.Generator) -> dict[str, float]:
    zipf = ZIPF_UNITS**-2.0
    units = rng.choice(ZIPF_UNITS, users, p=zipf / zipf.sum())
    return {str(device): float(unit) * rate_unit for device, unit in enumerate(units)}


def _check_program(program: FeedProgram) -> None:
    """Refuse a program that does not read the positions and friends that this world makes."""
    declared = {d.name: d.columns for d in (*program.streams.values(), *program.tables.values())}
    if declared != DECLARED:
        wanted = "; ".join(f"{n} ({', '.join(f'{c} {k}' for c, k in columns)})" for n, columns in DECLARED.items())
        raise SimulationError(f"the program declares {', '.join(declared)}", hint=f"this world makes {wanted}")


# ---- friends


def _text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8")


def _real_friends(folder: Path, devices: int) -> list[tuple[int, int]]:
    """Return the friendships among the users that are first reached from user 0."""
    with _text(folder / GRAPH_FILE) as lines:
        edges = [(int(u), int(v)) for u, v in (line.split() for line in lines if line.strip())]
    near: dict[int, set[int]] = {}
    for u, v in edges:
        near.setdefault(u, set()).add(v)
        near.setdefault(v, set()).add(u)
    if devices > len(near):
        raise SimulationError(f"the graph has {len(near)} users, {devices} were asked for")
    reached = {0: 0}
    for user in (queue := [0]):
        for friend in sorted(near[user]):
            if friend not in reached and len(reached) < devices:
                reached[friend] = len(reached)
                queue.append(friend)
    return sorted((reached[u], reached[v]) for u, v in edges if u in reached and v in reached)


def _made_up_friends(rng: np.random.Generator, devices: int) -> list[tuple[int, int]]:
    """Return circles of about 12 users who mostly know each other, and a few friends elsewhere."""
    pairs = {(u, u + 1) for u in range(devices - 1)}
    for u in range(devices):
        for v in range(u + 1, min(devices, u + 12)):
            if rng.random() < 0.6:
                pairs.add((u, v))
        if rng.random() < 0.3:
            far = int(rng.integers(devices))
            pairs |= {(min(u, far), max(u, far))} if far != u else set()
    return sorted(pairs)


# ---- trajectories


def _real_tracks(folder: Path, rng: np.random.Generator) -> list[Track]:
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with _text(folder / TRACKS_FILE) as lines:
        for row in csv.DictReader(lines):
            flight = points.setdefault((row["icao24"], row["callsign"]), [])
            flight.append((10.0 * len(flight), float(row["latitude"]), float(row["longitude"])))
    flights = [p for _, p in sorted(points.items())]
    return [flights[i] for i in rng.permutation(len(flights))[:_TRACKS_USED]]


def _made_up_tracks(rng: np.random.Generator) -> list[Track]:
    """Return straight lines between random places of a region, at about the speed of aircraft."""
    tracks = []
    for _ in range(_TRACKS_USED // 4):
        places = rng.uniform((46.0, 6.5), (47.5, 10.0), size=(4, 2))
        seconds = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T) * 111_000 / 200)))
        tracks.append([(float(s), float(y), float(x)) for s, (y, x) in zip(seconds, places, strict=True)])
    return tracks


def _along(track: Track, at_s: float) -> tuple[float, float]:
    length = track[-1][0]
    phase = at_s % (2 * length)
    along = phase if phase <= length else 2 * length - phase
    right = min(max(bisect_right(track, along, key=itemgetter(0)), 1), len(track) - 1)
    (t0, *here), (t1, *there) = track[right - 1], track[right]
    part = (along - t0) / (t1 - t0)
    return here[0] + part * (there[0] - here[0]), here[1] + part * (there[1] - here[1])


def _meeting_shares(tracks: list[Track], starts_s: list[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return, for pairs of users who ever were near each other, the share of the time in which they were."""
    users = rng.permutation(len(starts_s))[:250]
    times = np.linspace(0, 3600, _MEETING_TIMES)
    near = np.zeros((len(users), len(users)))
    for at_s in times:
        where = np.array([_along(tracks[u % len(tracks)], at_s + starts_s[u]) for u in users])
        north = (where[:, None, 0] - where[None, :, 0]) * 111_200
        east = (where[:, None, 1] - where[None, :, 1]) * 111_200 * np.cos(np.radians(where[:, None, 0]))
        near += np.hypot(north, east) < RADIUS_M
    shares = near[np.triu_indices(len(users), 1)] / len(times)
    met = shares[shares > 0]
    return np.sort(met) if met.size else np.array([MIN_SHARE])
