"""Workflows that start runs of others: what may be written, and what is wrong with what may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Stream, collect, inbox, node, workflow
from perdure.errors import GraphError, InvalidCall, InvalidGraph, MisusedRef
from perdure.graph.forms import graph_from_json
from perdure.graph.plan import compile_plan
from perdure.graph.registry import declared_types
from perdure.graph.starts import started_by
from perdure.graph.validate import Fault, validate
from perdure.graph.writing import graph_to_json
from perdure.ids import NodeId


@node
def starts_body(number: int, who: str, tags: list[str]) -> str:
    return f"{who} {number} {tags}"


@workflow
def starts_report(number: int, who: str = "nobody", tags: list[str] = []) -> str:  # noqa: B006 -- traced, never called
    return starts_body(number, who, tags)


@workflow
def starts_two(left: int, right: int) -> int:
    return left


@workflow
def starts_defaults(left: int = 1) -> int:
    return left


@workflow
def starts_nothing() -> int:
    return 1


@workflow
def starts_itself_named(workflow: str) -> str:
    return workflow


@workflow
def starts_fed(words: Stream[str], x: int) -> list[str]:
    return collect(words)


def traced(body: Any) -> Any:
    """Return the graph of a workflow with this body."""
    body.__name__ = "starts_traced"
    return workflow(body).graph


def test_the_call_is_a_mapped_node_whose_handles_are_the_inputs() -> None:
    graph = traced(lambda: collect(starts_report.start_each(inbox(int), who="Ada")))

    started = graph.nodes[1]
    assert (started.id, started.type) == ("starts_report", "perdure.start")
    assert started.data == {"workflow": "starts_report", "who": "Ada"}
    (edge,) = (edge for edge in graph.edges if edge.target == started.id)
    assert (edge.target_handle, edge.mode) == ("number", "map")
    assert started_by(graph) == ["starts_report"]
    assert graph_from_json(graph_to_json(graph)) == graph
    plan = compile_plan(graph, declared_types()).nodes[NodeId("starts_report")]
    assert plan.optional == {"who", "tags"}


def test_it_is_called_after_the_workflow_or_as_one_says() -> None:
    def body() -> dict[str, Any]:
        numbers = inbox(int)
        first, second = starts_report.start_each(numbers), starts_report.start_each(numbers)
        return {"a": collect(first), "b": collect(second), "c": collect(starts_report.named("daily").start_each([1]))}

    assert [node.id for node in traced(body).nodes] == ["inbox", "starts_report", "starts_report_2", "daily"]


def test_it_takes_lists_streams_and_values_of_the_run() -> None:
    @workflow
    def starts_from_values(name: str) -> list[str]:
        return collect(starts_two.start_each([1, 2], into="right", left=starts_length(name)))

    assert [edge.target_handle for edge in starts_from_values.graph.edges if edge.target == "starts_two"] == ["left"]


@node
def starts_words() -> Iterator[str]:
    yield "one"


@node
def starts_length(name: str) -> int:
    return len(name)


@pytest.mark.parametrize(
    ("body", "error", "what"),
    [
        (lambda: starts_two.start_each([1]), InvalidCall, "which of 'left', 'right' gets the items"),
        (lambda: starts_two.start_each([1], into="left"), InvalidCall, "'right' is missing"),
        (lambda: starts_two.start_each([1], into="left", left=1, right=2), InvalidCall, "'left' is given twice"),
        (lambda: starts_two.start_each([1], into="middle", left=1, right=2), InvalidCall, "no input 'middle'"),
        (lambda: starts_report.start_each([1], whom="Ada"), InvalidCall, r"no input 'whom' \(did you mean 'who'"),
        (lambda: starts_defaults.start_each([1]), InvalidCall, "none of its inputs needs a value"),
        (lambda: starts_nothing.start_each([1]), InvalidCall, "it has no inputs"),
        (lambda: starts_itself_named.start_each(["a"]), GraphError, "an input called 'workflow'"),
        (lambda: starts_report.named("$x").start_each([1]), GraphError, "cannot be the id of a node"),
        (lambda: starts_report.start_each("text"), MisusedRef, "maps over a stream or a list"),
        (lambda: starts_report(1), InvalidCall, r"starts_report\.start_each\(items\)"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(body: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        traced(body)


def test_outside_a_workflow_it_means_nothing() -> None:
    with pytest.raises(MisusedRef, match=r"starts_report\.start_each only means something inside a @workflow"):
        starts_report.start_each([1])


def test_of_two_workflows_of_one_name_only_the_last_can_be_started() -> None:
    earlier = workflow(name="starts_twice")(lambda x: x)
    later = workflow(name="starts_twice")(lambda x: x)

    with pytest.raises(GraphError, match="two workflows called 'starts_twice'"):
        traced(lambda: collect(earlier.start_each([1])))
    assert traced(lambda: collect(later.start_each([1]))).nodes[0].id == "starts_twice"


@pytest.mark.parametrize(
    ("body", "rule", "what"),
    [
        (lambda: collect(starts_report.start_each(starts_words())), "incompatible_types", "takes int, but gets"),
        (lambda: collect(starts_report.start_each(["one"])), "invalid_property", "'number'"),
        (lambda: collect(starts_report.start_each([1], who=7)), "invalid_property", "'who'"),
        (lambda: collect(starts_report.start_each([1], who=starts_length("x"))), "incompatible_types", "takes str"),
        (lambda: starts_report.start_each([1]), "stream_as_value", "wants one value"),
    ],
)
def test_what_it_is_given_is_checked_as_for_any_node(body: Any, rule: str, what: str) -> None:
    with pytest.raises(InvalidGraph) as refused:
        traced(body)

    assert [fault.rule for fault in refused.value.faults] == [rule]
    assert what in refused.value.faults[0].message


def faults_of(data: dict[str, Any], **edge: Any) -> list[Fault]:
    source = {"id": "orders", "type": "perdure.inbox", "data": {"schema": {"type": "integer"}}}
    start = {"id": "begin", "type": "perdure.start", "data": data}
    edges = [{"source": "orders", "target": "begin", "mode": "map", **edge}] if edge else []
    return list(validate(graph_from_json({"name": "d", "nodes": [source, start], "edges": edges}), declared_types()))


def test_a_document_may_start_runs() -> None:
    assert faults_of({"workflow": "starts_report", "who": "Ada"}, targetHandle="number") == []
    assert faults_of({"workflow": "starts_report", "number": 3}) == []
    assert faults_of({"workflow": "starts_fed", "words": ["a"]}, targetHandle="x") == []


@pytest.mark.parametrize(
    ("data", "handle", "rule", "what"),
    [
        ({"workflow": "starts_reprot"}, "number", "unknown_workflow", "starts workflow 'starts_reprot'"),
        ({}, "number", "unknown_workflow", "does not name the workflow"),
        ({"workflow": 7}, "number", "unknown_workflow", "does not name the workflow"),
        ({"workflow": "starts_itself_named"}, "number", "unknown_workflow", "the input needs another name"),
        ({"workflow": "starts_report"}, "numbre", "missing_input", "Nothing feeds 'number'"),
        ({"workflow": "starts_report", "whom": "Ada"}, "number", "unknown_handle", "did you mean 'who'?"),
        ({"workflow": "starts_report", "who": 7}, "number", "invalid_property", "'who'"),
    ],
)
def test_what_is_wrong_with_a_document_is_told_with_the_node(
    data: dict[str, Any], handle: str, rule: str, what: str
) -> None:
    fault = faults_of(data, targetHandle=handle)[0]

    assert (fault.node, fault.rule) == ("begin", rule)
    assert what in fault.message
