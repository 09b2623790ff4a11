"""Refs: what cannot be done with a value that does not exist yet, and what Python may still do with it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import pytest

from perdure.errors import MisusedRef, WorkflowRaised
from perdure.graph.declare import Workflow, node, workflow
from perdure.graph.model import Graph
from perdure.graph.refs import Ref


@node
def anything(value: Any = None) -> Any:
    return value


def traced(body: Callable[..., Any]) -> Graph:
    return cast("Workflow[..., Any]", workflow(name="w")(body)).graph


OPERATIONS: list[Callable[[Any], Any]] = [
    bool,
    len,
    list,
    iter,
    reversed,
    str,
    int,
    float,
    complex,
    bytes,
    hash,
    abs,
    round,
    operator.not_,
    operator.neg,
    operator.index,
    lambda ref: ref == 1,
    lambda ref: ref != 1,
    lambda ref: ref < 1,
    lambda ref: ref >= 1,
    lambda ref: ref > 1,
    lambda ref: ref + 1,
    lambda ref: 1 + ref,
    lambda ref: ref * 2,
    lambda ref: 2**ref,
    lambda ref: ref @ ref,
    lambda ref: ref | ref,
    lambda ref: "a" in ref,
    lambda ref: f"{ref}",
    lambda ref: "%s" % ref,  # noqa: UP031
    lambda ref: "{:>3}".format(ref),  # noqa: UP032
    lambda ref: "a" + ref,
    lambda ref: ref(),
    lambda ref: ref[1:2],
    lambda ref: ref[True],
    lambda ref: ref[None],
    lambda ref: {ref},
    lambda ref: {ref: 1},
    lambda ref: [*ref],
    lambda ref: range(ref),
    lambda ref: setattr(ref, "a", 1),
    lambda ref: operator.setitem(ref, "a", 1),
    lambda ref: 1 if ref else 2,
    lambda ref: "".join([ref]),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_needs_the_value_is_refused(operation: Callable[[Any], Any]):
    def body(x: Any) -> Any:
        return operation(anything(x))

    with pytest.raises((MisusedRef, WorkflowRaised)) as caught:
        traced(body)

    if not isinstance(caught.value, MisusedRef):  # str.join and the like complain by themselves
        assert "Ref" in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "remedy"),
    [
        (bool, "with when(value)"),
        (iter, "Outputs(a=…, b=…)"),
        (str, "text("),
        (lambda ref: ref + 1, "inside a node"),
        (lambda ref: ref == 1, "with when(value)"),
    ],
)
def test_a_refusal_names_the_remedy_and_the_place(operation: Callable[[Any], Any], remedy: str):
    def body(x: Any) -> Any:
        return operation(anything(x))

    with pytest.raises(MisusedRef) as caught:
        traced(body)

    assert remedy in str(caught.value)
    assert "output 'output' of node 'anything'" in str(caught.value)
    assert "test_refs.py:" in str(caught.value)


def test_python_can_look_at_a_ref():
    seen: list[str] = []

    def body(x: Any) -> Any:
        ref = cast("Ref", anything(x))
        seen.extend([repr(ref), repr(ref["a"][0]), repr(x), repr(hasattr(ref, "__len__x")), repr(hasattr(ref, "_a"))])
        assert ref is not None
        return ref

    traced(body)

    assert seen == [
        "<output 'output' of node 'anything'>",
        "<output 'output' of node 'anything'['a'][0]>",
        "<input 'x'>",
        "False",
        "False",
    ]
