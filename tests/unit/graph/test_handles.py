"""Handles are read from annotations, also from those that cannot be resolved."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import msgspec
import pytest

from perdure.errors import GraphError, InvalidDeclaration
from perdure.graph.handles import BodyContext, Handle, Outputs, Stream, inputs_of, outputs_of, properties_of, shape_of

if TYPE_CHECKING:
    from somewhere import Context, Unknown


class RealContext(BodyContext): ...


class Halves(Outputs):
    left: list[int]
    right: str
    _hidden: int


def test_parameters_are_inputs():
    def f(a: int, b: str = "x", *, c: list[int] | None = None) -> None: ...

    assert inputs_of(f) == (
        Handle(name="a", annotation=int),
        Handle(name="b", annotation=str, required=False, default="x"),
        Handle(name="c", annotation=list[int] | None, required=False, default=None, keyword_only=True),
    )


def test_a_parameter_without_annotation_takes_anything():
    def f(a, b=1): ...

    assert inputs_of(f) == (
        Handle(name="a", annotation=Any),
        Handle(name="b", annotation=Any, required=False, default=1),
    )


def test_only_the_name_that_cannot_be_resolved_is_lost():
    def f(a: Unknown, b: int, c: Optional[Unknown] = None) -> list[Unknown]: ...  # noqa: UP045

    assert [handle.annotation for handle in inputs_of(f)] == [Any, int, Any]
    assert outputs_of(f) == (Handle(name="output", annotation=Any),)


def test_a_name_that_only_the_place_knows_is_resolved_there():
    class Local: ...

    def f(a: Local) -> Local: ...

    assert shape_of(f, localns=locals()).inputs[0].annotation is Local


def test_the_context_is_no_input():
    def by_name(ctx, a: int): ...
    def by_annotation(context: Context, a: int): ...
    def by_quoted(context: "Context | int", ctx: int): ...  # noqa: UP037
    def by_class(c: RealContext, a: int): ...
    def by_module(c: engine.Context, a: int): ...  # noqa: F821
    def not_first(a: int, ctx: int): ...

    assert [shape_of(f).takes_context for f in (by_name, by_annotation, by_class, by_module)] == [True] * 4
    assert [handle.name for handle in inputs_of(by_class)] == ["a"]
    assert not shape_of(not_first).takes_context
    assert not shape_of(by_quoted).takes_context
    assert [handle.name for handle in inputs_of(not_first)] == ["a", "ctx"]


def test_a_stream_parameter_knows_its_items():
    def f(xs: Stream[int], ys: Stream[str] | None = None, zs: Stream = ()): ...

    xs, ys, zs = inputs_of(f)

    assert (xs.streaming, xs.annotation) == (True, int)
    assert (ys.streaming, ys.annotation, ys.required) == (True, str, False)
    assert (zs.streaming, zs.annotation) == (True, Any)


def test_what_cannot_be_given_by_name_is_refused_all_at_once():
    def f(a, /, *rest): ...

    with pytest.raises(InvalidDeclaration) as caught:
        inputs_of(f)

    assert len(caught.value.problems) == 2
    assert "'a' is positional-only" in str(caught.value)
    assert "'*rest'" in str(caught.value)


def test_open_inputs_are_no_handles():
    def f(a: int, **others: str): ...

    shape = shape_of(f)

    assert [handle.name for handle in shape.inputs] == ["a"]
    assert shape.open_inputs


def test_a_return_value_is_the_output():
    def f() -> int: ...
    async def g() -> str: ...
    def h(): ...
    def later() -> Awaitable[bytes]: ...

    assert [outputs_of(fn)[0].annotation for fn in (f, g, h, later)] == [int, str, Any, bytes]
    assert shape_of(later).is_async
    assert not shape_of(h).is_async


def test_a_generator_is_a_stream():
    def a() -> Iterator[int]:
        yield 1

    def b() -> Generator[int, None, str]:
        yield 1
        return ""

    async def c() -> AsyncIterator[int]:
        yield 1

    async def d() -> AsyncGenerator[int]:
        yield 1

    def e() -> Iterable[int]:
        yield 1

    for fn in (a, b, c, d, e):
        assert outputs_of(fn) == (Handle(name="output", annotation=int, streaming=True),)
    assert [shape_of(fn).is_async for fn in (a, b, c, d, e)] == [False, False, True, True, False]


def test_a_wrapped_generator_is_still_a_stream():
    def numbers() -> Iterator[int]:
        yield 1

    async def slow_numbers() -> AsyncIterator[int]:
        yield 1

    @functools.wraps(numbers)
    def wrapped() -> Any:
        return numbers()

    @functools.wraps(slow_numbers)
    def wrapped_slow() -> Any:
        return slow_numbers()

    assert shape_of(wrapped).is_generator
    assert (shape_of(wrapped_slow).is_generator, shape_of(wrapped_slow).is_async) == (True, True)


def test_a_coroutine_that_returns_an_iterator_is_refused():
    async def f() -> AsyncIterator[int]: ...

    with pytest.raises(InvalidDeclaration, match="write it with `yield`"):
        shape_of(f)


def test_named_outputs_are_handles():
    def f() -> Halves: ...
    def g() -> Iterator[Halves]:
        yield Halves()

    def h() -> Outputs: ...
    def maybe() -> Halves | None: ...

    assert outputs_of(f) == (Handle(name="left", annotation=list[int]), Handle(name="right", annotation=str))
    assert [handle.streaming for handle in outputs_of(g)] == [True, True]
    assert outputs_of(h) == ()
    assert shape_of(h).open_outputs
    assert outputs_of(maybe) == outputs_of(f)


def test_outputs_hold_what_is_on_each_handle():
    halves = Halves(left=[1])

    assert halves.handles() == {"left": [1]}
    assert halves.left == halves["left"] == [1]
    assert halves == Halves(left=[1]) != Halves(left=[2])
    assert repr(halves) == "Halves(left=[1])"
    with pytest.raises(AttributeError, match="right"):
        _ = halves.right
    with pytest.raises(GraphError, match=r"no handle 'middle'.*'left', 'right'"):
        Halves(middle=3)
    assert Outputs(anything=1).handles() == {"anything": 1}


def test_class_attributes_are_properties():
    class Base:
        temperature: float = 0.5
        model: str

    class Node(Base):
        limit = 3
        names: list[str] = []  # noqa: RUF012
        shared: ClassVar[int] = 3
        _private = 4

        class Inner: ...

        @property
        def computed(self) -> int:
            return 1

        def run(self) -> None: ...

    properties = {handle.name: handle for handle in properties_of(Node)}

    assert properties.keys() == {"temperature", "model", "limit", "names"}
    assert properties["model"].required
    assert properties["model"].default is msgspec.UNSET
    assert (properties["limit"].annotation, properties["limit"].default) == (Any, 3)
    assert properties["temperature"].annotation is float
