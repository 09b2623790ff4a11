"""Bodies on the loop, all of them: for tests whose interleavings must be the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.dispatch.base import BodyKind, Feed, Outlet, Task
from perdure.dispatch.body import Live, driven
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.local import LocalDispatch
from perdure.dispatch.places import LoopPlace, ThreadPlace, refuse_if_over
from perdure.dispatch.threads import ThreadPool
from perdure.journal.events import Encoded

T = TypeVar("T")


class InlineDispatch(LocalDispatch):
    """Calls blocking bodies on the spot. They must not ask anything of their context that waits.

    What such a body reads as a stream is all there before it is called.
    """

    def _kind_of(self, task: Task) -> BodyKind:
        if super()._kind_of(task) == "process":
            raise AssertionError("a body in a process is never deterministic")
        return "loop"

    async def _on_loop(self, task: Task, lives: Live) -> Any:
        if not task.node_type.is_async and task.feeds:
            feeds = {name: await _read(feed) for name, feed in task.feeds.items()}
            task = msgspec.structs.replace(task, feeds=feeds)
        return await super()._on_loop(task, lives)

    def _loop_place(self, task: Task) -> LoopPlace:
        return _InlinePlace(task.info, asyncio.current_task(), self._loop_inlet(), self._call_threads)

    def _call_threads(self) -> ThreadPool:
        return _NoThreads(1, Inlet(asyncio.get_running_loop()))


class _NoThreads(ThreadPool):
    async def run(
        self,
        function: Callable[[], T],
        *,
        on_begin: Callable[[], None] | None = None,
        on_abandon: Callable[[], None] | None = None,
        on_late: Callable[[Exception | None], None] | None = None,
    ) -> T:
        return function()

    async def run_to_end(self, function: Callable[[], T]) -> T:
        return function()


class _InlinePlace(LoopPlace):
    """Where blocking bodies are called on the loop, too."""

    def beside(self) -> ThreadPlace:
        if self._beside is None:
            self._beside = _InlineThread(self._info, self._inlet)
        return self._beside

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return driven(_awaited(function, *args))

    async def emit(self, items: Any, outlet: Outlet) -> None:
        await super().emit(items if hasattr(items, "__aiter__") else _one_by_one(items), outlet)


class _InlineThread(ThreadPlace):
    """What a blocking body asks is answered on the spot."""

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        refuse_if_over(self.is_over, self._info)
        return driven(_awaited(function, *args))

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)


class _ReadFeed:
    """A stream that has been read to its end, or to where it was cut off."""

    def __init__(self, items: Sequence[Encoded], error: Exception | None, used: int) -> None:
        self.used = used
        self._items = items
        self._error = error

    async def take(self) -> Sequence[Encoded] | None:
        items, self._items = self._items, ()
        if not items and self._error is not None:
            raise self._error
        return items or None


async def _read(feed: Feed) -> Feed:
    items: list[Encoded] = []
    try:
        while (taken := await feed.take()) is not None:
            items.extend(taken)
    except Exception as error:  # the body is to hear of it, when it has read what came before
        return _ReadFeed(items, error, feed.used)
    return _ReadFeed(items, None, feed.used)


async def _awaited(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    return await function(*args)


async def _one_by_one(items: Iterable[Any]) -> AsyncIterator[Any]:
    try:
        for item in items:
            yield item
    finally:
        if (close := getattr(items, "close", None)) is not None:
            close()
