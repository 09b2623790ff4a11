"""Validation finds every fault at once, each with node, rule and remedy."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidGraph
from perdure.graph.declare import Outputs, Stream, node
from perdure.graph.model import Edge, Graph, Input, Node
from perdure.graph.validate import check, validate
from perdure.ids import NodeId


@dataclasses.dataclass
class Page:
    title: str


class Halves(Outputs):
    left: int
    right: str


@node(name="one")
def one(x: int = 0) -> int:
    return x


@node(name="needs")
def needs(x: int, y: str = "") -> str:
    return y


@node(name="many")
def many(xs: list[int]) -> list[int]:
    return xs


@node(name="page")
def page(of: Any = None) -> Page:
    return Page("")


@node(name="halves")
def halves(x: int = 0) -> Halves:
    return Halves()


@node(name="loose")
def loose(**values: Any) -> Outputs:
    return Outputs(**values)


@node(name="stream")
def stream(n: int = 3) -> Iterator[int]:
    yield n


@node(name="streams")
def streams(n: int = 3) -> Iterator[Halves]:
    yield Halves(left=n)


@node(name="hasty", ordered=False)
def hasty(x: int = 0) -> Halves:
    return Halves(left=x)


@node(name="reader")
async def reader(xs: Stream[int]) -> int:
    return 0


@node(name="two")
def two(x: int, y: int = 0) -> int:
    return x


class Tuned:
    temperature: float = 0.5
    model: str

    def run(self, x: int = 0) -> int:
        return x


tuned = node(name="tuned")(Tuned)

TYPES = {
    kind.name: kind for kind in (one, needs, many, page, halves, loose, stream, streams, reader, hasty, two, tuned)
}


def graph(nodes: dict[str, Any], edges: list[str] | None = None, **fields: Any) -> Graph:
    """Nodes are `id: type` or `id: (type, data)`; edges are `a.out>b.in`, with `|mode` or `/part` behind.

    What is written is also the id: a bare `|` behind an edge makes it another one.
    """
    made = [
        Node(id=NodeId(name), type=kind[0], data=kind[1])
        if isinstance(kind, tuple)
        else Node(id=NodeId(name), type=kind)
        for name, kind in nodes.items()
    ]
    return Graph(name="g", nodes=tuple(made), edges=tuple(map(edge, edges or [])), **fields)


def edge(written: str) -> Edge:
    rest, _, part = written.partition("/")
    rest, _, mode = rest.partition("|")
    source, _, target = rest.partition(">")
    source_node, _, source_handle = source.partition(".")
    target_node, _, target_handle = target.partition(".")
    return Edge(
        id=written,
        source=NodeId(source_node),
        source_handle=source_handle or "output",
        target=NodeId(target_node),
        target_handle=target_handle,
        mode=mode or None,
        path=(part,) if part else (),
    )


def found(tested: Graph) -> list[tuple[str | None, str]]:
    faults = validate(tested, TYPES)
    assert all(fault.message and fault.remedy for fault in faults)
    return [(fault.node, fault.rule) for fault in faults]


def test_a_sound_graph_has_no_faults():
    sound = graph(
        {"a": "one", "b": ("needs", {"y": "z"}), "c": "many", "d": ("tuned", {"model": "m", "temperature": 1})},
        ["$input.n>a.x", "a>b.x", "a>c.xs", "a>c.xs|", "b>d.$when|when", "a>d.$after", "d>$output.output"],
        inputs=(Input(name="n", schema={"type": "integer"}),),
    )

    assert found(sound) == []
    check(sound, TYPES)


RULES: list[tuple[str, Graph, list[tuple[str | None, str]]]] = [
    ("unknown type", graph({"a": "nope"}), [("a", "unknown_type")]),
    ("unknown input by edge", graph({"a": "one", "b": "one"}, ["a>b.z"]), [("b", "unknown_handle")]),
    ("unknown input by constant", graph({"a": ("one", {"z": 1})}), [("a", "unknown_handle")]),
    ("unknown output", graph({"a": "one", "b": "one"}, ["a.z>b.x"]), [("b", "unknown_handle")]),
    ("output of named ones", graph({"a": "halves", "b": "one"}, ["a>b.x"]), [("b", "unknown_handle")]),
    ("open names", graph({"a": "loose", "b": ("loose", {"k": 1})}, ["a.any>b.thing"]), []),
    ("missing input", graph({"a": "needs"}), [("a", "missing_input")]),
    ("missing property", graph({"a": "tuned"}), [("a", "missing_input")]),
    ("doubled by edges", graph({"a": "one", "b": "needs"}, ["a>b.x", "a>b.x|"]), [("b", "doubled_handle")]),
    ("doubled by constant", graph({"a": "one", "b": ("needs", {"x": 1})}, ["a>b.x"]), [("b", "doubled_handle")]),
    ("doubled by modes", graph({"a": "one", "b": "many"}, ["a>b.xs|first", "a>b.xs"]), [("b", "doubled_handle")]),
    ("dangling source", graph({"b": "one"}, ["z>b.x"]), [("b", "dangling_reference")]),
    ("dangling target", graph({"a": "one"}, ["a>z.x"]), [("a", "dangling_reference")]),
    ("dangling input", graph({"b": "one"}, ["$input.n>b.x"]), [("b", "dangling_reference")]),
    ("into the inputs", graph({"a": "one"}, ["a>$input.x"]), [("a", "dangling_reference")]),
    ("out of the outputs", graph({"a": "one"}, ["$output.x>a.x"]), [("a", "dangling_reference")]),
    ("dangling template", graph({"a": ("needs", {"x": {"$ref": "nowhere"}})}), [("a", "dangling_template")]),
    (
        "template of another handle",
        graph({"a": "one", "b": ("needs", {"x": 1, "y": {"$text": [{"$ref": "a>b.x"}]}})}, ["a>b.x"]),
        [("b", "doubled_handle"), ("b", "dangling_template")],
    ),
    (
        "edge without a place",
        graph({"a": "one", "b": ("loose", {"v": [{"$ref": "a>b.v"}]})}, ["a>b.v", "a>b.v|collect"]),
        [("b", "not_a_stream"), ("b", "doubled_handle")],
    ),
    (
        "template that is none",
        graph({"a": ("loose", {"v": {"$text": 3}, "w": {"$ref": 4}})}),
        [("a", "invalid_template")] * 2,
    ),
    ("map inside", graph({"a": ("loose", {"v": [{"$map": [1]}]})}), [("a", "invalid_template")]),
    ("reserved id", graph({"$a": "one"}), [("$a", "reserved_id")]),
    ("empty id", graph({"": "one"}), [("", "reserved_id")]),
    ("reserved input", graph({"a": "one"}, inputs=(Input(name="$n"),)), [(None, "reserved_id")]),
    ("doubled input", graph({"a": "one"}, inputs=(Input(name="n"), Input(name="n"))), [(None, "duplicate_id")]),
    ("self-loop", graph({"a": "one"}, ["a>a.x"]), [("a", "self_loop")]),
    ("no nodes", graph({}), [(None, "no_entry")]),
    (
        "cycle",
        graph({"a": "one", "b": "one"}, ["a>b.x", "b>a.x"]),
        [(None, "no_entry"), (None, "no_exit"), ("a", "cycle")],
    ),
    (
        "behind a cycle",
        graph({"a": "one", "b": "one", "c": "one", "d": "one"}, ["a>b.x", "b>a.x", "b>c.x"]),
        [("a", "cycle"), ("c", "unreachable")],
    ),
    (
        "wrong type",
        graph({"a": "needs", "b": "one"}, ["a>b.x", "b>a.y"]),
        [
            ("a", "missing_input"),
            (None, "no_entry"),
            (None, "no_exit"),
            ("a", "cycle"),
            ("a", "incompatible_types"),
            ("b", "incompatible_types"),
        ],
    ),
    ("wrong type of part", graph({"a": "page", "b": "one"}, ["a>b.x/title"]), [("b", "incompatible_types")]),
    ("unknown part", graph({"a": "page", "b": "one"}, ["a>b.x/titel"]), [("b", "unknown_part")]),
    (
        "wrong item type",
        graph({"a": ("needs", {"x": 1}), "b": "many"}, ["a>b.xs", "a>b.xs|"]),
        [("b", "incompatible_types")] * 2,
    ),
    (
        "wrong input type",
        graph({"b": "one"}, ["$input.n>b.x"], inputs=(Input(name="n", schema={"type": "string"}),)),
        [("b", "incompatible_types")],
    ),
    (
        "wrong items of input",
        graph(
            {"b": "one"},
            ["$input.n>b.x|map"],
            inputs=(Input(name="n", schema={"type": "array", "items": {"type": "string"}}),),
        ),
        [("b", "incompatible_types")],
    ),
    (
        "input that is no list",
        graph({"b": "one"}, ["$input.n>b.x|map"], inputs=(Input(name="n", schema={"type": "string"}),)),
        [("b", "incompatible_types")],
    ),
    ("wrong constant", graph({"a": ("one", {"x": "three"})}), [("a", "invalid_property")]),
    ("wrong property", graph({"a": ("tuned", {"model": 3, "temperature": "hot"})}), [("a", "invalid_property")] * 2),
    ("wrong literal", graph({"a": ("one", {"x": {"$value": "three"}})}), [("a", "invalid_property")]),
    ("wrong mapped constant", graph({"a": ("one", {"x": {"$map": ["three"]}})}), [("a", "invalid_property")]),
    ("right mapped constant", graph({"a": ("one", {"x": {"$map": [3]}})}), []),
    ("stream as value", graph({"a": "stream", "b": "one"}, ["a>b.x"]), [("b", "stream_as_value")]),
    ("stream as first", graph({"a": "stream", "b": "one"}, ["a>b.x|first"]), [("b", "stream_as_value")]),
    ("stream as list", graph({"a": "stream", "b": "many"}, ["a>b.xs"]), [("b", "stream_as_value")]),
    (
        "streams as list",
        graph({"a": "stream", "b": "stream", "c": "many"}, ["a>c.xs", "b>c.xs"]),
        [("c", "stream_as_value")] * 2,
    ),
    ("stream as condition", graph({"a": "stream", "b": "one"}, ["a>b.$when|when"]), [("b", "stream_as_value")]),
    ("stream as result", graph({"a": "stream"}, ["a>$output.output"]), [("$output", "stream_as_value")]),
    (
        "stream in a template",
        graph({"a": "stream", "b": ("loose", {"v": [{"$ref": "a>b.v"}]})}, ["a>b.v"]),
        [("b", "stream_as_value")],
    ),
    (
        "mapped result is a stream",
        graph({"a": "stream", "b": "one", "c": "one"}, ["a>b.x|map", "b>c.x"]),
        [("c", "stream_as_value")],
    ),
    ("stream without its mode", graph({"a": "stream", "b": "reader"}, ["a>b.xs"]), [("b", "stream_as_value")]),
    (
        "stream mode for a value",
        graph({"a": "stream", "b": "many"}, ["a>b.xs|stream"]),
        [("b", "stream_as_value")],
    ),
    ("order after a stream", graph({"a": "stream", "b": "one"}, ["a>b.$after"]), []),
    (
        "value for a reader",
        graph({"a": "many", "b": "reader"}, ["a>b.xs"]),
        [("a", "missing_input"), ("b", "not_a_stream")],
    ),
    ("constant for a reader", graph({"b": ("reader", {"xs": [1]})}), [("b", "not_a_stream")]),
    ("collected value", graph({"a": "one", "b": "many"}, ["a>b.xs|collect"]), [("b", "not_a_stream")]),
    ("collected stream", graph({"a": "stream", "b": "many"}, ["a>b.xs|collect"]), []),
    (
        "collected stream of others",
        graph({"a": ("needs", {"x": {"$map": [1]}}), "b": "many"}, ["a>b.xs|collect"]),
        [("b", "incompatible_types")],
    ),
    ("read stream", graph({"a": "stream", "b": "reader"}, ["a>b.xs|stream"]), []),
    ("mapped value", graph({"a": "one", "b": "one"}, ["a>b.x|map"]), [("b", "incompatible_types")]),
    ("mapped list", graph({"a": ("many", {"xs": [1]}), "b": "one"}, ["a>b.x|map"]), []),
    ("aligned streams", graph({"a": "stream", "b": "one", "c": "two"}, ["a>b.x|map", "a>c.x|map", "b>c.y|map"]), []),
    ("one list twice", graph({"a": ("many", {"xs": [1]}), "c": "two"}, ["a>c.x|map", "a>c.y|map"]), []),
    (
        "unaligned streams",
        graph({"a": "stream", "b": "stream", "c": "two"}, ["a>c.x|map", "b>c.y|map"]),
        [("c", "unaligned_join")],
    ),
    (
        "a stream and what has lost its order",
        graph({"a": "stream", "b": "hasty", "c": "two"}, ["a>b.x|map", "a>c.x|map", "b.left>c.y|map"]),
        [("c", "unaligned_join")],
    ),
    (
        "what has lost its order, twice",
        graph({"a": "stream", "b": "hasty", "c": "two"}, ["a>b.x|map", "b.left>c.x|map", "b.left>c.y|map"]),
        [],
    ),
    ("one handle twice", graph({"a": "streams", "c": "two"}, ["a.left>c.x|map", "a.left>c.y|map"]), []),
    (
        "two handles of a generator",
        graph({"a": "streams", "c": "two"}, ["a.left>c.x|map", "a.right>c.y|map"]),
        [("c", "unaligned_join"), ("c", "incompatible_types")],
    ),
    ("unaligned lists", graph({"c": ("two", {"x": {"$map": [1]}, "y": {"$map": [1]}})}), [("c", "unaligned_join")]),
    (
        "generator of a generator",
        graph({"a": "stream", "b": "stream", "c": "two"}, ["a>b.n|map", "a>c.x|map", "b>c.y|map"]),
        [("c", "unaligned_join")],
    ),
    (
        "mode of a condition",
        graph({"a": "one", "b": "one"}, ["a>b.x|when", "a>b.$when"]),
        [("b", "misplaced_mode")] * 2,
    ),
    ("mode of an order", graph({"a": "stream", "b": "one"}, ["a>b.$after|map"]), [("b", "misplaced_mode")]),
    ("mode of a result", graph({"a": ("many", {"xs": []})}, ["a>$output.x|map"]), [("$output", "misplaced_mode")]),
    ("mode of a reader", graph({"a": "stream", "b": "reader"}, ["a>b.xs|map"]), [("b", "misplaced_mode")]),
    ("results", graph({"a": "one"}, ["a>$output.x", "a>$output.x|"], outputs={"y": 3}), []),
    (
        "result that dangles",
        graph({"a": "one"}, [], outputs={"y": [{"$ref": "a>b"}]}),
        [("$output", "dangling_template")],
    ),
]


@pytest.mark.parametrize(("tested", "expected"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_each_rule(tested: Graph, expected: list[tuple[str | None, str]]):
    assert sorted(found(tested), key=str) == sorted(expected, key=str)


def test_a_join_that_is_declared_is_no_fault():
    joined = graph({"a": "stream", "b": "stream"}, ["a>c.x|map", "b>c.y|map"])
    joined = Graph(name="g", nodes=(*joined.nodes, Node(id=NodeId("c"), type="two", join="zip")), edges=joined.edges)

    assert found(joined) == []


@pytest.mark.parametrize(("join", "faults"), [("zip", []), ("latest", ["c"]), (None, ["c"])])
def test_leftovers_are_only_dropped_by_a_zip(join: Any, faults: list[str]):
    mapped = graph({"a": "stream"}, ["a>c.x|map", "a>c.y|map"])
    dropping = Node(id=NodeId("c"), type="two", join=join, leftovers="drop")

    wrong = validate(Graph(name="g", nodes=(*mapped.nodes, dropping), edges=mapped.edges), TYPES)

    assert [(fault.node, fault.rule) for fault in wrong] == [(node, "unaligned_join") for node in faults]


def test_duplicate_ids_are_found():
    twin = Node(id=NodeId("a"), type="one")
    line = edge("a>b.x")
    doubled = Graph(name="g", nodes=(twin, twin, Node(id=NodeId("b"), type="many")), edges=(line, edge("a>b.xs"), line))

    assert ("a", "duplicate_id") in found(doubled)
    assert ("b", "duplicate_id") in found(doubled)


def test_ten_different_faults_are_all_listed():
    broken = graph(
        {
            "$reserved": "one",
            "unknown": "nope",
            "missing": "needs",
            "constant": ("one", {"x": "three"}),
            "loop": "one",
            "x": "one",
            "y": "one",
            "typed": "needs",
            "streamed": "stream",
            "reads": "one",
        },
        ["loop>loop.x", "x>y.x", "y>x.x", "ghost>y.x", "typed>reads.x", "streamed>typed.x", "x>reads.z"],
    )

    with pytest.raises(InvalidGraph) as caught:
        check(broken, TYPES)

    rules = {fault.rule for fault in caught.value.faults}
    assert rules >= {
        "reserved_id",
        "unknown_type",
        "missing_input",
        "invalid_property",
        "self_loop",
        "cycle",
        "dangling_reference",
        "doubled_handle",
        "incompatible_types",
        "stream_as_value",
        "unknown_handle",
    }
    assert all(fault.message in str(caught.value) for fault in caught.value.faults)


def test_two_outputs_of_a_generator_are_told_to_be_streams_of_their_own():
    zipped = graph({"a": "streams", "b": "one", "c": "two"}, ["a.left>b.x|map", "b>c.x|map", "a.right>c.y|map"])

    messages = [fault.message for fault in validate(zipped, TYPES) if fault.rule == "unaligned_join"]

    assert messages == [
        "Node 'c' maps over streams that do not come from one source item by item: 'left' and 'right' of 'a' are streams of "
        "their own, because a generator may leave one of them out."
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("streem", "stream"), ("elsewhere.tuned", "tuned"), ("nothing_like_it", None)],
)
def test_a_type_that_is_not_there_is_guessed_at(written: str, meant: str | None):
    (message,) = [fault.message for fault in validate(graph({"a": written}), TYPES) if fault.rule == "unknown_type"]

    guess = "" if meant is None else f" (did you mean {meant!r}?)"
    assert message == f"Node 'a' is of type {written!r}, which is not declared here{guess}."


def test_only_some_types_of_very_many_are_guessed_at():
    many = graph({f"n{number}": f"streem{number}" for number in range(100)} | {"last": "streem0"})

    messages = [fault.message for fault in validate(many, TYPES) if fault.rule == "unknown_type"]

    assert len(messages) == 101
    assert sum("did you mean 'stream'?" in message for message in messages) == 51
    assert "did you mean" in messages[-1]  # it was guessed at before


def test_a_cycle_is_printed_as_a_path():
    ring = graph({"a": "one", "b": "one", "c": "one", "d": "one"}, ["a>b.x", "b>c.x", "c>b.x", "c>d.x"])

    messages = [fault.message for fault in validate(ring, TYPES) if fault.rule == "cycle"]

    assert messages == ["These nodes wait for each other: b → c → b."]


def test_a_long_cycle_is_not_printed_whole():
    names = [f"n{number}" for number in range(1000)]
    ring = graph(
        dict.fromkeys(names, "one"), [f"{a}>{b}.x" for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    )

    messages = [fault.message for fault in validate(ring, TYPES) if fault.rule == "cycle"]

    assert len(messages) == 1
    assert "… (988 more)" in messages[0]
    assert len(messages[0]) < 300


def test_every_knot_is_a_fault_of_its_own():
    knots = graph(
        {"a": "one", "b": "one", "c": "many", "d": "many"}, ["a>b.x", "b>a.x", "b>c.xs", "c>d.xs", "d>c.xs|collect"]
    )

    assert [node for node, rule in found(knots) if rule == "cycle"] == ["a", "c"]


def test_a_message_with_very_many_faults_stays_short():
    with pytest.raises(InvalidGraph) as caught:
        check(graph({f"n{number}": "nope" for number in range(500)}), TYPES)

    assert len(caught.value.faults) == 500
    assert "and 450 more" in str(caught.value)


def test_a_deep_constant_does_not_recurse():
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]

    assert ("a", "invalid_template") in found(graph({"a": ("loose", {"v": {"x": deep}})}))


@given(st.data())
def test_nothing_in_a_graph_makes_validation_fail(data: st.DataObject):
    names = st.sampled_from(["a", "b", "c", "$input", "$output", "", "ghost"])
    handles = st.sampled_from(["x", "y", "xs", "output", "left", "$when", "$after", "", "nope"])
    modes = st.sampled_from([None, "map", "collect", "stream", "first", "when", "unless"])
    values = st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["e0", "e1"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["$ref", "$text", "$map", "$value", "k"]), inner, max_size=2)
        ),
        max_leaves=6,
    )
    nodes = data.draw(
        st.lists(
            st.builds(
                Node,
                id=names.map(NodeId),
                type=st.sampled_from([*TYPES, "nope"]),
                data=st.dictionaries(handles, values, max_size=3),
                join=st.sampled_from([None, "zip"]),
            ),
            max_size=5,
        )
    )
    edges = data.draw(
        st.lists(
            st.builds(
                Edge,
                id=st.sampled_from(["e0", "e1", "e2", "e3"]),
                source=names.map(NodeId),
                source_handle=handles,
                target=names.map(NodeId),
                target_handle=handles,
                mode=modes,
                path=st.lists(st.sampled_from(["title", 0, -1, "k"]), max_size=2).map(tuple),
            ),
            max_size=8,
        )
    )

    validate(Graph(name="g", nodes=tuple(nodes), edges=tuple(edges), inputs=(Input(name="x"),)), TYPES)


@pytest.mark.slow
def test_a_hundred_thousand_nodes_take_seconds():
    count = 100_000
    nodes = tuple(Node(id=NodeId(f"n{number}"), type="two", data={}) for number in range(count))
    edges = [
        Edge(id=f"{n}a", source=NodeId(f"n{n - 1}"), target=NodeId(f"n{n}"), target_handle="x") for n in range(1, count)
    ]
    edges += [
        Edge(id=f"{n}b", source=NodeId(f"n{n // 2}"), target=NodeId(f"n{n}"), target_handle="y")
        for n in range(1, count)
    ]
    first = Node(id=NodeId("n0"), type="two", data={"x": 1, "y": 2})
    large = Graph(name="large", nodes=(first, *nodes[1:]), edges=tuple(edges))

    started = time.process_time()
    faults = validate(large, TYPES)
    elapsed = time.process_time() - started

    assert faults == ()
    assert elapsed < 5
