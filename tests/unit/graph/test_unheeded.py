"""Keys of documents that look as if they meant something are faults; all others are kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perdure.errors import InvalidGraph
from perdure.graph.declare import node
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph, Node
from perdure.graph.policy import Policy
from perdure.graph.unheeded import check_given, unheeded
from perdure.graph.validate import validate
from perdure.ids import NodeId


@node(name="keys.any")
def anything(x: int = 0) -> int:
    return x


TYPES = {anything.name: anything}
DRAWING = (
    *(
        "position",
        "ui",
        "x-mine",
        "stageId",
        "style",
        "label",
        "title",
        "width",
        "height",
        "selected",
        "measured",
        "parentId",
    ),
    *("zIndex", "className", "sourcePosition", "targetPosition", "hidden", "color", "description", "state", "status"),
    *(
        "metadata",
        "meta",
        "tags",
        "viewport",
        "zoom",
        "animated",
        "markerEnd",
        "sourceX",
        "targetNode",
        "index",
        "date",
    ),
    *("group", "icon", "notes", "version", "owner", "comment", "kind", "text", "labelStyle", "pathOptions"),
)


def graph_with(*, form: str, **keys: Any) -> Graph:
    """Return a graph of which one node has the keys."""
    if form == "short":
        return graph_from_json({"name": "g", "nodes": [{"id": "a", "handler": "keys.any", **keys}]}, TYPES)
    return graph_from_json({"name": "g", "nodes": [{"id": "a", "type": "keys.any", **keys}], "edges": []})


@pytest.mark.parametrize("form", ["short", "edges"])
@pytest.mark.parametrize("option", sorted(Policy.__struct_fields__))
def test_options_of_node_types_are_refused_on_nodes_and_on_graphs(form: str, option: str):
    graph = graph_with(form=form, **{option: 3})

    (fault,) = unheeded(graph)

    assert (fault.node, fault.rule) == ("a", "unknown_key")
    assert f"'a' has the key {option!r}" in fault.message
    assert f"@node({option}=…)" in fault.remedy


@pytest.mark.parametrize("form", ["short", "edges"])
@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("when", "an edge to '$when', with the mode 'when' or 'unless'"),
        ("unless", "an edge to '$when', with the mode 'when' or 'unless'"),
        ("after", "an edge to '$after'"),
        ("map", "the 'mode' of an edge"),
        ("collect", "the 'mode' of an edge"),
        ("first", "edges of the mode 'first'"),
        ("dependecies", "'dependencies'"),
        ("depends_on", "'dependencies'"),
        ("dependsOn", "'dependencies'"),
        ("needs", "'dependencies'"),
        ("stge", "'stage'"),
        ("Stage", "'stage'"),
        ("confg", "'config'"),
        ("Data", "'data'"),
        ("left_overs", "'leftovers'"),
    ],
)
def test_keys_of_nodes_that_are_almost_ours_are_refused(form: str, key: str, remedy: str):
    (fault,) = unheeded(graph_with(form=form, **{key: "{{ inputs.q }}"}))

    assert (fault.node, fault.rule) == ("a", "unknown_key")
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("form", "key", "remedy"),
    [
        ("edges", "dependencies", "an edge to '$after'"),
        ("edges", "config", "this is 'data'"),
        ("short", "data", "this is 'config'"),
        ("short", "join", "has no words for it"),
        ("short", "leftovers", "has no words for it"),
    ],
)
def test_keys_of_the_other_form_are_refused(form: str, key: str, remedy: str):
    (fault,) = unheeded(graph_with(form=form, **{key: {"x": 3}}))

    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("output", "'outputs'"),
        ("input", "'inputs'"),
        ("edge", "'edges'"),
        ("retries", "@node(retries=…)"),
        ("timeout", "--timeout of `perdure run`"),
        ("on_failure", "--on-failure of `perdure run`"),
    ],
)
def test_keys_of_the_graph_itself_are_looked_at_too(key: str, remedy: str):
    document = {"name": "g", "nodes": [{"id": "a", "handler": "keys.any"}], key: {"r": "{{ a }}"}}

    (fault,) = unheeded(graph_from_json(document, TYPES))

    assert (fault.node, fault.rule) == (None, "unknown_key")
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("key", "remedy"), [("sourcehandle", "'sourceHandle'"), ("mod", "'mode'"), ("when", "'$when'")]
)
def test_keys_of_edges_are_looked_at_too(key: str, remedy: str):
    edge = {"source": "a", "target": "b", "targetHandle": "x", key: "map"}
    nodes = [{"id": "a", "type": "keys.any"}, {"id": "b", "type": "keys.any"}]

    (fault,) = unheeded(graph_from_json({"name": "g", "nodes": nodes, "edges": [edge]}))

    assert (fault.node, fault.rule) == ("b", "unknown_key")
    assert remedy in fault.remedy


def test_keys_of_drawings_are_kept():
    drawn = dict.fromkeys(DRAWING, 1)
    edge = {"source": "a", "target": "b", "targetHandle": "x", **drawn}
    nodes = [{"id": "a", "type": "keys.any", **drawn}, {"id": "b", "type": "keys.any"}]

    graph = graph_from_json({"name": "g", "nodes": nodes, "edges": [edge], **drawn})

    assert unheeded(graph) == ()
    assert set(graph.nodes[0].extra) == set(graph.edges[0].extra) == set(graph.extra) == set(DRAWING)
    check_given(graph, TYPES)


def test_such_keys_are_told_with_all_that_is_wrong():
    with pytest.raises(InvalidGraph) as caught:
        check_given(graph_with(form="short", retries=3, config={"y": 1}), TYPES)

    assert [fault.rule for fault in caught.value.faults] == ["unknown_key", "unknown_handle"]


def test_a_graph_that_is_stored_with_such_keys_can_run_nevertheless():
    assert validate(graph_with(form="edges", retries=3), TYPES) == ()


def test_many_keys_take_no_long_time():
    nodes = tuple(
        Node(id=NodeId(f"n{number}"), type="keys.any", extra={"position": 1, f"dependency{number}": 1})
        for number in range(50_000)
    )
    started = time.process_time()

    unheeded(Graph(name="g", nodes=nodes))

    assert time.process_time() - started < 3
