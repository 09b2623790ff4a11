"""Which nodes are the same in two versions of a graph."""

from __future__ import annotations

import pytest

from perdure.graph.compatibility import differing_nodes
from perdure.graph.model import CONDITION, Edge, Graph, Node
from perdure.ids import NodeId

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def edge(source: NodeId, target: NodeId, handle: str = "x", **more: object) -> Edge:
    known = {"id": f"{source}-{target}-{handle}", "source": source, "target": target, "target_handle": handle}
    return Edge(**{**known, **more})  # pyright: ignore[reportArgumentType]


OLD = Graph(
    name="g",
    nodes=(Node(id=A, type="t"), Node(id=B, type="t", data={"k": 1}), Node(id=C, type="t")),
    edges=(edge(A, B), edge(B, C)),
)


def changed(*, nodes: tuple[Node, ...] = OLD.nodes, edges: tuple[Edge, ...] = OLD.edges) -> Graph:
    return Graph(name="g", nodes=nodes, edges=edges)


def test_equal_graphs_do_not_differ_whatever_their_edges_are_called():
    same = changed(edges=(edge(A, B, id="1", extra={"colour": "red"}), edge(B, C, id="2")))

    assert differing_nodes(OLD, same) == {}


@pytest.mark.parametrize(
    ("graph", "differing"),
    [
        (changed(nodes=(*OLD.nodes, Node(id=NodeId("d"), type="t"))), {"d": "there was none of this name"}),
        (changed(nodes=(OLD.nodes[0], Node(id=B, type="u", data={"k": 1}), OLD.nodes[2])), {"b": "it was a t"}),
        (
            changed(nodes=(OLD.nodes[0], Node(id=B, type="t", data={"k": 2}), OLD.nodes[2])),
            {"b": "it has other properties"},
        ),
        (changed(nodes=(OLD.nodes[0], OLD.nodes[1], Node(id=C, type="t", stage="end", extra={"position": 1}))), {}),
        (changed(edges=(edge(A, B), edge(A, C))), {"c": "it is given something else"}),
        (changed(edges=(edge(A, B), edge(B, C, mode="map"))), {"c": "it is given something else"}),
        (changed(edges=(edge(A, B),)), {"c": "it is given something else"}),
        (
            changed(edges=(edge(A, B), edge(B, C, path=("title",)))),
            {"b": "what it gives is looked into otherwise", "c": "it is given something else"},
        ),
        (
            changed(edges=(edge(A, B), edge(B, C), edge(A, C, CONDITION, mode="when"))),
            {"a": "what it gives is looked into otherwise", "c": "it is given something else"},
        ),
        (changed(nodes=OLD.nodes[:2], edges=OLD.edges[:1]), {}),
    ],
)
def test_a_node_differs_by_what_it_is_and_what_it_is_given(graph: Graph, differing: dict[str, str]):
    assert differing_nodes(OLD, graph) == differing


def test_who_does_not_look_any_more_needs_nothing():
    looking = changed(edges=(edge(A, B), edge(B, C, path=("title",))))

    assert differing_nodes(looking, OLD) == {C: "it is given something else"}
