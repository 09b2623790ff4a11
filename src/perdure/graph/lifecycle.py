"""Class nodes: what a class must look like to be one, and how it runs by itself, without an engine.

    initialize() → pre_process() → run(…) or process(item) → finalize()

Only `run` or `process` is needed; each of the others may be missing, and may be a coroutine function. `finalize` is
always called once `initialize` has been. Properties are set as attributes before that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import msgspec

from perdure.graph.handles import Handle, Shape, properties_of, shape_of

Entry = Literal["run", "process"]
ENTRIES = ("run", "process")
BEFORE = ("initialize", "pre_process")
AFTER = ("finalize",)


class ClassShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a class says about itself as a node."""

    entry: Entry
    body: Shape
    """Of the entry method; its inputs do not include the properties."""
    properties: tuple[Handle, ...]
    lifecycle: Mapping[str, bool]
    """The lifecycle methods that there are, and whether each takes the context."""

    @property
    def inputs(self) -> tuple[Handle, ...]:
        return (*self.body.inputs, *self.properties)


def class_problems(cls: type[Any]) -> list[str]:
    """Return why a class cannot be a node."""
    problems: list[str] = []
    entries = [name for name in ENTRIES if inspect.isfunction(getattr(cls, name, None))]
    if len(entries) != 1:
        problems.append(
            "it has neither a method `run` nor `process`: write one of them."
            if not entries
            else "it has both `run`, for one call, and `process`, for one item of many: keep one."
        )
    if any(parameter.default is parameter.empty and _is_named(parameter) for parameter in _constructor(cls)):
        problems.append("its constructor needs arguments: use class attributes, which are set before `initialize`.")
    for name in (*BEFORE, *AFTER):
        method = getattr(cls, name, None)
        if method is not None and (not inspect.isfunction(method) or shape_of(method, is_method=True).inputs):
            problems.append(f"`{name}` takes something: it can take only the context.")
    if len(entries) == 1:
        taken = {handle.name for handle in shape_of(getattr(cls, entries[0]), is_method=True).inputs}
        problems.extend(
            f"{handle.name!r} is both a property and a parameter of `{entries[0]}`: rename one."
            for handle in properties_of(cls)
            if handle.name in taken
        )
    return problems


def shape_of_class(cls: type[Any], *, localns: dict[str, Any] | None = None) -> ClassShape:
    """Read a class that has no `class_problems`."""
    entry: Entry = "run" if hasattr(cls, "run") else "process"
    methods = {name: getattr(cls, name) for name in (*BEFORE, *AFTER) if hasattr(cls, name)}
    return ClassShape(
        entry=entry,
        body=shape_of(getattr(cls, entry), is_method=True, localns=localns),
        properties=properties_of(cls),
        lifecycle={name: shape_of(method, is_method=True).takes_context for name, method in methods.items()},
    )


def run_class(cls: type[Any], shape: ClassShape, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make an instance and run its whole lifecycle once.

    Returns what the entry method gives: a value, or a coroutine, generator or async generator that has the lifecycle in
    it. Where the entry method takes the context, it is the first of `args`.
    """
    instance = cls()
    names = {handle.name for handle in shape.properties}
    for name in kwargs.keys() & names:
        setattr(instance, name, kwargs[name])
    given = {name: value for name, value in kwargs.items() if name not in names}
    context = args[0] if shape.body.takes_context and args else None
    methods = {name: _bound(instance, name, context, takes) for name, takes in shape.lifecycle.items()}
    entry: Callable[[], Any] = lambda: getattr(instance, shape.entry)(*args, **given)  # noqa: E731
    is_async = shape.body.is_async or any(inspect.iscoroutinefunction(getattr(cls, name)) for name in methods)
    match is_async, shape.body.is_generator:
        case False, False:
            return _run(methods, entry)
        case False, True:
            return _generate(methods, entry)
        case True, False:
            return _run_async(methods, entry)
        case _:
            return _generate_async(methods, entry)


def _constructor(cls: type[Any]) -> list[inspect.Parameter]:
    if cls.__init__ is object.__init__:
        return []
    return list(inspect.signature(cls.__init__).parameters.values())[1:]


def _is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _bound(instance: Any, name: str, context: Any, takes_context: bool) -> Callable[[], Any]:
    method = getattr(instance, name)
    return (lambda: method(context)) if takes_context else method


Methods = Mapping[str, Callable[[], Any]]


@contextmanager
def _alive(methods: Methods) -> Generator[None]:
    try:
        for name in BEFORE:
            if name in methods:
                methods[name]()
        yield
    finally:
        for name in AFTER:
            if name in methods:
                methods[name]()


@asynccontextmanager
async def _alive_async(methods: Methods) -> AsyncGenerator[None]:
    try:
        for name in BEFORE:
            if name in methods:
                await _settled(methods[name]())
        yield
    finally:
        for name in AFTER:
            if name in methods:
                await _settled(methods[name]())


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _run(methods: Methods, entry: Callable[[], Any]) -> Any:
    with _alive(methods):
        return entry()


def _generate(methods: Methods, entry: Callable[[], Any]) -> Iterator[Any]:
    with _alive(methods):
        yield from entry()


async def _run_async(methods: Methods, entry: Callable[[], Any]) -> Any:
    async with _alive_async(methods):
        return await _settled(entry())


async def _generate_async(methods: Methods, entry: Callable[[], Any]) -> AsyncIterator[Any]:
    async with _alive_async(methods):
        items = entry()
        if hasattr(items, "__aiter__"):
            async for item in items:
                yield item
        else:
            for item in items:
                yield item
