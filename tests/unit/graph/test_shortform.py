"""The short form: dependencies and references in the place of edges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import NotExpressible, UnreadableGraph
from perdure.graph.declare import Outputs, Stream, node, workflow
from perdure.graph.forms import graph_from_json, graph_from_yaml, load_graph
from perdure.graph.model import Edge, Graph, Input, Node
from perdure.graph.trace import after, collect, text
from perdure.graph.validate import validate
from perdure.graph.writing import graph_to_short
from perdure.graph.yamls import write_yaml
from perdure.ids import NodeId


class Halves(Outputs):
    left: str
    right: str


@node(name="pages.fetch")
def fetch(url: str, depth: int = 1) -> dict[str, Any]:
    return {}


@node(name="pages.headline")
def headline(text: str, also: Any = None) -> str:
    return text


@node(name="pages.join")
def join(parts: list[str], sep: str = "") -> str:
    return ""


@node(name="pages.halve")
def halve(words: str) -> Halves:
    return Halves()


@node(name="pages.any")
def anything(value: Any = None) -> Outputs:
    return Outputs()


@node(name="pages.words")
def words(of: str) -> Iterator[str]:
    yield of


@node(name="pages.read")
async def read(xs: Stream[str]) -> str:
    return ""


TYPES = {kind.name: kind for kind in (fetch, headline, join, halve, anything, words, read)}

SHORT = """
name: digest
nodes:
  - id: fetch
    handler: pages.fetch
    dependencies: []
    config: {url: "{{ inputs.url }}", depth: 2}
  - id: title
    handler: pages.headline
    dependencies: [fetch]
    config:
      text: "About {{ fetch.title }} ({{fetch.sections.0.name}})"
      also: {whole: "{{ fetch }}", list: ["{{ fetch.output }}", 3]}
    stage: writing
  - id: halve
    handler: pages.halve
    config: {words: "{{ title.output }}"}
  - id: join
    handler: pages.join
    dependencies: [halve, fetch]
    config: {parts: ["{{ halve.left }}", "{{ halve.right }}"]}
outputs:
  result: "{{ join.output }}"
