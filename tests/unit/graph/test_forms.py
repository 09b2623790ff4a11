"""The forms of a graph give equal objects, and documents that are none are refused with every place that is wrong."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import GraphError, UnreadableGraph
from perdure.graph.declare import Stream, node, workflow
from perdure.graph.forms import graph_from_json, graph_from_yaml, load_graph
from perdure.graph.model import Edge, Graph, Input, Node
from perdure.graph.trace import after, collect, first, text, unless, when
from perdure.graph.wiring import sort_edges
from perdure.graph.writing import content_hash, graph_to_json, graph_to_yaml
from perdure.ids import NodeId


@node(name="t.fetch")
def fetch(url: str, depth: int = 1) -> dict[str, Any]:
    return {}


@node(name="t.shout")
def shout(words: str) -> str:
    return words


@node(name="t.join")
def join(parts: list[str], extra: Any = None) -> str:
    return ""


@node(name="t.items")
def items(of: Any) -> Iterator[str]:
    yield ""


@node(name="t.read")
async def read(xs: Stream[str]) -> str:
    return ""


TYPES = {kind.name: kind for kind in (fetch, shout, join, items, read)}


@workflow(name="demo")
def demo(url: str, sep: str = ", ") -> dict[str, Any]:
    page = fetch(url, depth=2)
    loud, quiet = shout(text("About ", page["title"], sep)), shout("b")
    with after(loud):
        joined = join([loud, quiet], extra={"page": page, "fixed": [1, None]})
    with when(page["ok"]), unless(joined):
        last = shout(joined)
    return {
        "joined": joined,
        "last": first(last, joined),
        "all": collect(shout.map(items(page))),
        "read": read(items(1)),
    }


DOCUMENT: dict[str, Any] = {
    "name": "demo",
    "inputs": [
        {"name": "url", "schema": {"type": "string"}},
        {"name": "sep", "schema": {"type": "string"}, "default": ", "},
    ],
    "nodes": [
        {"id": "fetch", "type": "t.fetch", "data": {"depth": 2}},
        {
            "id": "shout",
            "type": "t.shout",
            "data": {
                "words": {"$text": ["About ", {"$ref": "fetch.output>shout.words"}, {"$ref": "$input.sep>shout.words"}]}
            },
        },
        {"id": "shout_2", "type": "t.shout", "data": {"words": "b"}},
        {
            "id": "join",
            "type": "t.join",
            "data": {"extra": {"page": {"$ref": "fetch.output>join.extra"}, "fixed": [1, None]}},
        },
        {"id": "shout_3", "type": "t.shout"},
        {"id": "items", "type": "t.items"},
        {"id": "shout_4", "type": "t.shout"},
        {"id": "items_2", "type": "t.items", "data": {"of": 1}},
        {"id": "read", "type": "t.read"},
    ],
    "edges": [
        {"source": "shout_4", "target": "$output", "targetHandle": "all", "mode": "collect"},
        {"source": "join", "target": "$output", "targetHandle": "joined"},
        {"source": "shout_3", "target": "$output", "targetHandle": "last", "mode": "first"},
        {"source": "join", "target": "$output", "targetHandle": "last", "mode": "first"},
        {"source": "read", "sourceHandle": None, "target": "$output", "targetHandle": "read"},
        {"source": "items_2", "target": "read", "targetHandle": "xs", "mode": "stream"},
        {"source": "items", "target": "shout_4", "targetHandle": "words", "mode": "map"},
        {"source": "fetch", "target": "items", "targetHandle": "of"},
        {"source": "join", "target": "shout_3", "targetHandle": "words"},
        {"source": "fetch", "path": ["ok"], "target": "shout_3", "targetHandle": "$when", "mode": "when"},
        {"source": "join", "target": "shout_3", "targetHandle": "$when", "mode": "unless"},
        {"source": "shout", "target": "join", "targetHandle": "parts"},
        {"source": "shout_2", "target": "join", "targetHandle": "parts"},
        {"source": "shout", "target": "join", "targetHandle": "$after"},
        {"source": "fetch", "target": "join", "targetHandle": "extra"},
        {"source": "fetch", "path": ["title"], "target": "shout", "targetHandle": "words"},
        {"source": "$input", "sourceHandle": "sep", "target": "shout", "targetHandle": "words"},
        {"source": "$input", "sourceHandle": "url", "target": "fetch", "targetHandle": "url"},
    ],
}


def test_python_and_json_and_yaml_give_equal_graphs():
    from_json = graph_from_json(json.dumps(DOCUMENT))
    from_yaml = graph_from_yaml(graph_to_yaml(demo.graph))

    assert from_json == demo.graph
    assert from_yaml == demo.graph
    assert graph_from_json(DOCUMENT) == demo.graph
    assert graph_to_json(from_json) == graph_to_json(demo.graph) == graph_to_json(from_yaml)
    assert content_hash(from_json) == content_hash(demo.graph)


def test_json_is_written_in_a_fixed_order():
    written = graph_to_json(demo.graph)
    document = json.loads(written)

    assert list(document) == ["name", "inputs", "nodes", "edges"]
    assert list(document["edges"][0]) == ["id", "source", "sourceHandle", "target", "targetHandle"]
    assert document["nodes"][0] == {"id": "fetch", "type": "t.fetch", "data": {"depth": 2}}
    assert graph_to_json(graph_from_json(written)) == written


def test_keys_that_are_not_ours_are_kept_and_do_not_count():
    plain = {"name": "g", "nodes": [{"id": "a", "type": "t"}], "edges": []}
    drawn: dict[str, Any] = {
        "zoom": 2,
        "name": "g",
        "nodes": [{"position": {"y": 1, "x": 2}, "id": "a", "type": "t"}],
        "edges": [],
    }

    graph = graph_from_json(drawn)

    assert graph.extra == {"zoom": 2}
    assert graph.nodes[0].extra == {"position": {"x": 2, "y": 1}}
    assert json.loads(graph_to_json(graph)) == {**drawn, "nodes": [{**drawn["nodes"][0], "data": {}}]}
    assert content_hash(graph) == content_hash(graph_from_json(plain))
    assert graph_from_yaml(graph_to_yaml(graph)) == graph


def test_what_runs_differently_has_another_hash():
    base = graph_from_json(DOCUMENT)
    changes = [
        msgspec.structs.replace(base, name="other"),
        msgspec.structs.replace(base, outputs={"x": 1}),
        msgspec.structs.replace(base, inputs=()),
        msgspec.structs.replace(base, nodes=(msgspec.structs.replace(base.nodes[0], join="zip"), *base.nodes[1:])),
        msgspec.structs.replace(
            base, nodes=(msgspec.structs.replace(base.nodes[0], join="zip", leftovers="drop"), *base.nodes[1:])
        ),
        msgspec.structs.replace(base, nodes=(msgspec.structs.replace(base.nodes[0], data={}), *base.nodes[1:])),
        msgspec.structs.replace(base, edges=base.edges[1:]),
        msgspec.structs.replace(base, edges=(msgspec.structs.replace(base.edges[0], path=("a",)), *base.edges[1:])),
    ]

    assert len({content_hash(graph) for graph in [base, *changes]}) == len(changes) + 1


def test_what_becomes_of_leftovers_is_written_only_where_it_is_chosen():
    document = {"name": "g", "nodes": [{"id": "a", "type": "t", "data": {}, "join": "zip"}], "edges": []}
    plain = graph_from_json(document)
    said, chosen = (
        graph_from_json({**document, "nodes": [{**document["nodes"][0], "leftovers": word}]})
        for word in ("fail", "drop")
    )

    assert said == plain
    assert json.loads(graph_to_json(said)) == document
    assert content_hash(said) == content_hash(plain)
    assert json.loads(graph_to_json(chosen))["nodes"][0]["leftovers"] == "drop"
    assert graph_from_yaml(graph_to_yaml(chosen)) == chosen


def test_the_order_of_nodes_and_of_edges_between_handles_does_not_count():
    base = graph_from_json(DOCUMENT)
    turned = msgspec.structs.replace(base, nodes=base.nodes[::-1], edges=sort_edges(base.nodes[::-1], base.edges))

    assert content_hash(turned) == content_hash(base)


def test_the_order_of_edges_into_one_handle_counts():
    base = graph_from_json(DOCUMENT)
    turned = msgspec.structs.replace(base, edges=sort_edges(base.nodes, base.edges[::-1]))

    assert content_hash(turned) != content_hash(base)


def test_a_graph_is_loaded_from_text_or_file(tmp_path: Path):
    (tmp_path / "demo.json").write_bytes(graph_to_json(demo.graph))
    (tmp_path / "demo.yaml").write_text(graph_to_yaml(demo.graph))

    for source in (
        tmp_path / "demo.json",
        tmp_path / "demo.yaml",
        graph_to_json(demo.graph),
        graph_to_yaml(demo.graph),
    ):
        assert load_graph(source) == demo.graph
    assert load_graph(b"\xef\xbb\xbf" + graph_to_json(demo.graph)) == demo.graph


def test_edges_without_ids_get_them():
    document = {
        "name": "g",
        "nodes": [],
        "edges": [
            {"source": "a", "target": "b", "targetHandle": "x"},
            {"source": "a", "target": "b", "targetHandle": "x"},
            {"id": "a.output>b.x", "source": "c", "target": "b", "targetHandle": "x"},
        ],
    }

    assert [edge.id for edge in graph_from_json(document).edges] == ["a.output>b.x#2", "a.output>b.x#3", "a.output>b.x"]


def test_every_fault_of_a_document_is_listed_with_its_place():
    document = {
        "name": 3,
        "inputs": [{"name": "a", "type": "string"}, 4, {"schema": []}],
        "nodes": [
            {"id": "a"},
            "text",
            {"id": "", "type": "t", "data": [], "stage": 4, "join": "glue", "leftovers": "eat"},
        ],
        "edges": [
            {"source": "a", "target": "b"},
            {
                "source": "a",
                "source_handle": "x",
                "target": "b",
                "targetHandle": "y",
                "mode": "fast",
                "path": ["a", True],
            },
            {"source": "a", "target": "b", "targetHandle": "y", "path": "title"},
        ],
        "outputs": [],
    }

    with pytest.raises(UnreadableGraph) as caught:
        graph_from_json(document)

    assert {fault.place for fault in caught.value.faults} == {
        "name",
        "inputs[0].type",
        "inputs[1]",
        "inputs[2]",
        "inputs[2].schema",
        "nodes[0]",
        "nodes[1]",
        "nodes[2].id",
        "nodes[2].data",
        "nodes[2].stage",
        "nodes[2].join",
        "nodes[2].leftovers",
        "edges[0]",
        "edges[1].source_handle",
        "edges[1].mode",
        "edges[1].path[1]",
        "edges[2].path",
        "outputs",
    }


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"name": "g", "nodes": ["hello"]}, "nodes[0]: this has to be an object, and is a text ('hello')."),
        ({"name": "g", "nodes": [], "outputs": 7}, "outputs: this has to be an object, and is a number (7)."),
        ({"name": "g", "nodes": [], "inputs": 7}, "inputs: this has to be a list of objects, and is a number (7)."),
        ({"name": True, "nodes": []}, "name: this has to be a text that is not empty, and is a truth value (true)."),
        ({"name": "", "nodes": []}, "name: this has to be a text that is not empty, and is an empty text."),
        ({"name": None, "nodes": []}, "name: this has to be a text that is not empty, and is null."),
        ({"name": "g", "nodes": {}}, "nodes: this has to be a list of objects, and is an object."),
        ({"name": "g", "nodes": [[]]}, "nodes[0]: this has to be an object, and is a list."),
        (
            {"name": "g", "nodes": [{"id": "a", "typ": "t"}]},
            "nodes[0]: 'type' is missing. If 'typ' is meant to be it, correct it.",
        ),
        (
            {"name": "g", "nodes": [{"id": "a", "hander": "t"}]},
            "nodes[0]: 'handler' is missing. If 'hander' is meant to be it, correct it.",
        ),
        ({"name": "g", "node": []}, "document: 'nodes' is missing. If 'node' is meant to be it, correct it."),
        ({"name": "g", "nodes": [{"id": "a"}]}, "nodes[0]: 'type' is missing."),
        (
            {"name": "g", "nodes": [{"id": "a", "type": "t", "join": "x" * 99}]},
            f"nodes[0].join: this has to be one of zip, latest, and is a text ('{'x' * 39}…').",
        ),
    ],
)
def test_faults_say_what_is_wanted_and_what_is_there(document: dict[str, Any], told: str):
    with pytest.raises(UnreadableGraph) as caught:
        graph_from_json(document)

    assert [str(fault) for fault in caught.value.faults] == [told]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"name": "g",\n  "nodes": [}', "line 2, column 13", "not JSON"),
        ('{"name": "g", "nodes": [{"id": "a", "id": "b", "type": "t"}]}', "nodes[0]", "'id' appears twice"),
        ('{"name": "g", "nodes": [], "x": NaN}', "x", "not a number"),
        ('{"name": "g", "nodes": [], "x": [1, -Infinity]}', "x[1]", "not a number"),
        ('{"name": "g", "nodes": [], "x": 1e999}', "x", "not a number"),
        ('{"name": "g", "nodes": [], "x": 123456789012345678901}', "x", "64 bits"),
        ('{"name": "g", "nodes": [], "x": ' + "9" * 10_000 + "}", "x", "64 bits"),
        ('{"name": "g", "nodes": [], "x": "\\ud800"}', "x", "surrogate"),
        ('{"name": "g", "nodes": [], "\\ud800": 1}', "document", "surrogate"),
        ('{"name": "g", "nodes": [], "x": ' + "[" * 150 + "]" * 150 + "}", "x" + "[0]" * 100, "deeper than 100"),
        ('{"name": ' + "[" * 100_000, "document", "deeper than 100"),
        ("[]", "document", "an object with a name and nodes, and is"),
        ("[1", "line 1, column 3", "not JSON"),
        ("{}", "document", "'name' is missing"),
    ],
)
def test_json_that_is_no_graph(text: str, place: str, words: str):
    with pytest.raises(UnreadableGraph) as caught:
        load_graph(text)

    assert any(fault.place == place and words in fault.message for fault in caught.value.faults), caught.value.faults


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("name: g\nnodes: [", "line 2, column 9", "not YAML"),
        ("name: g\nname: h\nnodes: []", "line 2, column 1", "'name' appears twice"),
        ("name: &a g\nnodes: *a", "line 1, column 7", "anchors"),
        ("name: &a g\nnodes: *a", "line 2, column 8", "anchors"),
        ("name: !!python/object:os.system g\nnodes: []", "line 1, column 7", "the tag"),
        ("name: !!str g\nnodes: []", "line 1, column 7", "the tag"),
        ("1: a\nname: g\nnodes: []", "line 1, column 1", "a key is not a text"),
        ("name: g\nnodes: [{{ x }}]", "line 2, column 10", "needs quotes"),
        ("name: g\nnodes: []\n---\nname: h", "line 3, column 1", "second document"),
        ("name: g\nnodes: []\nx: .nan", "x", "not a number"),
        ("name: g\nnodes: []\nx: -.inf", "x", "not a number"),
        ("name: g\nnodes: []\nx: " + "[" * 150 + "]" * 150, "line 3, column 103", "deeper than 100"),
        ("name: g\nnodes: []\nx: " + "9" * 5000, "x", "64 bits"),
        ("name: g\nnodes: " + "[" * 50_000, "line 2, column 107", "deeper than 100"),
        ("just text", "document", "an object with a name and nodes, and is"),
        ("", "document", "an object with a name and nodes, and is"),
        ("\x00", "document", "not YAML"),
        ("a:\n\t- b", "line 2, column 1", "not YAML"),
        ("%YAML 9.9\n---\na: b", "line 1, column 1", "not YAML"),
    ],
)
def test_yaml_that_is_no_graph(text: str, place: str, words: str):
    with pytest.raises(UnreadableGraph) as caught:
        graph_from_yaml(text)

    assert any(fault.place == place and words in fault.message for fault in caught.value.faults), caught.value.faults


@pytest.mark.parametrize("content", [b"\xff\xfe{", b'{"name": "\xe4"}', b"name: \xe4"])
def test_bytes_that_are_no_text(content: bytes):
    with pytest.raises(UnreadableGraph, match="UTF-8"):
        load_graph(content)


def test_yaml_knows_only_the_words_of_json():
    read = graph_from_yaml(
        "name: g\nnodes: []\nx: [yes, on, no, 2024-01-01, 0o17, 1_000, 12:30, ~, true, 1.5, -3, 1e3]"
    )

    assert read.extra["x"] == ["yes", "on", "no", "2024-01-01", "0o17", "1_000", "12:30", None, True, 1.5, -3, 1000.0]


def circular() -> dict[str, Any]:
    circle: dict[str, Any] = {"name": "g", "nodes": []}
    circle["self"] = circle
    return circle


@pytest.mark.parametrize(
    "document",
    [None, 3, [], "{", b"", {"name": object()}, {1: 2}, {"name": "g", "nodes": {1, 2}}, circular(), {"name": b"g"}],
)
def test_things_that_are_no_documents(document: Any):
    with pytest.raises(GraphError):
        graph_from_json(document)


scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.binary(max_size=2)
)
words = st.sampled_from(
    [
        *(
            "name",
            "nodes",
            "edges",
            "inputs",
            "outputs",
            "id",
            "type",
            "data",
            "stage",
            "join",
            "leftovers",
            "source",
            "sourceHandle",
        ),
        *("target", "targetHandle", "mode", "path", "handler", "dependencies", "config", "schema", "default"),
        *("$ref", "$text", "$map", "$value", "a", "b", "output"),
    ]
)
nonsense = st.recursive(
    scalars
    | words
    | st.sampled_from(["{{ a.b }}", "{{", "{{ inputs }}", "x {{ a }}", "{{ }}", "{{ a..b }}", "{{ a[ }}"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.integers(), inner, max_size=6),
    max_leaves=30,
)


@given(nonsense)
def test_nonsense_is_a_graph_or_a_graph_error(document: Any):
    with contextlib.suppress(GraphError):
        graph_from_json(document)


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(words, nonsense, max_size=6), max_size=4),
    st.lists(st.dictionaries(words, nonsense), max_size=3),
)
def test_nonsense_that_almost_is_one(nodes: list[Any], edges: list[Any]):
    for document in (
        {"name": "g", "nodes": nodes, "edges": edges},
        {"name": "g", "nodes": nodes, "outputs": {"a": edges}},
    ):
        try:
            graph = graph_from_json(document, TYPES)
        except GraphError:
            continue
        assert graph_from_json(graph_to_json(graph)) == graph


@given(st.text(max_size=40) | st.text(alphabet='{}[]":,-?&*!|>%@`#\n\t 1a', max_size=40))
def test_any_text_is_a_graph_or_a_graph_error(text: str):
    for read in (graph_from_json, graph_from_yaml, load_graph):
        with pytest.raises(GraphError):
            read(text)


@given(st.binary(max_size=30))
def test_any_bytes_are_a_graph_error(content: bytes):
    for read in (graph_from_json, graph_from_yaml, load_graph):
        with pytest.raises(GraphError):
            read(content)


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
OURS = {"name", "inputs", "nodes", "edges", "outputs", "id", "type", "data", "stage", "join", "source", "sourceHandle"}
OURS |= {"leftovers", "target", "targetHandle", "mode", "path", "source_handle", "target_handle", "handler"}
extras = objects.map(lambda extra: {key: value for key, value in extra.items() if key not in OURS})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = draw(
        st.lists(
            st.builds(
                Node,
                id=texts.map(NodeId),
                type=texts,
                data=objects,
                stage=st.none() | texts,
                join=st.sampled_from([None, "zip", "latest"]),
                leftovers=st.sampled_from(["fail", "drop"]),
                extra=extras,
            ),
            max_size=4,
            unique_by=lambda made: made.id,
        )
    )
    targets = st.sampled_from([made.id for made in nodes] + [NodeId("$output")])
    edges = draw(
        st.lists(
            st.builds(
                Edge,
                id=texts,
                source=texts.map(NodeId),
                source_handle=texts,
                target=targets,
                target_handle=texts,
                mode=st.sampled_from([None, "map", "first", "when"]),
                path=st.lists(texts | st.integers(-5, 5), max_size=3).map(tuple),
                extra=extras,
            ),
            max_size=5,
        )
    )
    inputs = st.builds(Input, name=texts, schema=objects, default=json_values | st.just(msgspec.UNSET))
    return Graph(
        name=draw(texts),
        nodes=tuple(nodes),
        edges=sort_edges(nodes, edges),
        inputs=tuple(draw(st.lists(inputs, max_size=3))),
        outputs=draw(objects),
        extra=draw(extras),
    )


@settings(max_examples=50)
@given(graphs())
def test_every_graph_survives_json_and_yaml(graph: Graph):
    written = graph_to_json(graph)

    assert graph_from_json(written) == graph
    assert graph_from_yaml(graph_to_yaml(graph)) == graph
    assert graph_to_json(graph_from_yaml(graph_to_yaml(graph))) == written
    assert content_hash(graph_from_json(written)) == content_hash(graph)


def test_a_graph_that_is_not_json_cannot_be_written():
    graph = Graph(name="g", nodes=(Node(id=NodeId("a"), type="t", data={"x": object()}),))

    with pytest.raises(GraphError, match=r"nodes\[0\]\.data\.x"):
        graph_to_json(graph)


class Name(str):
    """Looks like a text, and may print like anything."""


@pytest.mark.parametrize("viewport", [{}, {"viewport": {"zoom": 1}}, {"viewport": (1, 2)}])
@pytest.mark.parametrize("given", [{"x": {"shown": True}}, [1, 2], 3, None])
def test_others_keys_may_be_called_as_ours_are_elsewhere(viewport: dict[str, Any], given: Any):
    extra = {"inputs": given, "nodes": given, "edges": given}
    node = Node(id=NodeId("a"), type="t", extra={**extra, "position": [1, 2]})
    edge = Edge(id="e", source=NodeId("a"), target=NodeId("a"), target_handle="x", extra=extra)

    written = json.loads(graph_to_json(Graph(name="g", nodes=(node,), edges=(edge,), extra=viewport)))

    for document in (written["nodes"][0], written["edges"][0]):
        assert {key: document[key] for key in extra} == extra


def test_a_name_that_is_no_plain_text_cannot_be_written():
    with pytest.raises(GraphError, match=r"nodes\[0\]\.type"):
        graph_to_json(Graph(name="g", nodes=(Node(id=NodeId("a"), type=Name("t")),)))


def test_a_graph_that_is_nested_too_deep_cannot_be_written():
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(GraphError, match="deeper than 100"):
        graph_to_yaml(Graph(name="g", nodes=(), extra={"x": deep}))


def test_our_keys_win_over_others_of_the_same_name():
    graph = Graph(name="g", nodes=(Node(id=NodeId("a"), type="t", extra={"id": "b"}),), extra={"name": "h"})

    assert json.loads(graph_to_json(graph)) == {
        "name": "g",
        "nodes": [{"id": "a", "type": "t", "data": {}}],
        "edges": [],
    }


@pytest.mark.slow
def test_large_documents_are_read_in_seconds():
    document = {
        "name": "large",
        "nodes": [{"id": f"n{number}", "type": "t.shout"} for number in range(20_000)],
        "edges": [{"source": f"n{n - 1}", "target": f"n{n}", "targetHandle": "words"} for n in range(1, 20_000)],
    }
    text = json.dumps(document)

    started = time.process_time()
    graph = graph_from_json(text)
    graph_to_json(graph)
    elapsed = time.process_time() - started

    assert len(graph.edges) == 19_999
    assert elapsed < 5
