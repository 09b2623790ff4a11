"""Bodies: how the function or class of a node type is brought to life with its arguments, whatever the place.

    class node:  construct → set properties → initialize() → pre_process() → run(…) or process(…) → finalize()

Once the instance exists, `finalize` is called exactly once: after success, after any error and after cancellation.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast

from perdure.dispatch.base import Task
from perdure.dispatch.context import Contexts
from perdure.dispatch.feeds import Reader
from perdure.dispatch.places import Place, ThreadPlace
from perdure.errors import ArgumentNotReadable, StreamsNotSupported, ValueNotReadable
from perdure.graph.constants import from_outside
from perdure.graph.declare import NodeType
from perdure.graph.lifecycle import BEFORE, ClassShape
from perdure.journal.events import Encoded

T = TypeVar("T")

FINALIZE = "finalize"
DECODED_ON_LOOP_MAX_BYTES = 1 << 20
"""Larger arguments of an async body are decoded in a thread, so that the loop goes on meanwhile."""

_GENERATORS = (GeneratorType, AsyncGeneratorType)

Live = Callable[[Task, Place, Mapping[str, Any]], Coroutine[Any, Any, Any]]
"""What is done for a task in a place, with arguments that have been decoded: all of a body's life, or a part of it."""


def live(task: Task, place: Place, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
    """Run the body once and return what it returned."""
    if task.node_type.class_shape is None:
        return _perform(task, place, task.node_type.fn, None, arguments)
    return _live_as_class(task, place, arguments)


async def _live_as_class(task: Task, place: Place, arguments: Mapping[str, Any]) -> Any:
    life = Life(task, place)
    await life.begin(arguments)
    try:
        result = await life.work(task, place, arguments, contexts=life.contexts)
    except GeneratorExit:  # the program ends, and nothing can be awaited any more
        raise
    except BaseException as error:  # whatever the body raised, its instance is finalized
        await life.end(error)
        raise
    await life.end()
    return result


class Life:
    """An instance of a class node, from its construction to `finalize`."""

    def __init__(self, task: Task, place: Place) -> None:
        assert task.node_type.class_shape is not None
        self.contexts = Contexts(task, place)
        self._cls: Any = task.node_type.fn
        self._shape: ClassShape = task.node_type.class_shape
        self._place = place
        self._properties = frozenset(handle.name for handle in self._shape.properties)
        self._instance: Any = None

    async def begin(self, arguments: Mapping[str, Any]) -> None:
        """Construct it, set those of the arguments that are properties, and call what comes before its work.

        If any of that fails, its life has ended.
        """
        self._instance = await _construct(self._cls, self._place)
        try:
            for name in self._properties & arguments.keys():
                setattr(self._instance, name, arguments[name])
            for name in BEFORE:
                await self._call(name, self._place.invoke)
        except GeneratorExit:  # the program ends, and nothing can be awaited any more
            raise
        except BaseException as error:  # whatever was raised, the instance is finalized
            await self.end(error)
            raise

    async def work(
        self, task: Task, place: Place, arguments: Mapping[str, Any], *, contexts: Contexts | None = None
    ) -> Any:
        """Call its `run` or `process` for a task, in a place of that, and return what it returned."""
        given = {name: value for name, value in arguments.items() if name not in self._properties}
        return await _perform(task, place, getattr(self._instance, self._shape.entry), contexts, given)

    async def end(self, error: BaseException | None = None) -> None:
        """Finalize it. If it ends because of an error, a failure of its own must not hide why: it is a note on that."""
        try:
            await self._call(FINALIZE, self._place.conclude)
        except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as second:
            if error is None:
                raise
            error.add_note(f"finalize() then raised {type(second).__name__}: {second}")

    async def _call(self, name: str, door: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        if name in self._shape.lifecycle:
            part = getattr(self._instance, name)
            await door(part, *([self.contexts.for_part(part)] if self._shape.lifecycle[name] else []))


def live_in_thread(task: Task, place: ThreadPlace, lives: Live = live) -> Any:
    """Decode the arguments, have the body live and finish what it returned, in this thread."""
    try:
        result = run_in_thread(task, place, lives(task, place, decoded(task)))
        if task.finish is None or task.node_type.is_generator or place.is_over:
            return result
        return task.finish(result)
    finally:
        place.close()


def run_in_thread(task: Task, place: ThreadPlace, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a body in this thread: on a loop only if the body needs one."""
    return place.run(coroutine) if task.node_type.is_async else driven(coroutine)


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, which is what `live` is where every part of the body is called directly."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("The body waited for something outside of any loop.")


def decoded(task: Task) -> dict[str, Any]:
    """Return every argument and property that has a value, decoded for its annotation."""
    annotations = _annotations(task.node_type)
    encoded = {**task.arguments, **task.properties}
    return {name: _decoded(task, name, annotations.get(name, Any), value) for name, value in encoded.items()}


def is_large(task: Task) -> bool:
    """Whether decoding the arguments of a body would hold up the loop."""
    encoded = (*task.arguments.values(), *task.properties.values())
    return sum([len(memoryview(value)) for value in encoded]) > DECODED_ON_LOOP_MAX_BYTES


def _decoded(task: Task, name: str, annotation: Any, value: Encoded) -> Any:
    try:
        found = task.decode(value, annotation)
        return from_outside(found, annotation) if name in task.info.from_outside else found
    except ValueNotReadable as error:
        raise ArgumentNotReadable(task.info.node_id, name, error) from error
    except Exception as error:  # decoding calls codecs of the user's, which may raise anything
        error.add_note(f"It is the value of {name!r} for node {task.info.node_id!r}.")
        raise


@functools.lru_cache(maxsize=1_024)
def _annotations(node_type: NodeType[..., Any]) -> Mapping[str, Any]:
    return {handle.name: handle.annotation for handle in node_type.inputs}


async def _construct(cls: Any, place: Place) -> Any:
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__:
        return cls()
    # In a tuple, because an instance may itself be something to await.
    (instance,) = await place.invoke(_constructed, cls)
    return instance


def _constructed(cls: Any) -> tuple[Any]:
    return (cls(),)


async def _perform(
    task: Task, place: Place, body: Callable[..., Any], contexts: Contexts | None, arguments: Mapping[str, Any]
) -> Any:
    """Call the function or method that does the work, and have its items offered if it yields some."""
    node_type = task.node_type
    given = {**arguments, **_readers(task, place)} if task.feeds else arguments
    context: tuple[Any, ...] = ()
    if node_type.takes_context:
        contexts = contexts or Contexts(task, place)
        is_on_loop = node_type.is_generator and node_type.is_async
        context = (contexts.of_colour(is_async=True) if is_on_loop else contexts.for_part(body),)
    if node_type.is_generator:
        return await _generate(task, place, body, *context, **given)
    result = await place.invoke(body, *context, **given)
    if isinstance(result, _GENERATORS):
        raise StreamsNotSupported(node_type.name)
    return result


async def _generate(task: Task, place: Place, body: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if task.outlet is None:
        raise RuntimeError(f"The items of node {task.info.node_id!r} have nowhere to go.")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):  # calling it does nothing yet
        items = body(*args, **kwargs)
    else:
        items = await place.invoke(body, *args, **kwargs)
    if not isinstance(items, AsyncIterable if task.node_type.is_async else Iterable):
        raise StreamsNotSupported(task.node_type.name)
    await place.emit(items, task.outlet)


def _readers(task: Task, place: Place) -> dict[str, Reader]:
    annotations = _annotations(task.node_type)
    return {
        name: Reader(feed, place, functools.partial(_decoded, task, name, annotations.get(name, Any)))
        for name, feed in task.feeds.items()
    }
