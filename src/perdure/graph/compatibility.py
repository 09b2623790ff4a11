"""Which nodes are the same in two versions of a graph, so that what one of them has given counts for the other.

A node is the same if it has the same id, type and properties, is given the same things in the same way, and nobody looks into
what it gives who did not before: what conditions and parts need is recorded when a node is completed. What depends on a node that
is not the same is a question to the graph, and no concern of this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.graph.model import CONDITION, Edge, Graph, Node
from perdure.ids import NodeId


def differing_nodes(old: Graph, new: Graph) -> dict[NodeId, str]:
    """Return the nodes of the second graph that are not the same in the first, each with how it differs."""
    known = {node.id: node for node in old.nodes}
    fed, fed_before = _by_target(new), _by_target(old)
    looks, looks_before = _looks(new), _looks(old)
    found: dict[NodeId, str] = {}
    for node in new.nodes:
        before = known.get(node.id)
        if before is None:
            found[node.id] = "there was none of this name"
        elif (problem := _other(before, node)) is not None:
            found[node.id] = problem
        elif fed.get(node.id, []) != fed_before.get(node.id, []):
            found[node.id] = "it is given something else"
        elif looks.get(node.id, set()) - looks_before.get(node.id, set()):
            found[node.id] = "what it gives is looked into otherwise"
    return found


def _other(before: Node, node: Node) -> str | None:
    if before.type != node.type:
        return f"it was a {before.type}"
    if (before.data, before.join, before.leftovers) != (node.data, node.join, node.leftovers):
        return "it has other properties"
    return None


def _by_target(graph: Graph) -> dict[NodeId, list[tuple[Any, ...]]]:
    """Return what feeds each node, in the order of the edges, which are named by nobody but templates."""
    fed: dict[NodeId, list[tuple[Any, ...]]] = {}
    for edge in graph.edges:
        named = (edge.target_handle, edge.source, edge.source_handle, edge.mode, edge.path)
        fed.setdefault(edge.target, []).append(named)
    return fed


def _looks(graph: Graph) -> dict[NodeId, set[tuple[Any, ...]]]:
    """Return into what of each node somebody looks: a part of it, or whether it is true."""
    found: dict[NodeId, set[tuple[Any, ...]]] = {}
    for edge in _looking(graph):
        look = (edge.source_handle, edge.path, edge.target_handle == CONDITION, edge.collects_parts)
        found.setdefault(edge.source, set()).add(look)
    return found


def _looking(graph: Graph) -> Iterator[Edge]:
    return (edge for edge in graph.edges if edge.path or edge.target_handle == CONDITION)
