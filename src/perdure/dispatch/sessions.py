"""Sessions: node types brought to life for many items."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from perdure.dispatch.base import Task
from perdure.dispatch.body import Life, Live, decoded, run_in_thread
from perdure.dispatch.places import LoopPlace, ThreadPlace, contain
from perdure.dispatch.threads import ThreadPool
from perdure.errors import AttemptOver
from perdure.journal.events import Encoded

Execute = Callable[[Task, Live], Coroutine[Any, Any, Any]]
"""Does what a task asks for in a place of the kind that its body needs, like `Dispatch.execute`."""


class ShortLives:
    """The session of a function, which has no life between calls, and of a class in another process: one life per call."""

    def __init__(self, execute: Callable[[Task], Coroutine[Any, Any, Any]], properties: Mapping[str, Encoded]) -> None:
        self._execute = execute
        self._properties = properties

    async def call(self, task: Task) -> Any:
        if self._properties:
            task = msgspec.structs.replace(task, properties=self._properties)
        return await self._execute(task)

    async def close(self, error: BaseException | None = None) -> None:
        return None


class LoopSession:
    """An instance on the loop."""

    def __init__(self, life: Life, place: LoopPlace, execute: Execute) -> None:
        self._life = life
        self._place = place
        self._execute = execute
        self._is_closed = False

    async def begin(self, arguments: Mapping[str, Any]) -> None:
        """Bring the instance to life."""
        try:
            await self._life.begin(arguments)
        except BaseException:
            self._place.end()
            raise

    async def call(self, task: Task) -> Any:
        return await self._execute(task, self._life.work)

    async def close(self, error: BaseException | None = None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(error, asyncio.CancelledError):
            self._place.end()
        self._place.pass_to(asyncio.current_task())
        try:
            await contain(self._life.end, error)
        finally:
            self._place.end()


class ThreadSession:
    """An instance whose parts run in threads: each in any of them."""

    def __init__(self, task: Task, place: ThreadPlace, threads: ThreadPool, execute: Execute) -> None:
        self._life = Life(task, place)
        self._task = task
        self._place = place
        self._threads = threads
        self._execute = execute
        self._is_closed = False
        self._handing_over = threading.Lock()
        self._is_made = False
        self._is_left = False

    async def begin(self) -> None:
        """Bring the instance to life. If this is cancelled, its thread finalizes it as soon as it can."""
        task = self._task
        try:
            await self._threads.run(
                self._begin, on_begin=task.on_begin, on_abandon=self._place.end, on_late=task.on_late
            )
        except BaseException as error:
            if self._leave():
                await self.close(error)
            raise

    async def call(self, task: Task) -> Any:
        return await self._execute(task, self._life.work)

    async def close(self, error: BaseException | None = None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(error, asyncio.CancelledError):
            self._place.end()
        try:
            await self._threads.run_to_end(functools.partial(self._end, error))
        finally:
            self._place.end()

    # Of an instance that nobody waits for when it is made, exactly one side is to know.

    def _leave(self) -> bool:
        """Wait no longer, and return whether the instance is there all the same."""
        with self._handing_over:
            self._is_left = True
            return self._is_made

    def _hand_over(self) -> bool:
        """Return whether somebody waits for the instance, who has it from here on."""
        with self._handing_over:
            self._is_made = not self._is_left
            return self._is_made

    # In threads

    def _begin(self) -> None:
        try:
            run_in_thread(self._task, self._place, self._life.begin(decoded(self._task)))
        except BaseException:
            self._place.close()
            raise
        if not self._hand_over():
            over = AttemptOver(self._task.info.node_id, self._task.info.attempt)
            self._end(over)
            raise over

    def _end(self, error: BaseException | None) -> None:
        try:
            run_in_thread(self._task, self._place, self._life.end(error))
        finally:
            self._place.close()
