"""Stand-ins for the bodies of nodes: `with stub(fetch, lambda url: "text"):`.

While a stub stands, every run of this process calls it instead of the body: with the node's arguments, by their names, under
the node's policy (retries, timeouts, concurrency). So does whoever calls the node type as a plain function.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from perdure.dispatch.base import slot_kind
from perdure.errors import InvalidDeclaration
from perdure.graph.declare import NodeType
from perdure.graph.handles import BodyContext, Shape, shape_of

Body = Callable[..., Any]

_REPLACED = ("fn", "class_shape", "is_async", "takes_context", "policy")
_standing: list[Stub] = []
"""All that stand in this process, in the order in which they were put up."""


class Stub:
    """A stand-in for the body of a node type, from when it is made until it is removed or its block is left."""

    def __init__(self, node_type: NodeType[..., Any], body: Body) -> None:
        """Raises InvalidDeclaration if the body could not be called with the node's arguments."""
        self.node_type = node_type.declared
        self.body = body
        self.results: tuple[Any, ...] | None = None
        """What it returns or raises in turn, if that is all that it does."""
        self.calls: list[dict[str, Any]] = []
        """The arguments of each call, in the order of the calls."""
        self._before: dict[str, Any] | None = None
        self._shape = _fitting_shape(self.node_type, body)
        self._put()

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @property
    def stands(self) -> bool:
        """Whether it has not been removed."""
        return self._before is not None

    def remove(self) -> None:
        """Give the node its body back. To do it again has no effect."""
        if self._before is None:
            return
        later = _standing[_standing.index(self) + 1 :]
        above = next((stub for stub in later if stub.node_type is self.node_type), None)
        if above is None:
            self._set(self._before)
        else:  # which stands on, and gives back what this one would have
            above._before = self._before
        _standing.remove(self)
        self._before = None

    def _put(self) -> None:
        self._before = {name: getattr(self.node_type, name) for name in _REPLACED}
        shape = self._shape
        is_async = shape.is_async or (self.node_type.is_async and not shape.takes_context)
        entry = _entry(self, is_async=is_async)
        entry.__name__ = self.node_type.fn.__name__  # what nodes are called in graphs that are traced meanwhile
        self._set(
            {
                "fn": entry,
                "class_shape": None,
                "is_async": is_async,
                "takes_context": shape.takes_context,
                "policy": msgspec.structs.replace(self.node_type.policy, executor="auto"),
            }
        )
        _standing.append(self)

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self.node_type, name, value)
        slot_kind.cache_clear()

    def called(self, *args: Any, **kwargs: Any) -> Any:
        """Call the body, as the node would."""
        context = args[:1] if args and isinstance(args[0], BodyContext) else ()
        names = [handle.name for handle in self.node_type.inputs]
        arguments = {**dict(zip(names, args[len(context) :], strict=False)), **kwargs}
        self.calls.append(arguments)
        taken = {handle.name for handle in self._shape.inputs}
        given = {name: value for name, value in arguments.items() if self._shape.open_inputs or name in taken}
        return self.body(*(context if self._shape.takes_context else ()), **given)


def stub_in_turn(node_type: NodeType[..., Any], results: Sequence[Any]) -> Stub:
    """Return a stub that returns one of these after the other, or raises it if it is an exception. The last one stays."""
    if not results:
        raise ValueError("a stub needs something to return")
    left = list(results)

    def next_result(**_: Any) -> Any:
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, BaseException):
            raise result
        return result

    stub = Stub(node_type, next_result)
    stub.results = tuple(results)
    return stub


def _entry(stub: Stub, *, is_async: bool) -> Body:
    """Return a function of the node's own, of the colour that the node type will say it has."""
    match is_async, stub.node_type.is_generator:
        case False, False:

            def call(*args: Any, **kwargs: Any) -> Any:
                return stub.called(*args, **kwargs)

            return call
        case False, True:

            def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
                yield from stub.called(*args, **kwargs)

            return generate
        case True, False:

            async def give(*args: Any, **kwargs: Any) -> Any:
                result = stub.called(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return give
        case _:

            async def generate_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                result = stub.called(*args, **kwargs)
                items = await result if inspect.isawaitable(result) else result
                async for item in _one_by_one(items):
                    yield item

            return generate_async


async def _one_by_one(items: Any) -> AsyncIterator[Any]:
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
        return
    if not isinstance(items, Iterable):
        raise TypeError(f"the stub of a generator gives items, but this one gave {items!r}")
    for item in cast("Iterable[Any]", items):
        yield item


def _fitting_shape(node_type: NodeType[..., Any], body: Body) -> Shape:
    if not callable(body):  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidDeclaration(_subject(node_type), [f"{body!r} cannot be called: use returns=… for a value."])
    shape = shape_of(body)
    known = {handle.name: handle for handle in node_type.inputs}
    properties = {handle.name for handle in node_type.properties}
    taken = {handle.name for handle in shape.inputs}
    problems = [
        f"it wants {handle.name!r}, which the node does not have (it has {_listed(known)})."
        for handle in shape.inputs
        if handle.required and handle.name not in known and not node_type.open_inputs
    ]
    if not shape.open_inputs:
        problems.extend(
            f"it does not take {name!r}, which the node is given: add it, or `**_` for whatever there is."
            for name, handle in known.items()
            if handle.required and name not in taken and name not in properties
        )
    if problems:
        raise InvalidDeclaration(_subject(node_type), problems)
    return shape


def _subject(node_type: NodeType[..., Any]) -> str:
    return f"The stub of {node_type.label!r}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "no inputs"
