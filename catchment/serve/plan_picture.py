"""An explanation as a picture: sites on the left, the center in the middle, views on the right, links between them.

Each fragment has a colour of its own, at the sites that compute it and in the views that are answered from it, so that
what is shared is seen. The layout is computed here: one column per number of links to the center.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from catchment.serve.explanation_text import explanation_text, rate, seconds

WIDTH = 210  # of a box
LINE = 18  # height of a line of text
GAP = 26  # between boxes
COLUMN_GAP = 150  # room for the label of a link
MARGIN = 20
COLOURS = ("#2f6fbb", "#c2571a", "#2a8a57", "#8a3f9c", "#a8862a", "#b03a5b", "#3c8f9c", "#6b6b6b")
FULL = 0.8  # a link with more of its capacity in use is marked


@dataclass(frozen=True)
class _Box:
    """One box: its place, its title and its lines, each with the fragment whose colour it has, if it has one."""

    x: float
    y: float
    title: str
    lines: tuple[tuple[str, str | None], ...]

    @property
    def height(self) -> float:
        return LINE * (len(self.lines) + 1) + 14

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def plan_svg(answer: Mapping[str, Any], center: str) -> str:
    """Return the explanation as an SVG document."""
    colours = _colours(answer)
    boxes = _place(answer, center)
    views = {v["view"]: boxes[f"view {v['view']}"] for v in answer["views"]}
    shapes = [*_link_shapes(answer, boxes), *_view_edges(answer, boxes[center], views, colours)]
    shapes += [shape for box in boxes.values() for shape in _box_shapes(box, colours)]
    width = max(box.x for box in boxes.values()) + WIDTH + MARGIN
    height = max(box.y + box.height for box in boxes.values()) + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12" role="img">'
    )
    title = "<title>what runs at each site, what crosses each link, and which views it answers</title>"
    paper = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, title, paper, *shapes, "</svg>"]) + "\n"


def plan_html(answer: Mapping[str, Any], center: str, name: str) -> str:
    """Return a page with the picture and the text of an explanation."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}: plan</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>body{font-family:system-ui,sans-serif;margin:2rem}div{overflow-x:auto}"
        "pre{white-space:pre-wrap}</style></head>\n"
        f"<body><h1>{escape(name)}</h1>\n<div>{plan_svg(answer, center)}</div>\n"
        f"<pre>{escape(explanation_text(answer))}</pre></body></html>\n"
    )


def _colours(answer: Mapping[str, Any]) -> dict[str, str]:
    names = dict.fromkeys(f["fragment"] for site in answer["sites"] for f in site["fragments"])
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def _place(answer: Mapping[str, Any], center: str) -> dict[str, _Box]:
    """Return the boxes of sites, of the center and of views, by name."""
    depths = _depths(answer["links"], center)
    deepest = max(depths.values(), default=0)
    fragments = {site["site"]: site["fragments"] for site in answer["sites"]}
    names = dict.fromkeys([*fragments, *depths])
    boxes: dict[str, _Box] = {}
    for depth in range(deepest, -1, -1):
        x = MARGIN + (deepest - depth) * (WIDTH + COLUMN_GAP)
        column = [(n, n, _site_lines(fragments.get(n, ()))) for n in names if depths.get(n, 0) == depth]
        boxes |= _stack(x, column)
    x = MARGIN + (deepest + 1) * (WIDTH + COLUMN_GAP)
    boxes |= _stack(x, [(f"view {v['view']}", v["view"], _view_lines(v)) for v in answer["views"]])
    tallest = max(box.y + box.height for box in boxes.values())
    return {name: _centred(box, boxes, tallest) for name, box in boxes.items()}


def _stack(x: float, column: Sequence[tuple[str, str, tuple[tuple[str, str | None], ...]]]) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    y = float(MARGIN)
    for name, title, lines in column:
        boxes[name] = _Box(x, y, title, lines)
        y += boxes[name].height + GAP
    return boxes


def _centred(box: _Box, boxes: Mapping[str, _Box], tallest: float) -> _Box:
    bottom = max(other.y + other.height for other in boxes.values() if other.x == box.x)
    return _Box(box.x, box.y + (tallest - bottom) / 2, box.title, box.lines)


def _depths(links: Sequence[Mapping[str, Any]], center: str) -> dict[str, int]:
    """Return how many links each site is away from the center."""
    hops = {link["from"]: link["to"] for link in links}
    depths = {center: 0}
    for site in hops:
        way = [site]
        while way[-1] in hops and len(way) <= len(hops):
            way.append(hops[way[-1]])
        depths |= {name: len(way) - 1 - place for place, name in enumerate(way)}
    return depths


def _site_lines(fragments: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str | None], ...]:
    return tuple((f"{f['fragment']}  {rate(f['bytes_per_s'])}", f["fragment"]) for f in fragments)


def _view_lines(view: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    sides = view["sharing"].get("sides", (view["sharing"],))
    answered = f"answered after {seconds(view['predicted']['answered_after_s'])}"
    return (*((side["fragment"], side["fragment"]) for side in sides), (answered, None))


def _link_shapes(answer: Mapping[str, Any], boxes: Mapping[str, _Box]) -> Iterator[str]:
    for link in answer["links"]:
        start, end = boxes[link["from"]], boxes[link["to"]]
        use = link["utilisation"]
        colour = "#b3261e" if use is not None and use > FULL else "#8a8f98"
        label = rate(link["bytes_per_s"])
        if link.get("measured_bytes_per_s") is not None:
            label += f" (measured {rate(link['measured_bytes_per_s'])})"
        if use is not None:
            label += f", {use:.1%}"
        yield _curve(start, end, colour, 2)
        x = start.x + WIDTH + 8
        yield f'<text x="{x:g}" y="{start.middle - 6:g}" fill="{colour}" font-size="11">{escape(label)}</text>'


def _view_edges(
    answer: Mapping[str, Any], center: _Box, views: Mapping[str, _Box], colours: Mapping[str, str]
) -> Iterator[str]:
    for view in answer["views"]:
        for side in view["sharing"].get("sides", (view["sharing"],)):
            yield _curve(center, views[view["view"]], colours.get(side["fragment"], "#8a8f98"), 1.5)


def _curve(start: _Box, end: _Box, colour: str, width: float) -> str:
    x1, x2 = start.x + WIDTH, end.x
    bend = (x1 + x2) / 2
    path = f"M{x1:g},{start.middle:g} C{bend:g},{start.middle:g} {bend:g},{end.middle:g} {x2:g},{end.middle:g}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def _box_shapes(box: _Box, colours: Mapping[str, str]) -> Iterator[str]:
    yield (
        f'<rect x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{box.height:g}" rx="6" fill="#f6f7f9" '
        'stroke="#c9cdd3"/>'
    )
    yield f'<text x="{box.x + 10:g}" y="{box.y + LINE:g}" font-weight="600" fill="#1b1f24">{escape(box.title)}</text>'
    for number, (text, fragment) in enumerate(box.lines, start=1):
        y = box.y + LINE * (number + 1)
        indent = 10
        if fragment is not None:
            indent = 26
            yield f'<rect x="{box.x + 10:g}" y="{y - 9:g}" width="10" height="10" rx="2" fill="{colours[fragment]}"/>'
        yield f'<text x="{box.x + indent:g}" y="{y:g}" fill="#3c424a" font-size="11">{escape(text)}</text>'
