"""The smallest min-cut of a small network with real capacities (Dinic's algorithm).

Capacities that are left over by rounding count as used up, so the set found is the smallest of those whose
cost differs from the least by no more than rounding does.
"""

from __future__ import annotations

import math
from collections import deque

ROUNDING = 1e-12  # capacities below this share of the largest finite one count as used up


class Network:
    """Arcs between numbered nodes, with what each can still carry."""

    def __init__(self) -> None:
        self.head: list[int] = []
        self.room: list[float] = []
        self.arcs: list[list[int]] = []
        self.largest = 0.0

    def add_node(self) -> int:
        """Return a new node's number."""
        self.arcs.append([])
        return len(self.arcs) - 1

    def add_arc(self, tail: int, head: int, capacity: float = math.inf) -> None:
        """Add an arc; without a capacity it cannot be cut."""
        for at, to, room in ((tail, head, capacity), (head, tail, 0.0)):
            self.arcs[at].append(len(self.head))
            self.head.append(to)
            self.room.append(room)
        if math.isfinite(capacity):
            self.largest = max(self.largest, capacity)

    def source_side(self, source: int, sink: int) -> set[int]:
        """Return the nodes on the source's side of the min-cut with the fewest of them."""
        while True:
            depth = self._depths(source)
            if sink not in depth:
                return set(depth)
            tried = [0] * len(self.arcs)
            while self._push(source, sink, depth, tried):
                pass

    def _has_room(self, arc: int) -> bool:
        return self.room[arc] > ROUNDING * self.largest

    def _depths(self, source: int) -> dict[int, int]:
        depth = {source: 0}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self.arcs[node]:
                if self.head[arc] not in depth and self._has_room(arc):
                    depth[self.head[arc]] = depth[node] + 1
                    queue.append(self.head[arc])
        return depth

    def _push(self, source: int, sink: int, depth: dict[int, int], tried: list[int]) -> bool:
        """Send as much as fits along one shortest path; return False where none is left. Dead ends are not retried."""
        path: list[int] = []
        node = source
        while node != sink:
            arc = self._next_arc(node, depth, tried)
            if arc is not None:
                path.append(arc)
                node = self.head[arc]
            elif path:
                node = self.head[path.pop() ^ 1]
                tried[node] += 1
            else:
                return False
        sent = min(self.room[arc] for arc in path)
        for arc in path:
            self.room[arc] -= sent
            self.room[arc ^ 1] += sent
        return True

    def _next_arc(self, node: int, depth: dict[int, int], tried: list[int]) -> int | None:
        arcs = self.arcs[node]
        while tried[node] < len(arcs):
            arc = arcs[tried[node]]
            if self._has_room(arc) and depth.get(self.head[arc]) == depth[node] + 1:
                return arc
            tried[node] += 1
        return None
