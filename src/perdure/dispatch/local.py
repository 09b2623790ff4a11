"""The dispatch of an engine that runs all bodies itself: on its loop, in threads and in child processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, cast

from perdure.dispatch.base import SlotKind, Task, slot_kind
from perdure.dispatch.body import decoded, encoded_size, live, live_in_thread
from perdure.dispatch.failure import contained
from perdure.dispatch.imports import refuse_while_importing
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.places import LoopPlace, ThreadPlace, is_being_closed
from perdure.dispatch.processes import ProcessPool
from perdure.dispatch.threads import ThreadPool

CHILD = "perdure.engine.child"
"""What a child process runs unless told otherwise. It brings the codecs, which this package does not know."""
DECODED_ON_LOOP_MAX_BYTES = 1 << 20
"""Larger arguments of an async body are decoded in a thread, so that the loop goes on meanwhile."""


class LocalDispatch:
    """Executes bodies in this process and its children. Threads and processes are started when they are needed.

    It belongs to the loop on which it is first used. Calls that async bodies make into blocking code have threads of their
    own, so that they do not wait for bodies that block.
    """

    def __init__(
        self,
        *,
        threads: int = 128,
        processes: int = 1,
        process_grace_seconds: float = 5.0,
        child: str = CHILD,
    ) -> None:
        refuse_while_importing()
        self._threads = threads
        self._processes = processes
        self._process_grace_seconds = process_grace_seconds
        self._child = child
        self._inlet: Inlet | None = None
        self._bodies: ThreadPool | None = None
        self._calls: ThreadPool | None = None
        self._children: ProcessPool | None = None

    @property
    def lost_threads(self) -> int:
        """How many threads are inside bodies and calls that nobody waits for any more."""
        return sum(pool.lost for pool in (self._bodies, self._calls) if pool is not None)

    async def execute(self, task: Task) -> Any:
        """See `Dispatch.execute`."""
        caller = cast("asyncio.Task[Any]", asyncio.current_task())
        cancelled_before = caller.cancelling()
        try:
            return await self._execute(task, caller)
        except BaseException as error:  # a body may raise anything, and nothing it raises may end more than its attempt
            is_cancelled = isinstance(error, asyncio.CancelledError) and caller.cancelling() > cancelled_before
            if is_cancelled or (told := contained(error)) is error or is_being_closed(error, caller):
                raise
            raise told from error

    def vacate(self, kind: SlotKind, release: Callable[[SlotKind], None]) -> None:
        """See `Dispatch.vacate`."""
        if kind == "thread" and self._bodies is not None:
            self._bodies.vacate(functools.partial(release, kind))
        else:
            release(kind)

    async def close(self) -> None:
        """End all threads and processes; bodies that still run there are told to stop."""
        async with asyncio.TaskGroup() as closing:
            for pool in (self._bodies, self._calls, self._children):
                if pool is not None:
                    closing.create_task(pool.close())

    def _execute(self, task: Task, caller: asyncio.Task[Any]) -> Coroutine[Any, Any, Any]:
        match slot_kind(task.node_type):
            case "loop":
                return self._on_loop(task, caller)
            case "thread":
                return self._in_thread(task)
            case "process":
                return self._in_process(task)

    async def _on_loop(self, task: Task, caller: asyncio.Task[Any]) -> Any:
        place = LoopPlace(task.info, caller, self._loop_inlet(), self._call_threads)
        try:
            if encoded_size(task) > DECODED_ON_LOOP_MAX_BYTES:
                arguments = await self._call_threads().run(functools.partial(decoded, task))
            else:
                arguments = decoded(task)
            if task.on_begin is not None:
                task.on_begin()
            return await live(task, place, arguments)
        finally:
            place.end()

    async def _in_thread(self, task: Task) -> Any:
        if self._bodies is None:
            self._bodies = ThreadPool(self._threads, self._loop_inlet())
        place = ThreadPlace(task.info, self._loop_inlet())
        try:
            return await self._bodies.run(
                functools.partial(live_in_thread, task, place),
                on_begin=task.on_begin,
                on_abandon=place.end,
                on_late=task.on_late,
            )
        finally:
            place.end()

    async def _in_process(self, task: Task) -> Any:
        if self._children is None:
            self._children = ProcessPool(self._processes, child=self._child, grace_seconds=self._process_grace_seconds)
        return await self._children.execute(task)

    def _call_threads(self) -> ThreadPool:
        if self._calls is None:
            self._calls = ThreadPool(self._threads, self._loop_inlet())
        return self._calls

    def _loop_inlet(self) -> Inlet:
        if self._inlet is None:
            self._inlet = Inlet(asyncio.get_running_loop())
        return self._inlet
