"""Tracing: what calls become, and what cannot be done with a value that does not exist yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from perdure.errors import GraphError, InvalidCall, InvalidGraph, MisusedRef, WorkflowRaised
from perdure.graph.declare import Outputs, Stream, Workflow, node, workflow
from perdure.graph.model import Edge, Graph, Node
from perdure.graph.trace import after, collect, first, stage, text, unless, when
from perdure.ids import NodeId


@dataclasses.dataclass
class Page:
    title: str
    words: list[str]


class Halves(Outputs):
    left: list[int]
    right: list[int]


@node
def fetch(url: str, depth: int = 1) -> Page:
    return Page(url, [])


@node
def shout(words: str) -> str:
    return words.upper()


@node
def join(parts: list[str], sep: str = " ") -> str:
    return sep.join(parts)


@node
def anything(value: Any = None, **others: Any) -> Any:
    return value


@node
def items(upto: int) -> Iterator[int]:
    yield from range(upto)


@node
def add(x: int, y: int = 0) -> int:
    return x + y


@node
def total(xs: list[int]) -> int:
    return sum(xs)


@node
async def windows(xs: Stream[int]) -> int:
    return 0


@node
def halve(xs: list[int]) -> Halves:
    return Halves(left=xs, right=xs)


@node
def split(x: int) -> Outputs:
    return Outputs(a=x)


@node
def is_good(x: Any) -> bool:
    return True


@node
def moment(at: datetime) -> str:
    return at.isoformat()


def traced(body: Callable[..., Any]) -> Graph:
    return cast("Workflow[..., Any]", workflow(name="w")(body)).graph


def edge(source: str, target: str, **fields: Any) -> Edge:
    source_node, _, source_handle = source.partition(".")
    target_node, _, target_handle = target.partition(".")
    handle = source_handle or "output"
    return Edge(
        id=fields.pop("id", f"{source_node}.{handle}>{target_node}.{target_handle}"),
        source=NodeId(source_node),
        source_handle=handle,
        target=NodeId(target_node),
        target_handle=target_handle,
        **fields,
    )


def test_calls_become_nodes_and_arguments_edges():
    def body(url: str) -> str:
        return shout(fetch(url, depth=3).title)

    graph = traced(body)

    assert graph.nodes == (
        Node(id=NodeId("fetch"), type=fetch.name, data={"depth": 3}),
        Node(id=NodeId("shout"), type=shout.name),
    )
    assert graph.edges == (
        edge("$input.url", "fetch.url"),
        edge("fetch", "shout.words", path=("title",)),
        edge("shout", "$output.output"),
    )


def test_nodes_are_named_after_their_functions_and_numbered():
    def body() -> list[str]:
        return [shout("a"), shout.named("shout_2")("b"), shout("c"), shout.named("last")("d"), shout("e")]

    assert [made.id for made in traced(body).nodes] == ["shout", "shout_2", "shout_3", "last", "shout_4"]


def test_a_chosen_id_does_not_stick_to_the_type():
    @workflow(name="w")
    def chosen() -> str:
        return shout.named("a").options(stage="s")("x")

    assert chosen.types[shout.name] is shout
    assert shout.node_id is None


@pytest.mark.parametrize("node_id", ["", "$input", 3, None])
def test_ids_that_are_none_are_refused(node_id: Any):
    with pytest.raises(GraphError, match="cannot be the id of a node"):
        shout.named(node_id)


def test_an_id_is_taken_only_once():
    def body() -> list[str]:
        return [shout.named("a")("x"), shout.named("a")("y")]

    with pytest.raises(GraphError, match="both called 'a'"):
        traced(body)


def test_parts_become_paths():
    def body(rows: list[dict[str, Any]]) -> Any:
        return anything(rows[0]["name"]["first-name"][-1])

    assert traced(body).edges[0].path == (0, "name", "first-name", -1)


def test_a_list_of_values_becomes_several_edges():
    def body() -> str:
        return join([shout("a"), shout("b"), shout("c")])

    graph = traced(body)

    assert graph.nodes[-1].data == {}
    assert [(made.source, made.target_handle) for made in graph.edges if made.target == "join"] == [
        ("shout", "parts"),
        ("shout_2", "parts"),
        ("shout_3", "parts"),
    ]


def test_the_same_value_twice_gives_numbered_edges():
    def body() -> str:
        a = shout("a")
        return join([a, a, a])

    assert [made.id for made in traced(body).edges][:3] == [
        "shout.output>join.parts",
        "shout.output>join.parts#2",
        "shout.output>join.parts#3",
    ]


def test_a_list_of_one_stays_a_list():
    def body() -> str:
        return join([shout("a")])

    assert traced(body).nodes[-1].data == {"parts": [{"$ref": "shout.output>join.parts"}]}


def test_values_inside_structures_become_templates():
    def body(url: str) -> Any:
        page = fetch(url)
        return anything({"page": page, "sizes": [1, page.words, None], "fixed": (1, 2)})

    graph = traced(body)

    assert graph.nodes[-1].data == {
        "value": {
            "page": {"$ref": "fetch.output>anything.value"},
            "sizes": [1, {"$ref": "fetch.output>anything.value#2"}, None],
            "fixed": [1, 2],
        }
    }


def test_what_looks_like_a_template_is_written_literally():
    def body() -> Any:
        return [
            anything({"$ref": "#/definitions/x"}),
            anything({"schema": {"$text": 1}}),
            anything([{"$ref": "x"}, shout("a")]),
            anything({"$ref": 1, "title": "two keys"}),
        ]

    values = [made.data.get("value") for made in traced(body).nodes if made.type == anything.name]

    assert values == [
        {"$value": {"$ref": "#/definitions/x"}},
        {"$value": {"schema": {"$text": 1}}},
        [{"$value": {"$ref": "x"}}, {"$ref": "shout.output>anything_3.value"}],
        {"$ref": 1, "title": "two keys"},
    ]


def test_constants_are_written_in_their_json_form():
    def body() -> str:
        return moment(datetime(2024, 1, 1, tzinfo=UTC))

    assert traced(body).nodes[0].data == {"at": "2024-01-01T00:00:00Z"}


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), 2**70, b"x", lambda: 1, "\udfff"])
def test_constants_without_a_json_form_are_refused(value: Any):
    def body() -> Any:
        return anything(value)

    with pytest.raises(
        GraphError, match=r"'value' of node 'anything'.*cannot be written into a graph.*test_trace\.py:"
    ):
        traced(body)


@pytest.mark.parametrize("is_returned", [False, True])
def test_a_node_type_that_was_not_called_is_named_with_the_place(is_returned: bool):
    def body() -> Any:
        return fetch if is_returned else anything(fetch)

    with pytest.raises(GraphError, match=r"got fetch itself.*test_trace\.py:\d+\)\. Call it: fetch\(…\)"):
        traced(body)


def test_structures_without_end_are_refused():
    def body(x: int) -> Any:
        circle: list[Any] = [x]
        circle.append(circle)
        return anything(circle)

    with pytest.raises(GraphError, match="deeper than 100"):
        traced(body)


def test_texts_are_joined():
    def body(name: str) -> str:
        greeting = text("Hello ", name, "!")
        return shout(text(greeting, " Again: ", "and ", "again"))

    graph = traced(body)

    assert graph.nodes[0].data == {
        "words": {"$text": ["Hello ", {"$ref": "$input.name>shout.words"}, "! Again: and again"]}
    }


def test_a_text_without_values_is_a_constant():
    def body() -> str:
        return shout(text("a", "b"))

    assert traced(body).nodes[0].data == {"words": "ab"}


def test_streams_are_traced():
    def body(n: int) -> dict[str, Any]:
        stream = items(n)
        return {
            "mapped": collect(add.map(stream, y=5)),
            "zipped": collect(add.map(stream, add.map(stream))),
            "joined": collect(add.map(stream, items(3), join="latest")),
            "whole": windows(stream),
            "summed": total(collect(stream)),
        }

    graph = traced(body)
    modes = {(made.source, made.target, made.target_handle): made.mode for made in graph.edges}

    assert modes[NodeId("items"), NodeId("add"), "x"] == "map"
    assert modes[NodeId("add"), NodeId("$output"), "mapped"] == "collect"
    assert modes[NodeId("items"), NodeId("windows"), "xs"] == "stream"
    assert modes[NodeId("items"), NodeId("total"), "xs"] == "collect"
    assert graph.nodes[1].data == {"y": 5}
    assert [made.join for made in graph.nodes if made.join] == ["latest"]


def test_lists_can_be_mapped_too():
    def body(numbers: list[int]) -> dict[str, Any]:
        return {
            "given": collect(add.map(numbers)),
            "constant": collect(add.map([1, 2])),
            "range": collect(add.map(range(2))),
            "mixed": collect(add.map([1, total(numbers)])),
        }

    graph = traced(body)
    data = {made.id: made.data for made in graph.nodes}

    assert data[NodeId("add_2")] == data[NodeId("add_3")] | {"x": {"$map": [1, 2]}}
    assert data[NodeId("add_3")] == {"x": {"$map": [0, 1]}}
    assert data[NodeId("add_4")] == {"x": {"$map": [1, {"$ref": "total.output>add_4.x"}]}}


def test_a_stream_for_one_value_is_refused_with_the_three_choices():
    def body(n: int) -> int:
        return add(items(n))

    with pytest.raises(InvalidGraph, match=r"f\.map\(xs\).*collect\(xs\).*Stream\[T\]"):
        traced(body)


def test_wrong_uses_of_streams_are_refused():
    def map_text() -> Any:
        return collect(shout.map("abc"))

    def map_stream_parameter(n: int) -> Any:
        return collect(windows.map([items(n)]))

    def collect_constant() -> Any:
        return collect([1])

    def map_collected(n: int) -> Any:
        return collect(add.map(collect(items(n))))

    def part_of_collected(n: int) -> Any:
        return add(collect(items(n))[0])

    def wrong_join(n: int) -> Any:
        return collect(add.map(items(n), items(n), join="glue"))

    def wrong_leftovers(n: int) -> Any:
        return collect(add.map(items(n), items(n), join="zip", leftovers="eat"))

    def leftovers_of_no_zip(n: int) -> Any:
        return collect(add.map(items(n), items(n), join="latest", leftovers="drop"))

    mapping = (map_text, map_stream_parameter, map_collected, wrong_join, wrong_leftovers, leftovers_of_no_zip)
    for body in (*mapping, collect_constant, part_of_collected):
        with pytest.raises(GraphError, match=r"test_trace\.py:"):
            traced(body)


def test_named_outputs_are_chosen_by_name():
    def body(xs: list[int]) -> dict[str, Any]:
        halves = halve(xs)
        return {"a": total(halves.left), "b": total(halves["right"]), "c": add(split(1).anything)}

    graph = traced(body)

    assert {made.source_handle for made in graph.edges if made.source == "halve"} == {"left", "right"}
    assert [made.source_handle for made in graph.edges if made.source == "split"] == ["anything"]


def test_all_outputs_at_once_are_refused():
    def whole(xs: list[int]) -> Any:
        return total(halve(xs))

    def wrong(xs: list[int]) -> Any:
        return total(halve(xs).middle)

    with pytest.raises(MisusedRef, match="Choose one of them: left, right"):
        traced(whole)
    with pytest.raises(MisusedRef, match="has no output 'middle'"):
        traced(wrong)


def test_conditions_are_edges_and_nest():
    def body(x: int) -> Any:
        good, bad = is_good(x), is_good(x)
        with when(good), unless(bad):
            inner = add(x)
        with unless(good):
            other = add(x)
        return first(inner, other)

    graph = traced(body)
    conditions = [(made.source, made.target, made.mode) for made in graph.edges if made.target_handle == "$when"]

    assert conditions == [("is_good", "add", "when"), ("is_good_2", "add", "unless"), ("is_good", "add_2", "unless")]
    assert [(made.source, made.mode) for made in graph.edges if made.target == "$output"] == [
        ("add", "first"),
        ("add_2", "first"),
    ]


def test_order_and_stages():
    def body(x: int) -> Any:
        before, halves = add(x), halve([1])
        with stage("one"), after(before, halves):
            a = add(1)
            with stage("two"):
                b = add(2)
                c = add.options(stage="three")(3)
        return [a, b, c, add(4)]

    graph = traced(body)

    assert [made.stage for made in graph.nodes] == [None, None, "one", "two", "three", None]
    assert [(made.source, made.source_handle) for made in graph.edges if made.target == "add_2"] == [
        ("add", "output"),
        ("halve", "left"),
    ]
    assert {made.target_handle for made in graph.edges if made.target == "add_2"} == {"$after"}


def test_scopes_end_when_an_error_leaves_them():
    def body(x: int) -> Any:
        try:
            with when(is_good(x)):
                raise KeyError
        except KeyError:
            return add(x)

    assert not [made for made in traced(body).edges if made.target_handle == "$when"]


@pytest.mark.parametrize(
    ("returned", "outputs", "handles"),
    [
        (lambda a, b: a, {}, ["output"]),
        (lambda a, b: [a, b], {}, ["output", "output"]),
        (lambda a, b: (a, b), {}, ["output", "output"]),
        (lambda a, b: [a], {"output": [{"$ref": "add.output>$output.output"}]}, ["output"]),
        (lambda a, b: {"x": a, "y": b}, {}, ["x", "y"]),
        (lambda a, b: Outputs(x=a, y=[a, b]), {}, ["x", "y", "y"]),
        (lambda a, b: {"x": a, "y": 3}, {"y": 3}, ["x"]),
        (lambda a, b: {"output": a}, {"output": {"output": {"$ref": "add.output>$output.output"}}}, ["output"]),
        (lambda a, b: {"x": {"deep": b}}, {"x": {"deep": {"$ref": "add_2.output>$output.x"}}}, ["x"]),
        (lambda a, b: None, {}, []),
        (lambda a, b: 3, {"output": 3}, []),
        (lambda a, b: {}, {"output": {}}, []),
        (lambda a, b: halve([1]), {}, ["left", "right"]),
    ],
)
def test_what_a_workflow_returns(returned: Callable[..., Any], outputs: dict[str, Any], handles: list[str]):
    def body() -> Any:
        return returned(add(1), add(2))

    graph = traced(body)

    assert graph.outputs == outputs
    assert [made.target_handle for made in graph.edges if made.target == "$output"] == handles


@pytest.mark.parametrize(
    "returned", [lambda a: {1: a}, lambda a: {"$x": a}, lambda a: {"": a}, lambda a: object(), lambda a: split(1)]
)
def test_what_a_workflow_cannot_return(returned: Callable[..., Any]):
    def body() -> Any:
        return returned(add(1))

    with pytest.raises(GraphError):
        traced(body)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: add(), "'x' is missing"),
        (lambda: add(1, 2, 3), "takes 2 values by position, not 3"),
        (lambda: add(1, x=2), "'x' is given twice"),
        (lambda: add(1, z=2), "no input 'z'"),
        (lambda: fetch("a", dept=2), "did you mean 'depth'"),
        (lambda: add.map(), "items"),
        (lambda: add.map([1], [2], [3], join="zip"), "takes 2 values by position"),
        (lambda: add.map([1], x=2), "'x' is given twice"),
        (lambda: add.map(3), "of type int"),
    ],
)
def test_wrong_calls_are_refused(call: Callable[[], Any], words: str):
    def body() -> Any:
        return call()

    with pytest.raises(GraphError, match=words):
        traced(body)


def test_every_mistake_in_a_call_is_named():
    def body() -> Any:
        return fetch(1, 2, 3, url=3, nope=2)

    with pytest.raises(InvalidCall) as caught:
        traced(body)

    assert len(caught.value.problems) == 3
    assert "test_trace.py:" in caught.value.place


def test_values_stay_in_their_workflow():
    kept: list[Any] = []

    def outer(x: int) -> Any:
        kept.append(add(x))
        return kept[0]

    def other(x: int) -> Any:
        return add(kept[0])

    traced(outer)
    with pytest.raises(MisusedRef, match="belongs to another tracing, of workflow 'w'"):
        traced(other)


def test_tracing_one_workflow_inside_another_keeps_them_apart():
    @workflow
    def inner(x: int) -> int:
        return add(x)

    def outer(x: int) -> Any:
        assert len(inner.graph.nodes) == 1
        return anything(x)

    assert [made.id for made in traced(outer).nodes] == ["anything"]


@pytest.mark.parametrize(
    "use", [lambda: when(1), lambda: collect([1]), lambda: first(1), lambda: stage("a"), lambda: text()]
)
def test_words_of_workflows_mean_nothing_outside(use: Callable[[], Any]):
    with pytest.raises(MisusedRef, match="inside a @workflow"):
        use()


@pytest.mark.parametrize(
    "use",
    [
        lambda x: when(True),
        lambda x: when(first(x, x)),
        lambda x: after(x),
        lambda x: after(3),
        lambda x: first(x, 3),
        lambda x: first(),
        lambda x: anything([first(x, x), 1]),
        lambda x: text("a", 3),
        lambda x: stage(""),
        lambda x: text("a", x).title,
    ],
)
def test_words_of_workflows_used_wrongly(use: Callable[[Any], Any]):
    def body(x: Any) -> Any:
        use(x)
        return anything(x)

    with pytest.raises(GraphError, match=r"test_trace\.py:"):
        traced(body)


def test_alternatives_can_be_taken_apart_and_nested():
    def body(a: Any, b: Any, c: Any) -> Any:
        return anything(first(first(a, b), c).title)

    assert [(made.source_handle, made.path, made.mode) for made in traced(body).edges[:3]] == [
        ("a", ("title",), "first"),
        ("b", ("title",), "first"),
        ("c", ("title",), "first"),
    ]


def test_two_types_of_one_name_are_told_apart():
    def make(result: int) -> Any:
        @node(name="demo.twin")
        def twin() -> int:
            return result

        return twin

    one, two = make(1), make(2)

    def body() -> Any:
        return [one(), two()]

    with pytest.raises(GraphError, match=r"both called 'demo\.twin'"):
        traced(body)


def test_open_inputs_take_any_name():
    def body(x: int) -> Any:
        return anything(1, more=add(x), fixed=2)

    graph = traced(body)

    assert graph.nodes[-1].data == {"value": 1, "fixed": 2}
    assert [made.target_handle for made in graph.edges if made.target == "anything"] == ["more"]


def test_errors_in_a_body_come_through_with_their_place():
    def body() -> Any:
        raise ZeroDivisionError

    with pytest.raises(
        WorkflowRaised, match=r"raised ZeroDivisionError \(.*test_trace\.py:\d+\):\n    raise Zero"
    ) as caught:
        traced(body)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert add(1) == 1
