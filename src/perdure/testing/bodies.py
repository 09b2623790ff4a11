"""Bodies of users' workflows on a virtual loop: wherever they run, and counted.

A body in a thread or in a process works in real time, as does one on the loop that has opened a socket, and so the loop's time
passes as it really does. While a body waits for something that the loop brings (an answer, a time, an item), the loop is free
to move its time on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import msgspec

from perdure.dispatch.base import Feed, Outlet, Services, Session, Task
from perdure.dispatch.body import Live
from perdure.dispatch.local import LocalDispatch
from perdure.dispatch.threads import ThreadPool
from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.testing.ledger import Effect, Ledger
from perdure.testing.loop import VirtualLoop, Worker
from perdure.testing.process import require_alive

T = TypeVar("T")


class CountingDispatch(LocalDispatch):
    """Runs bodies as an engine does, and writes a line to the ledger for each time that one begins."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    async def open(self, task: Task) -> Session:
        worker = self._worker(task)
        with _at_work(worker):
            return await super().open(_with_waits(task, worker))

    async def close(self) -> None:
        with _at_work(Worker()):
            await super().close()

    async def _execute(self, task: Task, lives: Live) -> Any:
        require_alive()
        self._ledger.write(task.info.run_id, _begun(task))
        worker = self._worker(task)
        with _at_work(worker):
            return await super()._execute(_with_waits(task, worker), lives)

    def _worker(self, task: Task) -> Worker:
        return Worker(is_on_loop=self._kind_of(task) == "loop")

    def _body_threads(self) -> ThreadPool:
        if self._bodies is None:
            self._bodies = _LastingThreads(self._threads, self._loop_inlet())
        return self._bodies

    def _call_threads(self) -> ThreadPool:
        if self._calls is None:
            self._calls = _Threads(self._threads, self._loop_inlet())
        return self._calls


def _begun(task: Task) -> Effect:
    info = task.info
    return Effect(node_id=NodeId(info.node_id), attempt=info.attempt, key=info.idempotency_key, item=info.item)


class _LastingThreads(ThreadPool):
    """Threads of bodies. What is run to its end is the end of an instance, for which no body is at work any more."""

    async def run_to_end(self, function: Callable[[], T]) -> T:
        with _at_work(Worker()):
            return await super().run_to_end(function)


class _Threads(_LastingThreads):
    """Threads in which async bodies call what blocks."""

    async def run(
        self,
        function: Callable[[], T],
        *,
        on_begin: Callable[[], None] | None = None,
        on_abandon: Callable[[], None] | None = None,
        on_late: Callable[[Exception | None], None] | None = None,
    ) -> T:
        with _at_work(Worker()):
            return await super().run(function, on_begin=on_begin, on_abandon=on_abandon, on_late=on_late)


def _with_waits(task: Task, worker: Worker) -> Task:
    """Return the task of a body that tells of everything that it waits for."""
    outlet = None if task.outlet is None else cast("Outlet", _Outlet(task.outlet, worker))
    feeds = {name: cast("Feed", _Feed(feed, worker)) for name, feed in task.feeds.items()}
    services = cast("Services", _Services(task.services, worker))
    return msgspec.structs.replace(task, services=services, outlet=outlet, feeds=feeds)


class _Told:
    def __init__(self, inner: Any, worker: Worker) -> None:
        self._inner = inner
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Services(_Told):
    async def outcome(self, wanted: WaitFor, value: Any = NOT_GIVEN) -> Came:
        with self._worker.waiting():
            return cast("Came", await self._inner.outcome(wanted, value))


class _Outlet(_Told):
    async def room(self) -> None:
        with self._worker.waiting():
            await self._inner.room()


class _Feed:
    def __init__(self, inner: Feed, worker: Worker) -> None:
        self._inner = inner
        self._worker = worker

    @property
    def used(self) -> int:
        return self._inner.used

    @used.setter
    def used(self, count: int) -> None:
        self._inner.used = count

    async def take(self) -> Sequence[Encoded] | None:
        with self._worker.waiting():
            return await self._inner.take()


def _at_work(worker: Worker) -> AbstractContextManager[None]:
    loop = asyncio.get_running_loop()
    return loop.at_work(worker) if isinstance(loop, VirtualLoop) else nullcontext()
