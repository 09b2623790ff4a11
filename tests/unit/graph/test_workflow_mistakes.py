"""Mistakes in writing a workflow: each is told with the place in the user's file and with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import collect, node, when, workflow
from perdure.errors import InvalidCall, InvalidDeclaration, InvalidGraph, MisusedRef
from perdure.graph.source import closure_of

HERE = r"test_workflow_mistakes\.py:\d+"


@node
def inc(x: int) -> int:
    return x + 1


@node
def shout(text: str) -> str:
    return text.upper()


def test_a_promised_result_that_is_not_returned_is_a_fault():
    @workflow
    def forgetful(x: int) -> int:
        inc(x)

    with pytest.raises(
        InvalidGraph, match=rf"promises a result \(int\), but its function returns nothing \(.*{HERE}\)"
    ):
        _ = forgetful.graph


@pytest.mark.parametrize("returned", [None, int | None, Any])
def test_a_workflow_that_promises_nothing_may_return_nothing(returned: Any):
    def quiet(x: int):
        inc(x)

    quiet.__annotations__["return"] = returned

    assert workflow(quiet).graph.outputs == {}


@node
def words(text: str) -> Iterator[str]:
    yield from text.split()


def test_a_result_of_another_type_than_was_promised_is_a_fault():
    def one(x: str) -> int:
        return cast("Any", shout(x))

    def an_input(x: str) -> int:
        inc(1)
        return cast("Any", x)

    def a_list(x: str) -> list[int]:
        return [cast("Any", shout(x)), inc(1)]

    def collected(x: str) -> list[int]:
        return cast("Any", collect(words(x)))

    def named(x: str) -> dict[str, int]:
        return {"loud": cast("Any", shout(x)), "more": inc(1)}

    told = {
        one: r"promises int, but what it returns is str from node 'shout'",
        an_input: r"promises int, but what it returns is str from the input 'x'",
        a_list: r"promises int, but what it returns is str from node 'shout'",
        collected: r"promises list\[int\], but what it returns is list\[str\] from node 'words'",
        named: r"promises int, but its output 'loud' is str from node 'shout'",
    }
    for body, words_of_it in told.items():
        with pytest.raises(
            InvalidGraph, match=rf"incompatible_types\] The workflow {words_of_it} \(.*{HERE}\)"
        ) as caught:
            _ = workflow(body).graph
        assert len(caught.value.faults) == 1


@pytest.mark.parametrize("returned", [Any, str, int | str | None, object])
def test_a_result_that_may_be_what_was_promised_is_none(returned: Any):
    def loud(x: str):
        with when(is_there(x)):
            said = shout(x)
        return said

    loud.__annotations__["return"] = returned

    assert workflow(loud).graph.outputs == {}


@node
def is_there(text: str) -> bool:
    return bool(text)


def test_a_fault_names_the_line_of_the_call():
    @workflow
    def mixed(x: int) -> str:
        n = inc(x)
        return shout(n)

    with pytest.raises(InvalidGraph) as caught:
        _ = mixed.graph

    code = mixed.fn.__code__
    assert f"({code.co_filename}:{code.co_firstlineno + 3})." in caught.value.faults[0].message


def test_a_workflow_is_run_not_called():
    @workflow
    def inner(x: int) -> int:
        return inc(x)

    @workflow
    def outer(x: int) -> int:
        return inner(x)

    with pytest.raises(InvalidCall, match=rf"{HERE}\): run it with inner\.run"):
        inner(1)
    with pytest.raises(InvalidCall, match=rf"{HERE}\): there are no workflows inside workflows in this version"):
        _ = outer.graph


def test_a_path_may_be_a_default_and_a_constant():
    @node
    def exists(path: Path) -> bool:
        return path.exists()

    @workflow
    def look(path: Path = Path("/etc")) -> list[bool]:
        return [exists(path), exists(Path("/tmp"))]

    assert look.graph.inputs[0].default == "/etc"
    assert look.graph.nodes[1].data == {"path": "/tmp"}


def test_a_default_without_a_json_form_is_refused_with_advice():
    def body(x: object = object()) -> None: ...

    with pytest.raises(InvalidDeclaration, match="Annotate the input with the type of its default"):
        workflow(body)


@pytest.mark.parametrize(("option", "meant"), [("retry", "retries"), ("max_attempts", "retries"), ("delay", "backoff")])
def test_the_words_of_other_libraries_are_understood(option: str, meant: str):
    with pytest.raises(InvalidDeclaration, match=f"did you mean '{meant}'"):
        node(**{option: 3})


def test_what_a_function_takes_from_around_it_is_known():
    outside = 5

    def closed(x: int) -> int:
        return x + outside

    assert closure_of(closed) == ("outside",)
    assert closure_of(inc.fn) == ()


def test_all_that_is_wrong_with_a_declaration_is_told_at_once():
    options: Any = {"retires": 3, "timeout": -1, "executor": "gpu"}

    with pytest.raises(InvalidDeclaration) as caught:
        node(**options)

    assert all(word in str(caught.value) for word in ("did you mean 'retries'", "timeout=-1", "executor='gpu'"))


def test_who_goes_through_a_value_is_told_how_items_are_mapped():
    @workflow
    def through(x: str) -> None:
        for word in words(x):
            shout(word)

    with pytest.raises(MisusedRef, match=r"f\.map\(values\).*collect\("):
        _ = through.graph
