"""How two graphs differ: what was added, removed and changed, and what makes no difference."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.graph.differing import GraphDifference, NodeChange, differ
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
from perdure.ids import NodeId


def graph(*, change: Any = None) -> Graph:
    """Return a graph of two nodes in a chain and one beside them, changed as somebody wants it."""
    document: dict[str, Any] = {
        "name": "w",
        "inputs": [{"name": "x", "schema": {"type": "integer"}}],
        "nodes": [
            {"id": "a", "type": "t.a", "data": {"n": 1}},
            {"id": "b", "type": "t.b", "data": {"text": {"$text": ["so ", {"$ref": "e2"}]}}, "stage": "one"},
            {"id": "c", "type": "t.c", "data": {}},
        ],
        "edges": [
            {"id": "e1", "source": "$input", "sourceHandle": "x", "target": "a", "targetHandle": "x"},
            {"id": "e2", "source": "a", "target": "b", "targetHandle": "text"},
            {"id": "e3", "source": "a", "target": "c", "targetHandle": "x", "mode": "map"},
            {"id": "e4", "source": "b", "target": "$output", "targetHandle": "output"},
        ],
    }
    if change is not None:
        change(document)
    return graph_from_json(msgspec.json.encode(document))


def difference(change: Any) -> GraphDifference:
    return differ(graph(), graph(change=change))


def changed(node_id: str, *aspects: Any, handles: tuple[str, ...] = ()) -> tuple[NodeChange, ...]:
    return (NodeChange(node_id=NodeId(node_id), aspects=aspects, handles=handles),)


def test_equal_graphs_do_not_differ() -> None:
    found = differ(graph(), graph())

    assert found.is_none
    assert found.same == ("a", "b", "c")


def test_what_is_only_called_or_drawn_otherwise_makes_no_difference() -> None:
    def rename(document: dict[str, Any]) -> None:
        for edge in document["edges"]:
            edge["id"] = f"other-{edge['id']}"
            edge["extra"] = 1
        document["nodes"][1]["data"]["text"]["$text"][1]["$ref"] = "other-e2"
        document["nodes"][0]["position"] = {"x": 3}
        document["nodes"].reverse()
        document["edges"].reverse()

    found = difference(rename)

    assert found.is_none
    assert not found.added_edges
    assert not found.removed_edges


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["nodes"][0].update(type="t.z"), changed("a", "type")),
        (lambda d: d["nodes"][0]["data"].update(n=2), changed("a", "data", handles=("n",))),
        (lambda d: d["nodes"][0]["data"].update(n=True), changed("a", "data", handles=("n",))),
        (lambda d: d["nodes"][0]["data"].update(n=1.0), changed("a", "data", handles=("n",))),
        (lambda d: d["nodes"][0]["data"].update(m=None), changed("a", "data", handles=("m",))),
        (lambda d: d["nodes"][1].update(stage="two"), changed("b", "stage")),
        (lambda d: d["nodes"][2].update(join="zip"), changed("c", "join")),
        (lambda d: d["edges"][2].update(mode="collect"), changed("c", "edges", handles=("x",))),
        (lambda d: d["edges"][2].update(sourceHandle="out"), changed("c", "edges", handles=("x",))),
        (lambda d: d["edges"][2].update(path=["title"]), changed("c", "edges", handles=("x",))),
        (lambda d: d["edges"][2].update(source="b"), changed("c", "edges", handles=("x",))),
        (lambda d: d["edges"][2].update(targetHandle="y"), changed("c", "edges", handles=("x", "y"))),
        (
            lambda d: d["nodes"][1]["data"]["text"]["$text"].reverse(),
            changed("b", "data", handles=("text",)),
        ),
    ],
)
def test_a_changed_node_is_told_with_what_changed(change: Any, expected: tuple[NodeChange, ...]) -> None:
    found = difference(change)

    assert found.changed == expected
    assert not found.is_none
    assert found.same == tuple(name for name in ("a", "b", "c") if name != expected[0].node_id)
    assert expected[0].matters == (expected[0].aspects != ("stage",))


def test_the_order_of_edges_into_one_handle_matters() -> None:
    def two(document: dict[str, Any]) -> None:
        document["edges"].insert(2, {"id": "e5", "source": "b", "target": "c", "targetHandle": "x"})

    def two_turned(document: dict[str, Any]) -> None:
        two(document)
        document["edges"][2], document["edges"][3] = document["edges"][3], document["edges"][2]

    assert differ(graph(change=two), graph(change=two_turned)).changed == changed("c", "edges", handles=("x",))


def test_nodes_and_edges_are_added_and_removed() -> None:
    def swap(document: dict[str, Any]) -> None:
        document["nodes"][2] = {"id": "d", "type": "t.c", "data": {}}
        document["edges"][2]["target"] = "d"

    found = difference(swap)

    assert (found.added, found.removed, found.changed, found.same) == (("d",), ("c",), (), ("a", "b"))
    assert [(edge.source, edge.target) for edge in found.added_edges] == [("a", "d")]
    assert [(edge.source, edge.target) for edge in found.removed_edges] == [("a", "c")]


def test_inputs_and_outputs_of_the_workflow_are_compared() -> None:
    def widen(document: dict[str, Any]) -> None:
        document["inputs"][0]["default"] = 7
        document["inputs"].append({"name": "y", "schema": {}})
        document["edges"][3]["source"] = "c"
        document["outputs"] = {"more": 1}

    found = difference(widen)

    assert found.inputs == ("x", "y")
    assert found.outputs == ("output", "more")
    assert found.changed == ()
