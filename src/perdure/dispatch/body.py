"""Bodies: how the function or class of a node type is brought to life with its arguments, whatever the place.

    class node:  construct → set properties → initialize() → pre_process() → run(…) or process(…) → finalize()

Once the instance exists, `finalize` is called exactly once: after success, after any error and after cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast

from perdure.dispatch.base import Task
from perdure.dispatch.context import Contexts
from perdure.dispatch.places import Place, ThreadPlace
from perdure.errors import ArgumentNotReadable, StreamsNotSupported, ValueNotReadable
from perdure.graph.lifecycle import BEFORE, ClassShape
from perdure.journal.events import Encoded

T = TypeVar("T")

FINALIZE = "finalize"


async def live(task: Task, place: Place, arguments: Mapping[str, Any]) -> Any:
    """Run the body once with arguments that have been decoded, and return what it returned."""
    node_type = task.node_type
    if node_type.is_generator:
        raise StreamsNotSupported(node_type.name)
    if node_type.class_shape is not None:
        result = await _live_as_class(node_type.fn, node_type.class_shape, place, Contexts(task, place), arguments)
    elif node_type.takes_context:
        context = Contexts(task, place).for_part(node_type.fn)
        result = await place.invoke(node_type.fn, context, **arguments)
    else:
        result = await place.invoke(node_type.fn, **arguments)
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        raise StreamsNotSupported(node_type.name)
    return result


def live_in_thread(task: Task, place: ThreadPlace) -> Any:
    """Decode the arguments, run the body once and finish what it returned, in this thread."""
    try:
        body = live(task, place, decoded(task))
        result = place.run(body) if task.node_type.is_async else _driven(body)
        return result if task.finish is None or place.is_over else task.finish(result)
    finally:
        place.close()


def decoded(task: Task) -> dict[str, Any]:
    """Return every argument and property that has a value, decoded for its annotation."""
    annotations = {handle.name: handle.annotation for handle in task.node_type.inputs}
    encoded = {**task.arguments, **task.properties}
    return {name: _decoded(task, name, value, annotations.get(name, Any)) for name, value in encoded.items()}


def encoded_size(task: Task) -> int:
    """Return about how many bytes `decoded` has to read."""
    return sum([len(memoryview(value)) for value in (*task.arguments.values(), *task.properties.values())])


def _decoded(task: Task, name: str, value: Encoded, annotation: Any) -> Any:
    try:
        return task.decode(value, annotation)
    except ValueNotReadable as error:
        raise ArgumentNotReadable(task.info.node_id, name, error) from error
    except Exception as error:  # decoding calls codecs of the user's, which may raise anything
        error.add_note(f"It is the value of {name!r} for node {task.info.node_id!r}.")
        raise


async def _live_as_class(
    cls: Any, shape: ClassShape, place: Place, contexts: Contexts, arguments: Mapping[str, Any]
) -> Any:
    instance = await _construct(cls, place)
    try:
        result = await _work(instance, shape, place, contexts, arguments)
    except GeneratorExit:  # the program ends, and nothing can be awaited any more
        raise
    except BaseException as error:  # whatever the body raised, its instance is finalized
        await _finalize_after(error, instance, shape, place, contexts)
        raise
    await _finalize(instance, shape, place, contexts)
    return result


async def _construct(cls: Any, place: Place) -> Any:
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__:
        return cls()
    # In a tuple, because an instance may itself be something to await.
    (instance,) = await place.invoke(_constructed, cls)
    return instance


def _constructed(cls: Any) -> tuple[Any]:
    return (cls(),)


async def _work(
    instance: Any, shape: ClassShape, place: Place, contexts: Contexts, arguments: Mapping[str, Any]
) -> Any:
    properties = {handle.name for handle in shape.properties}
    for name in properties & arguments.keys():
        setattr(instance, name, arguments[name])
    for name in BEFORE:
        if name in shape.lifecycle:
            part = getattr(instance, name)
            await place.invoke(part, *_context(contexts, part, shape.lifecycle[name]))
    given = {name: value for name, value in arguments.items() if name not in properties}
    part = getattr(instance, shape.entry)
    return await place.invoke(part, *_context(contexts, part, shape.body.takes_context), **given)


async def _finalize(instance: Any, shape: ClassShape, place: Place, contexts: Contexts) -> None:
    if FINALIZE in shape.lifecycle:
        part = getattr(instance, FINALIZE)
        await place.conclude(part, *_context(contexts, part, shape.lifecycle[FINALIZE]))


async def _finalize_after(
    error: BaseException, instance: Any, shape: ClassShape, place: Place, contexts: Contexts
) -> None:
    """Finalize an instance whose body has failed. Its own failure must not hide why."""
    try:
        await _finalize(instance, shape, place, contexts)
    except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as second:
        error.add_note(f"finalize() then raised {type(second).__name__}: {second}")


def _context(contexts: Contexts, part: Callable[..., Any], takes_context: bool) -> tuple[Any, ...]:
    return (contexts.for_part(part),) if takes_context else ()


def _driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, which is what `live` is where every part of the body is called directly."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("The body waited for something outside of any loop.")
