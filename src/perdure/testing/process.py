"""An engine as if it had a process of its own: it can be killed at any moment, and then nothing of it goes on.

Several of them share one loop, one store and one `Host`, so that thousands of deaths take seconds. What a killed process
leaves behind is what a real one does: its rows. Its tasks are cancelled, and whatever they still try (a write to the store,
an effect of a body) raises `Dead`, which no clean-up code catches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from perdure.engine.engine import Engine
from perdure.ids import EngineId
from perdure.testing.loop import NumberedTask, VirtualLoop

T = TypeVar("T")

_BURIAL_ROUNDS = 1_000


class Dead(BaseException):
    """The process that asked has been killed. Not an `Exception`: nothing is supposed to handle it."""


class Host:
    """The machine on which the processes of a test run. It knows which of them have died."""

    def __init__(self) -> None:
        self.dead: set[EngineId] = set()


class Process:
    """Runs one engine until its work is done or it is killed."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.is_dead = False
        self.engine: Engine
        self._tasks: set[asyncio.Task[Any]] = set()
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, engine: Engine, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Start the engine, do the work with it and stop it. Raises Dead if the process was killed meanwhile."""
        self.engine = engine
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_owned_task)
        context = copy_context()
        context.run(_current.set, self)
        main = loop.create_task(_main(engine, work), name=self.name, context=context)
        try:
            await asyncio.wait((main, self._death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self.is_dead or not main.done():
                await self._bury()
        if self.is_dead:
            raise Dead(self.name)
        return main.result()

    def kill(self) -> None:
        """Cut everything off. From here on nothing of the process has an effect."""
        if not self.is_dead:
            self.is_dead = True
            self._death.set_result(None)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Note a task that ends with the process."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self) -> None:
        for _ in range(_BURIAL_ROUNDS):
            if not self._tasks:
                return
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.001)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # it has been seen
        raise RuntimeError(f"{len(self._tasks)} tasks of {self.name or 'a process'} do not end: {self._tasks}")


_current: ContextVar[Process | None] = ContextVar("perdure_testing_process", default=None)


def current_process() -> Process | None:
    """Return the process that the calling task belongs to, if it belongs to one."""
    return _current.get()


def require_alive() -> None:
    """Raise Dead if the calling task belongs to a process that has been killed."""
    process = _current.get()
    if process is not None and process.is_dead:
        raise Dead(process.name)


@contextmanager
def outside_of_processes() -> Generator[None]:
    """What is started meanwhile belongs to no process: it is the database's, which lives on."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


async def _main(engine: Engine, work: Callable[[Engine], Awaitable[T]]) -> T:
    async with engine:
        return await work(engine)


def _owned_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    if isinstance(loop, VirtualLoop):
        task: asyncio.Task[Any] = NumberedTask(coroutine, loop=loop, **options)
    else:
        task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    process = _current.get() if context is None else context.get(_current)
    if process is not None:
        process.own(task)
    return task
