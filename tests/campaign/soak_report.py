"""The verdict, the table and the plot of a soak: what its samples say about growth."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALLOWED_SHARE = 0.10  # by which the last quarter may exceed the second, beside what its measure allows
ALLOWED = {  # by the end of a series' name: what it may vary by in any case
    "python MB": 16.0,
    "JVM MB": 64.0,  # a heap of 600 MB is taken from the system bit by bit
    "JVM live heap MB": 16.0,
    "open files": 4.0,
    "JVM open files": 8.0,
    "threads": 4.0,
    "processor s per minute": 0.5,
    "batch s": 0.1,
    "lag of answers s": 1.0,
}
ALLOWED_FILES = 64.0  # a result table is compacted above so many
ALLOWED_MB = 1.0
NOT_JUDGED = ("machine / load",)  # of everything that runs there: batch times follow it
GROWS_BY_DESIGN = tuple(  # nothing removes answers, and files that were replaced stay for an hour at least
    f"center / {what} in {part}" for what in ("files", "MB") for part in ("results", "windows")
)


@dataclass(frozen=True)
class Sample:
    """What was there at one minute, by series: `role / what`."""

    minute: int
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"minute": self.minute, "values": dict(self.values)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Sample:
        return cls(told["minute"], told["values"])


@dataclass(frozen=True)
class Trend:
    """The medians of one series in the second and in the last quarter of the time."""

    name: str
    second: float
    last: float

    @property
    def is_flat(self) -> bool:
        if self.name in (*GROWS_BY_DESIGN, *NOT_JUDGED):
            return True
        return self.last <= self.second * (1 + ALLOWED_SHARE) + allowance(self.name)


def allowance(name: str) -> float:
    """Return what a series may vary by, whatever its value."""
    what = name.split(" / ")[1]
    if what.startswith("files "):
        return ALLOWED_FILES
    return ALLOWED_MB if what.startswith("MB in ") else ALLOWED[what]


def find_trends(samples: Sequence[Sample]) -> list[Trend]:
    """Return how each series went on, for those that were there in both quarters."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    names = dict.fromkeys(name for sample in samples for name in sample.values)
    found = []
    for name in names:
        before = [s.values[name] for s in second if name in s.values]
        after = [s.values[name] for s in last if name in s.values]
        if after:
            found.append(Trend(name, statistics.median(before) if before else 0.0, statistics.median(after)))
    return found


def find_growth(samples: Sequence[Sample]) -> list[Trend]:
    """Return the series that grew."""
    return [trend for trend in find_trends(samples) if not trend.is_flat]


def render(samples: Sequence[Sample]) -> str:
    """Return the table as Markdown, one line per measure and one column per role, and the verdict."""
    trends = {trend.name: trend for trend in find_trends(samples)}
    roles = list(dict.fromkeys(name.split(" / ")[0] for name in trends))
    measures = list(dict.fromkeys(name.split(" / ")[1] for name in trends))
    lines = [f"| second quarter -> last quarter | {' | '.join(roles)} |", "|---" * (len(roles) + 1) + "|"]
    for measure in measures:
        cells = [_cell(trends.get(f"{role} / {measure}")) for role in roles]
        lines.append(f"| {measure} | {' | '.join(cells)} |")
    grown = [f"{t.name}: {t.second:g} -> {t.last:g}" for t in trends.values() if not t.is_flat]
    verdict = f"What grew: {'; '.join(grown)}." if grown else "Nothing grew."
    return "\n".join([*lines, "", f"{len(samples)} minutes. {verdict}"])


def _cell(trend: Trend | None) -> str:
    if trend is None:
        return ""
    mark = "" if trend.is_flat else " **grew**"
    return f"{_short(trend.second)} -> {_short(trend.last)}{mark}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw memory, files and batch times against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "resident memory, MB": ("python MB", "JVM MB"),
        "files in the state folder": ("files in ",),
        "processor time per minute, s": ("processor s per minute",),
        "batch, s": ("batch s", "lag of answers s"),
    }
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(17, 3.6))
    for axes, (title, ends) in zip(all_axes, panels.items(), strict=True):
        for name, points in _curves(samples, ends).items():
            axes.plot([minute for minute, _ in points], [value for _, value in points], label=name, linewidth=1)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _curves(samples: Sequence[Sample], ends: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """Return the points of the series of some measures; those that are counted per part are added up per role."""
    curves: dict[str, dict[int, float]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            role, what = name.split(" / ")
            end = next((e for e in ends if what.startswith(e)), None)
            if end is not None:
                curve = curves.setdefault(role if end.endswith(" ") else f"{role} {what}", {})
                curve[sample.minute] = curve.get(sample.minute, 0.0) + value
    return {name: sorted(curve.items()) for name, curve in curves.items()}
