"""One device's cheapest set of views where they share what they download: a min-cut.

The source's side of the cut is what the device computes. A feed that is held is uploaded at a level unless all that
want that level are computed here; a feed that is read is downloaded at a level if one that wants it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Ints
from catchment.feeds.placement.views_over_views.device_links import DeviceLinks
from catchment.feeds.placement.views_over_views.min_cut import Network


def cheapest_set(links: DeviceLinks, nodes: Ints, rows: Ints) -> NDArray[np.bool_]:
    """Return which of the nodes (all of one device) are inside its cheapest closed set; the smallest such set.

    `rows` are those of `links.reader` that are about these nodes.
    """
    network = Network()
    here = network.add_node()
    cloud = network.add_node()
    sources = links.sources
    at = {int(node): here if sources[node] else network.add_node() for node in nodes}
    for holder, children in _children(links, nodes).items():
        _add_upload(network, at[holder], float(links.upload[holder]), [(r, at[c]) for r, c in children])
        for _, child in children:
            if not sources[holder]:
                network.add_arc(at[child], at[holder])  # closed towards the source
    for readers in _readers(links, rows).values():
        _add_download(network, cloud, float(links.download[nodes[0]]), [(r, at[n]) for r, n in readers])
    side = network.source_side(here, cloud)
    return np.asarray([at[int(node)] in side for node in nodes], dtype=np.bool_)


def _children(links: DeviceLinks, nodes: Ints) -> dict[int, list[tuple[float, int]]]:
    """Return for each holder its children as (rate, node)."""
    children: dict[int, list[tuple[float, int]]] = {}
    for node in nodes[~links.sources[nodes]].tolist():
        children.setdefault(int(links.trees.parent[node]), []).append((float(links.rate[node]), node))
    return children


def _readers(links: DeviceLinks, rows: Ints) -> dict[int, list[tuple[float, int]]]:
    """Return for each feed that views here would read, the readers as (rate, node)."""
    readers: dict[int, list[tuple[float, int]]] = {}
    for row in rows.tolist():
        read = (float(links.read_rate[row]), int(links.reader[row]))
        readers.setdefault(int(links.read[row]), []).append(read)
    return readers


def _add_upload(network: Network, holder: int, unit: float, children: Iterable[tuple[float, int]]) -> None:
    below = 0.0
    last = holder
    for rate, child in sorted(children):
        if last == holder or rate > below:
            level = network.add_node()
            network.add_arc(holder, level, unit * (rate - below))
            if last != holder:
                network.add_arc(last, level)  # a level is free only if those above it are
            below = rate
            last = level
        network.add_arc(last, child)


def _add_download(network: Network, cloud: int, unit: float, readers: Iterable[tuple[float, int]]) -> None:
    below = 0.0
    last = cloud
    for rate, reader in sorted(readers):
        if last == cloud or rate > below:
            level = network.add_node()
            network.add_arc(level, cloud, unit * (rate - below))
            if last != cloud:
                network.add_arc(level, last)  # a level brings those below it
            below = rate
            last = level
        network.add_arc(reader, last)
