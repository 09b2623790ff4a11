"""The dispatch of an engine that runs all bodies itself: on its loop, in threads and in child processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from perdure.dispatch.base import BodyKind, Session, SlotKind, Task, slot_kind
from perdure.dispatch.body import Life, Live, decoded, is_large, live, live_in_thread
from perdure.dispatch.failure import contained
from perdure.dispatch.imports import refuse_while_importing
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.places import LoopPlace, ThreadPlace, contain
from perdure.dispatch.processes import ProcessPool
from perdure.dispatch.sessions import LoopSession, ShortLives, ThreadSession
from perdure.dispatch.threads import ThreadPool

CHILD = "perdure.engine.attempts.child"
"""What a child process runs unless told otherwise. It brings the codecs, which this package does not know."""
MAX_STREAM_THREADS = 10_000
"""Bodies that give or read streams wait for each other, so that each has a thread of its own."""


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
        self._streams: ThreadPool | None = None
        self._children: ProcessPool | None = None

    @property
    def lost_threads(self) -> int:
        """How many threads are inside bodies and calls that nobody waits for any more."""
        return sum(pool.lost for pool in (self._bodies, self._calls, self._streams) if pool is not None)

    def prepare(self, task: Task) -> Task:
        """See `Dispatch.prepare`."""
        if self._kind_of(task) != "loop" or is_large(task):
            return task
        try:
            return msgspec.structs.replace(task, decoded=decoded(task))
        except BaseException as error:  # decoding calls codecs of the user's, which may raise anything
            raise contained(error) from error

    def execute(self, task: Task) -> Coroutine[Any, Any, Any]:
        """See `Dispatch.execute`."""
        return contain(self._execute, task, live)

    async def open(self, task: Task) -> Session:
        """See `Dispatch.open`."""
        kind = self._kind_of(task)
        if task.node_type.class_shape is None or kind == "process":
            return ShortLives(self.execute, task.properties)
        return await contain(self._open_on_loop if kind == "loop" else self._open_in_thread, task)

    def has_place(self, kind: SlotKind) -> bool:
        """See `Dispatch.has_place`."""
        return kind != "thread" or self._bodies is None or self._bodies.has_place

    def vacate(self, kind: SlotKind, release: Callable[[SlotKind], None]) -> None:
        """See `Dispatch.vacate`."""
        if kind == "thread" and self._bodies is not None:
            self._bodies.vacate(functools.partial(release, kind))
        else:
            release(kind)

    async def close(self) -> None:
        """End all threads and processes; bodies that still run there are told to stop."""
        async with asyncio.TaskGroup() as closing:
            for pool in (self._bodies, self._calls, self._streams, self._children):
                if pool is not None:
                    closing.create_task(pool.close())

    def _execute(self, task: Task, lives: Live) -> Coroutine[Any, Any, Any]:
        match self._kind_of(task):
            case "loop":
                return self._on_loop(task, lives)
            case "thread":
                return self._in_thread(task, lives)
            case "process":
                return self._in_process(task)

    async def _on_loop(self, task: Task, lives: Live) -> Any:
        place = self._loop_place(task)
        try:
            arguments = task.decoded
            if arguments is None:
                arguments = await self._decoded(task) if is_large(task) else decoded(task)
            if task.on_begin is not None:
                task.on_begin()
            return await lives(task, place, arguments)
        finally:
            place.end()

    async def _open_on_loop(self, task: Task) -> Session:
        place = self._loop_place(task)
        session = LoopSession(Life(task, place), place, self._call)
        arguments = await self._decoded(task) if is_large(task) else decoded(task)
        if task.on_begin is not None:
            task.on_begin()
        await session.begin(arguments)
        return session

    def _decoded(self, task: Task) -> Coroutine[Any, Any, dict[str, Any]]:
        return self._call_threads().run(functools.partial(decoded, task))

    async def _in_thread(self, task: Task, lives: Live) -> Any:
        place = ThreadPlace(task.info, self._loop_inlet())
        is_streaming = task.info.item is None and (task.outlet is not None or bool(task.feeds))
        threads = self._stream_threads() if is_streaming else self._body_threads()
        try:
            result = await threads.run(
                functools.partial(live_in_thread, task, place, lives),
                on_begin=task.on_begin,
                on_abandon=place.end,
                on_late=task.on_late,
            )
            place.settle()
            return result
        finally:
            place.end()

    async def _open_in_thread(self, task: Task) -> Session:
        session = ThreadSession(task, ThreadPlace(task.info, self._loop_inlet()), self._body_threads(), self._call)
        await session.begin()
        return session

    async def _in_process(self, task: Task) -> Any:
        if self._children is None:
            self._children = ProcessPool(self._processes, child=self._child, grace_seconds=self._process_grace_seconds)
        return await self._children.execute(task)

    def _call(self, task: Task, lives: Live) -> Coroutine[Any, Any, Any]:
        return contain(self._execute, task, lives)

    def _kind_of(self, task: Task) -> BodyKind:
        return slot_kind(task.node_type)

    def _loop_place(self, task: Task) -> LoopPlace:
        inlet = self._loop_inlet()
        return LoopPlace(task.info, asyncio.current_task(inlet.loop), inlet, self._call_threads)

    def _body_threads(self) -> ThreadPool:
        if self._bodies is None:
            self._bodies = ThreadPool(self._threads, self._loop_inlet())
        return self._bodies

    def _stream_threads(self) -> ThreadPool:
        if self._streams is None:
            self._streams = ThreadPool(MAX_STREAM_THREADS, self._loop_inlet())
        return self._streams

    def _call_threads(self) -> ThreadPool:
        if self._calls is None:
            self._calls = ThreadPool(self._threads, self._loop_inlet())
        return self._calls

    def _loop_inlet(self) -> Inlet:
        if self._inlet is None:
            self._inlet = Inlet(asyncio.get_running_loop())
        return self._inlet
