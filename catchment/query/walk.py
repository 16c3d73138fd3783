"""The kit for trees of plan nodes: no rule writes its own recursion.

Every function takes a node with `inputs` and `with_inputs`; nodes are values, so equal subtrees are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from catchment.query.plan import Node

N = TypeVar("N", bound=Node)


def walk(root: Node) -> Iterator[Node]:
    """Every node, each before its inputs."""
    yield root
    for node in root.inputs:
        yield from walk(node)


def find(root: Node, kind: type[N]) -> Iterator[N]:
    """Every node of a kind, each before its inputs."""
    return (node for node in walk(root) if isinstance(node, kind))


def transform(root: Node, rule: Callable[[Node], Node]) -> Node:
    """The tree with every node replaced by what the rule makes of it, inputs first."""
    inputs = tuple(transform(node, rule) for node in root.inputs)
    return rule(root if inputs == root.inputs else root.with_inputs(inputs))


def replace(root: Node, old: Node, new: Node) -> Node:
    """The tree with one subtree in the place of another, wherever it stands."""
    return transform(root, lambda node: new if node == old else node)


def topological(roots: Iterable[Node]) -> tuple[Node, ...]:
    """Every distinct node of a forest once, inputs before the nodes that read them."""
    ordered: dict[Node, None] = {}
    for root in roots:
        for node in reversed(list(walk(root))):
            ordered.setdefault(node)
    return tuple(ordered)
