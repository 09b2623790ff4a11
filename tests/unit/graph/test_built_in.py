"""Node types that come with perdure: graphs that are only documents use them, and are told what is wrong with how they do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Tick, Trigger, TriggerInput, collect, node, schedule, workflow
from perdure.errors import GraphError, InvalidGraph
from perdure.graph.forms import graph_from_json
from perdure.graph.model import BUILT_IN
from perdure.graph.registry import KnownTypes, declared_types
from perdure.graph.validate import Fault, validate


def faults_of(node_type: str, data: dict[str, Any], *edges: dict[str, Any]) -> tuple[Fault, ...]:
    outside = {"id": "outside", "type": node_type, "data": data}
    document = {"name": "built_in", "inputs": [{"name": "given"}], "nodes": [outside], "edges": list(edges)}
    return validate(graph_from_json(document), declared_types())


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_type_that_comes_with_perdure_is_there_unasked(name: str) -> None:
    assert name in declared_types()
    assert declared_types()[name].name == name
    assert KnownTypes({})[name] is declared_types()[name]


@pytest.mark.parametrize(
    ("node_type", "data"),
    [
        ("perdure.schedule", {"cron": "30 2 * * mon-fri", "tz": "Europe/Berlin", "catch_up": "skip"}),
        ("perdure.schedule", {"cron": "@daily"}),
        ("perdure.schedule", {"every": 60}),
        ("perdure.folder", {"path": "in", "pattern": "*.csv", "every": 0.5, "settled": 0}),
        ("perdure.redis_stream", {"key": "orders", "start": "now"}),
        ("perdure.inbox", {}),
        ("perdure.inbox", {"schema": {"type": "integer"}, "order": "text"}),
        ("perdure.inbox", {"schema": {"type": ["string", "null"], "maxLength": 3}}),
        ("perdure.inbox", {"schema": {"patternProperties": {"^a": {"type": "integer"}}, "x-ours": 1}}),
        ("perdure.inbox", {"schema": {"type": "object", "required": ["a"], "properties": {"a": True}}}),
        ("perdure.folder", {"path": "in", "pattern": "**/*.csv"}),
        ("perdure.redis_stream", {"key": "k", "url": "unix:///run/redis.sock"}),
        ("perdure.ask", {"prompt": "go on?", "schema": {"type": "boolean"}}),
        ("perdure.ask", {"prompt": "which?", "choices": ["a", "b"], "deadline": 60, "default": ["b"]}),
    ],
)
def test_a_document_may_use_it(node_type: str, data: dict[str, Any]) -> None:
    assert faults_of(node_type, data) == ()


@pytest.mark.parametrize(
    ("node_type", "data", "rule", "what"),
    [
        ("perdure.schedule", {"cron": "61 * * * *"}, "invalid_property", "no cron expression"),
        ("perdure.schedule", {"cron": ""}, "invalid_property", "no cron expression"),
        ("perdure.schedule", {"cron": "0 0 * * *", "tz": "Mars/Phobos"}, "invalid_property", "no time zone"),
        ("perdure.schedule", {"cron": "0 0 * * *", "tz": ""}, "invalid_property", "no time zone"),
        ("perdure.schedule", {"cron": "0 0 * * *", "every": 3}, "invalid_property", "either a cron expression or"),
        ("perdure.schedule", {}, "invalid_property", "either a cron expression or"),
        ("perdure.schedule", {"every": 3, "catch_up": "some"}, "invalid_property", "no catch_up 'some'"),
        ("perdure.schedule", {"every": -1}, "invalid_property", "above zero"),
        ("perdure.schedule", {"every": "often"}, "invalid_property", "'every'"),
        ("perdure.schedule", {"every": 3, "timezone": "UTC"}, "unknown_handle", "'timezone'"),
        ("perdure.folder", {}, "missing_input", "'path'"),
        ("perdure.folder", {"path": "in", "settled": -1}, "invalid_property", "in intervals"),
        ("perdure.folder", {"path": "in", "pattern": "/etc/*"}, "invalid_property", "no pattern"),
        ("perdure.redis_stream", {"url": "redis://localhost"}, "missing_input", "'key'"),
        ("perdure.redis_stream", {"key": "orders", "start": "end"}, "invalid_property", "from 'end'"),
        *(
            ("perdure.folder", {"path": "in", "pattern": wrong}, "invalid_property", f"{wrong!r} is no pattern")
            for wrong in ("", "**a", "a**/x", "../*", "in/../../x", ".")
        ),
        *(
            ("perdure.redis_stream", {"key": "k", "url": wrong}, "invalid_property", "url of a Redis server")
            for wrong in ("redis://h:port", "rediss://u:secret@h:99999", "redis://h:0", "redis://[h:1")
        ),
        *(
            (kind, {**more, "schema": {"type": wrong}}, "invalid_property", f"The schema.type {wrong!r} is no type of")
            for kind, more in (("perdure.inbox", {}), ("perdure.ask", {"prompt": "ok?"}), ("perdure.input", {}))
            for wrong in ("nonsense", 5, ["string", "text"])
        ),
        ("perdure.inbox", {"schema": {"items": {"type": "list"}}}, "invalid_property", "The schema.items.type 'list'"),
        ("perdure.inbox", {"schema": {"items": 5}}, "invalid_property", "The schema.items is none of"),
        ("perdure.inbox", {"schema": {"properties": 3}}, "invalid_property", "The schema.properties is none of"),
        ("perdure.inbox", {"schema": {"multipleOf": "x"}}, "invalid_property", "The schema.multipleOf is none of"),
        ("perdure.schedule", {"cron": "0 0 7 * * *"}, "invalid_property", "no cron expression (6 fields)"),
        ("perdure.redis_stream", {"key": "orders", "url": "localhost"}, "invalid_property", "begins with redis://"),
        ("perdure.inbox", {"order": "time"}, "invalid_property", "'order'"),
        ("perdure.ask", {"schema": {}}, "missing_input", "'prompt'"),
        ("perdure.ask", {"prompt": "which?", "choices": []}, "invalid_property", "at least one"),
        ("perdure.ask", {"prompt": "ok?", "deadline": -1}, "invalid_property", "The deadline"),
        ("perdure.ask", {"prompt": "ok?", "default": [True]}, "invalid_property", "needs a deadline"),
        ("perdure.ask", {"prompt": "ok?", "default": [], "deadline": 1}, "invalid_property", "a list of one"),
        (
            "perdure.ask",
            {"prompt": "which?", "choices": ["a"], "default": ["b"], "deadline": 1},
            "invalid_property",
            "none of the choices",
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_node(node_type: str, data: dict[str, Any], rule: str, what: str) -> None:
    (fault,) = faults_of(node_type, data)

    assert (fault.node, fault.rule) == ("outside", rule)
    assert what in fault.message
    assert "outside" in fault.message


def test_several_things_are_told_at_once() -> None:
    found = faults_of("perdure.schedule", {"cron": "x", "tz": "y", "catch_up": "z"})

    assert [fault.rule for fault in found] == ["invalid_property"] * 3


def test_what_edges_bring_is_judged_when_it_is_there() -> None:
    edge = {"source": "$input", "sourceHandle": "given", "target": "outside", "targetHandle": "cron"}

    assert faults_of("perdure.schedule", {"tz": "Europe/Berlin"}, edge) == ()


@node(name="built_in.letters")
class Letters(Trigger[int, str]):
    upto: int = 3

    async def inputs(self, ctx: Any, cursor: int | None) -> AsyncIterator[TriggerInput[int, str]]:
        for number in range(self.upto):
            yield TriggerInput("abc"[number], id=str(number), cursor=number)

    def problems(self) -> Iterator[str]:
        if self.upto > 3:
            yield f"There are no {self.upto} letters."
        if self.upto < 0:
            raise ZeroDivisionError("less than nothing")


@node
def measured(letter: int) -> int:
    return letter


def test_ones_own_trigger_says_what_is_wrong_with_it() -> None:
    assert faults_of("built_in.letters", {"upto": 2}) == ()
    (fault,) = faults_of("built_in.letters", {"upto": 4})
    assert "There are no 4 letters." in fault.message
    (fault,) = faults_of("built_in.letters", {"upto": -1})
    assert "It raised ZeroDivisionError" in fault.message


def test_what_a_trigger_gives_is_checked_where_it_goes() -> None:
    @workflow
    def letters_as_numbers() -> list[int]:
        return collect(measured.map(Letters()))

    @workflow
    def times_as_numbers() -> list[int]:
        return collect(measured.map(schedule("@daily")))  # type: ignore[arg-type]

    with pytest.raises(InvalidGraph, match="takes int, but gets str"):
        _ = letters_as_numbers.graph
    with pytest.raises(InvalidGraph, match=f"takes int, but gets {Tick.__name__}"):
        _ = times_as_numbers.graph


def test_a_wrong_schedule_is_refused_in_python_where_it_is_written() -> None:
    with pytest.raises(GraphError, match="no cron expression"):
        schedule("every morning")
