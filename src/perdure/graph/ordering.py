"""The nodes of a graph in the order of their dependencies."""

from __future__ import annotations

from perdure.graph.model import INPUT, OUTPUT, Graph, Node
from perdure.graph.topology import topological_order


def nodes_in_order(graph: Graph) -> list[Node]:
    """Return the nodes of a graph, each after those that it depends on."""
    position = {node.id: index for index, node in enumerate(graph.nodes)}
    successors: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        if edge.source != INPUT and edge.target != OUTPUT:
            successors[position[edge.source]].append(position[edge.target])
    return [graph.nodes[index] for index in topological_order(successors)]