inputs: [url]
"""


@workflow(name="digest")
def digest(url: Any) -> dict[str, Any]:
    page = fetch(url, depth=2)
    title = headline.named("title").options(stage="writing")(
        text("About ", page["title"], " (", page["sections"][0]["name"], ")"), also={"whole": page, "list": [page, 3]}
    )
    halves = halve(title)
    with after(page):
        joined = join([halves.left, halves.right])
    return {"result": joined}


def test_the_short_form_gives_the_same_graph_as_python():
    read_short = graph_from_yaml(SHORT, TYPES)

    assert read_short == digest.graph
    assert validate(read_short, TYPES) == ()


def test_a_graph_is_written_short_and_read_again():
    short = graph_to_short(digest.graph, TYPES)

    assert graph_from_json(short, TYPES) == digest.graph
    assert load_graph(write_yaml(short), TYPES) == digest.graph
    assert short["nodes"][1] == {
        "id": "title",
        "handler": "pages.headline",
        "stage": "writing",
        "dependencies": ["fetch"],
        "config": {
            "text": "About {{ fetch.output.title }} ({{ fetch.output.sections[0].name }})",
            "also": {"whole": "{{ fetch.output }}", "list": ["{{ fetch.output }}", 3]},
        },
    }
    assert short["nodes"][3]["dependencies"] == ["halve", "fetch"]


def edges_of(config: Any, *, types: Any = None, other: str = "pages.any", **fields: Any) -> list[Edge]:
    document = {
        "name": "g",
        "nodes": [
            {"id": "a", "handler": other},
            {"id": "b", "handler": "pages.any", "config": {"value": config}, **fields},
        ],
    }
    return list(graph_from_json(document, types).edges)


@pytest.mark.parametrize(
    ("reference", "handle", "path"),
    [
        ("{{ a }}", "output", ()),
        ("{{a.output}}", "output", ()),
        ("{{ a.title }}", "output", ("title",)),
        ("{{ a.output.output }}", "output", ("output",)),
        ("{{ a.rows.0.name }}", "output", ("rows", 0, "name")),
        ("{{ a.rows[0][-1] }}", "output", ("rows", 0, -1)),
        ('{{ a["any \\"text\\" }"] }}', "output", ('any "text" }',)),
        ('{{ a["0"] }}', "output", ("0",)),
        ('{{ a["\\u007d\\u007d"] }}', "output", ("}}",)),
        ("{{ a.first-name }}", "output", ("first-name",)),
        ("{{\n a.title\n}}", "output", ("title",)),
    ],
)
def test_references(reference: str, handle: str, path: tuple[Any, ...]):
    [edge] = edges_of(reference)

    assert (edge.source, edge.source_handle, edge.path) == ("a", handle, path)


@pytest.mark.parametrize(
    ("other", "reference", "handle", "path"),
    [
        ("pages.halve", "{{ a.left }}", "left", ()),
        ("pages.halve", "{{ a.left.x }}", "left", ("x",)),
        ("pages.halve", "{{ a.middle }}", "middle", ()),
        ("pages.any", "{{ a.whatever }}", "whatever", ()),
        ("pages.headline", "{{ a.left }}", "output", ("left",)),
        ("pages.unknown", "{{ a.left }}", "output", ("left",)),
    ],
)
def test_node_types_tell_outputs_from_parts(other: str, reference: str, handle: str, path: tuple[Any, ...]):
    [edge] = edges_of(reference, types=TYPES, other=other)

    assert (edge.source_handle, edge.path) == (handle, path)


def test_ids_may_have_points():
    document = {
        "name": "g",
        "nodes": [
            {"id": "a", "handler": "x"},
            {"id": "a.b", "handler": "x"},
            {"id": "c", "handler": "x", "config": {"p": "{{ a.b.title }}", "q": "{{ a.c }}"}},
        ],
    }

    edges = graph_from_json(document).edges

    assert [(edge.source, edge.path) for edge in edges] == [("a.b", ("title",)), ("a", ("c",))]


@pytest.mark.parametrize(
    ("config", "data"),
    [
        ("plain", "plain"),
        ("{{ '{{' }} a }}", "{{ a }}"),
        ("{{ \"{{\" }}x{{ '' }}", "{{x"),
        ("one } brace {", "one } brace {"),
        ("x {{ a }}", {"$text": ["x ", {"$ref": "a.output>b.value"}]}),
        ("{{ a }}{{ '' }}", {"$text": [{"$ref": "a.output>b.value"}]}),
        ("{{ a }}{{ a.x }}", {"$text": [{"$ref": "a.output>b.value"}, {"$ref": "a.output>b.value#2"}]}),
        ("{{ '{{' }}{{ a }}", {"$text": ["{{", {"$ref": "a.output>b.value"}]}),
        (["{{ a }}"], [{"$ref": "a.output>b.value"}]),
        ({"$ref": "x"}, {"$value": {"$ref": "x"}}),
    ],
)
def test_texts_and_structures(config: Any, data: Any):
    document = {
        "name": "g",
        "nodes": [{"id": "a", "handler": "x"}, {"id": "b", "handler": "x", "config": {"value": config}}],
    }

    assert graph_from_json(document).nodes[1].data == {"value": data}


def test_dependencies_without_references_are_waited_for():
    edges = edges_of("{{ a }}", dependencies=["a", "c", "c"])

    assert [(edge.source, edge.target_handle) for edge in edges] == [("c", "$after"), ("a", "value")]


def test_inputs_follow_from_references():
    document = {
        "name": "g",
        "nodes": [{"id": "a", "handler": "x", "config": {"p": "{{ inputs.one }}", "q": ["{{ inputs.two.deep }}", 1]}}],
    }

    assert graph_from_json(document).inputs == (Input(name="one"), Input(name="two"))


def test_a_stream_is_read_as_one_where_the_types_say_so():
    document = {
        "name": "g",
        "nodes": [
            {"id": "words", "handler": "pages.words", "config": {"of": "a"}},
            {"id": "read", "handler": "pages.read", "config": {"xs": "{{ words.output }}"}},
        ],
        "outputs": {"output": "{{ read }}"},
    }

    @workflow(name="g")
    def streaming() -> str:
        return read(words("a"))

    assert graph_from_json(document, TYPES) == streaming.graph
    assert graph_from_json(graph_to_short(streaming.graph, TYPES), TYPES) == streaming.graph


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"config": {"value": "{{ a"}}, "nodes[0].config.value", "not closed"),
        ({"config": {"value": "{{ a }} {{"}}, "nodes[0].config.value", "not closed"),
        ({"config": {"value": "{{ }}"}}, "nodes[0].config.value", "not a reference"),
        ({"config": {"value": "{{ a..b }}"}}, "nodes[0].config.value", "not a reference"),
        ({"config": {"value": "{{ a b }}"}}, "nodes[0].config.value", "not a reference"),
        ({"config": {"value": "{{ a[x] }}"}}, "nodes[0].config.value", "not a reference"),
        ({"config": {"value": "{{ a + 1 }}"}}, "nodes[0].config.value", "not a reference"),
        ({"config": {"value": ["{{ inputs }}"]}}, "nodes[0].config.value[0]", "needs the name of an input"),
        ({"config": {"value": "{{ a }}"}, "dependencies": []}, "nodes[0].config", "not among the dependencies"),
        ({"config": 3}, "nodes[0].config", "an object"),
        ({"dependencies": "a"}, "nodes[0].dependencies", "a list of ids"),
        ({"dependencies": ["a", 3]}, "nodes[0].dependencies[1]", "the id of a node, and is a number (3)"),
        ({"type": "x"}, "nodes[0].type", "keep one"),
        ({"id": "inputs"}, "nodes[0].id", "rename the node"),
        ({"handler": 3}, "nodes[0].handler", "a text"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changes: dict[str, Any], place: str, message: str):
    document = {"name": "g", "nodes": [{"id": "b", "handler": "x", **changes}, {"id": "a", "handler": "x"}]}

    with pytest.raises(UnreadableGraph) as caught:
        graph_from_json(document)

    assert [(fault.place, message in fault.message) for fault in caught.value.faults] == [(place, True)]


@pytest.mark.parametrize(
    "text", ["{{" * 50_000, "{{" + " " * 100_000, "{{ a" + ".b" * 50_000 + " }}", "{{ a }}" * 20_000]
)
def test_long_texts_take_no_long_time(text: str):
    started = time.process_time()
    with contextlib.suppress(UnreadableGraph):
        edges_of(text)

    assert time.process_time() - started < 3


def test_unknown_nodes_are_found_by_validation():
    document = {"name": "g", "nodes": [{"id": "b", "handler": "pages.any", "config": {"value": "{{ ghost.x }}"}}]}

    assert [fault.rule for fault in validate(graph_from_json(document), TYPES)] == ["dangling_reference"]


def test_faults_of_validation_speak_of_what_was_written_and_not_of_edges():
    document = {
        "name": "g",
        "inputs": [],
        "nodes": [
            {"id": "c", "handler": "pages.any", "config": {"value": "{{ nope }}"}},
            {"id": "d", "handler": "pages.any", "dependencies": ["cc"]},
            {"id": "e", "handler": "pages.any", "config": {"value": "{{ e.x }}"}},
        ],
        "outputs": {"o": "{{ foo }}", "p": "{{ inputs.z }}"},
    }

    faults = validate(graph_from_json(document, TYPES), TYPES)

    assert [fault.message for fault in faults] == [
        "'value' of 'c' refers to 'nope', which is no node.",
        "Node 'd' waits for 'cc', which is no node (did you mean 'c'?).",
        "'value' of 'e' refers to its own node.",
        "The output 'o' of the workflow refers to 'foo', which is no node.",
        "The output 'p' of the workflow refers to the input 'z', which the workflow does not have.",
    ]
    assert not any("edge" in fault.remedy for fault in faults)


def test_an_edge_that_has_an_id_of_its_own_is_named():
    edge = {"id": "mine", "source": "nope", "target": "c", "targetHandle": "value"}
    document = {"name": "g", "nodes": [{"id": "c", "type": "pages.any"}], "edges": [edge]}

    (fault,) = validate(graph_from_json(document), TYPES)

    assert fault.message == "Edge 'mine', to 'value' of 'c', comes from 'nope', which is no node."


def test_what_has_no_words_is_refused_with_all_reasons():
    @workflow(name="streams")
    def streams(numbers: list[str]) -> Any:
        return [collect(headline.map(numbers)), collect(headline.map(["a"]))]

    with pytest.raises(NotExpressible) as caught:
        graph_to_short(streams.graph, TYPES)

    assert len(caught.value.problems) == 4


def test_edges_with_chosen_ids_have_no_words():
    nodes = (Node(id=NodeId("a"), type="pages.any"), Node(id=NodeId("b"), type="pages.any"))
    chosen = Edge(id="mine", source=NodeId("a"), source_handle="x", target=NodeId("b"), target_handle="value")

    with pytest.raises(NotExpressible, match="would not read back"):
        graph_to_short(Graph(name="g", nodes=nodes, edges=(chosen,)), TYPES)


@given(st.lists(st.text(max_size=5) | st.integers(-3, 3), min_size=1, max_size=4))
def test_every_part_can_be_written_short(path: list[str | int]):
    @workflow(name="g")
    def one() -> Any:
        value: Any = fetch("a")
        for step in path:
            value = value[step]
        return anything(value).x

    assert graph_from_json(graph_to_short(one.graph, TYPES), TYPES) == one.graph


constants = st.recursive(
    st.none()
    | st.integers(-5, 5)
    | st.text(alphabet="{}'\" a$", max_size=8)
    | st.sampled_from(["{{ a }}", "{{", "{{{"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$ref", "$text", "k"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(constants)
def test_every_constant_can_be_written_short(constant: Any):
    @workflow(name="g")
    def one() -> Any:
        return {"a": anything(constant).x, "b": constant}

    assert graph_from_json(graph_to_short(one.graph, TYPES), TYPES) == one.graph


def test_wrong_ids_are_told_together_with_what_is_wrong_with_the_shape():
    document = """
    name: x
    nodes:
      - {id: a, handler: pages.fetch, config: {url: "{{ inptus.url }}"}}
      - {id: a, handler: pages.headline, config: {text: "{{ a.b.c"}}
    """

    with pytest.raises(UnreadableGraph) as caught:
        graph_from_yaml(document)

    assert [str(fault) for fault in caught.value.faults] == [
        "nodes[1].config.text: '{{' is not closed. For the characters themselves, write {{ '{{' }}.",
        "nodes[1].id: another node is called 'a': rename one of them.",
        "nodes[0].config.url: there is no node 'inptus' (did you mean 'inputs'?).",
    ]
