"""Where the runs of a user's test take place: a world in virtual time, used from code that is not async.

Time stands still between two calls. During a call it passes as far as it must, in no time at all, except while bodies are at
work in threads and processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.journal.states import MOVING, RunState, RunStatus
from perdure.store.base import Store
from perdure.testing.bodies import CountingDispatch
from perdure.testing.crashes import CrashingStore, CrashPlan
from perdure.testing.loop import BEGIN_SECONDS, VirtualClock, VirtualLoop
from perdure.testing.process import Process
from perdure.testing.stores import opened_store
from perdure.testing.world import World

T = TypeVar("T")

DAY_SECONDS = 86_400.0
UPKEEP_SECONDS = 366 * DAY_SECONDS
"""How often an engine looks after itself. It hears at once of whatever happens in its own process, and there is no other."""
LONGEST_SECONDS = 20 * 366 * DAY_SECONDS
"""How long a run may take until it rests, in virtual time."""
PATIENCE_SECONDS = 60.0
"""How long that may take in real time."""

SETTINGS = EngineSettings(
    heartbeat_in_thread=False,
    heartbeat_seconds=UPKEEP_SECONDS,
    lease_seconds=10 * LONGEST_SECONDS,
    poll_seconds=UPKEEP_SECONDS,
    recovery_seconds=UPKEEP_SECONDS,
    processes=2,
)

_UPKEEP = ("perdure logs", "perdure tick")


class NeverRests(AssertionError):
    """What was started neither ended nor rested."""


class StageClock(VirtualClock):
    """Virtual time in which an engine's upkeep does not come many times a second, which would make a year take hours."""

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        is_upkeep = task is not None and task.get_name() in _UPKEEP
        await asyncio.sleep(max(seconds, UPKEEP_SECONDS) if is_upkeep else seconds)


class Stage:
    """A world with an engine in it, open until it is closed."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        process: Callable[[], Process] = lambda: Process("test"),
        plan: CrashPlan | None = None,
        begin_seconds: float = BEGIN_SECONDS,
    ) -> None:
        """The engine is that of a process, with a plan for its end if it is to have one."""
        self.url = url
        self._folder = folder
        self._process = process
        self._plan = plan
        self._runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(begin_seconds=begin_seconds, is_patient=True))
        self.world: World
        self.engine: Engine
        self.door: CrashingStore
        self._closing: asyncio.Event
        self._living: asyncio.Task[None]
        self._run(self._open())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop of the stage, to its end."""
        try:
            return self._run(self._heeded(work))
        except ExceptionGroup as group:
            raise _innermost(group) from None

    def close(self) -> None:
        try:
            self._run(self._close())
        finally:
            self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(work)
        with ThreadPoolExecutor(1) as beside:  # the test itself is async
            return beside.submit(self._runner.run, work).result()

    async def _open(self) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._living = asyncio.get_running_loop().create_task(self._live(opened), name="stage")
        await asyncio.wait((opened, self._living), return_when=asyncio.FIRST_COMPLETED)
        if self._living.done():
            self._living.result()

    async def _live(self, opened: asyncio.Future[None]) -> None:
        async with opened_store(self.url) as store, self._made_world(store) as self.world:
            self.door = self.world.door(self._process(), self._plan)
            self.engine = self.world.engine(self.door)
            async with self.engine:
                opened.set_result(None)
                await self._closing.wait()
                await self.engine.stop(grace_seconds=0)

    def _made_world(self, store: Store) -> World:
        world = World(
            store,
            self._folder,
            settings=SETTINGS,
            clock=StageClock,
            dispatch=lambda: CountingDispatch(world.ledger),
            patience_seconds=LONGEST_SECONDS,
        )
        return world

    async def _close(self) -> None:
        self._closing.set()
        await self._living

    async def _heeded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, unless the stage comes down meanwhile or it takes too long."""
        loop = asyncio.get_running_loop()
        working = loop.create_task(work)
        watchdog = threading.Timer(PATIENCE_SECONDS, loop.call_soon_threadsafe, (working.cancel,))
        watchdog.daemon = True
        watchdog.start()
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await asyncio.wait((working, self._living), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise NeverRests(_too_long(f"{LONGEST_SECONDS / DAY_SECONDS / 366:g} years of virtual time")) from None
        finally:
            watchdog.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
        if working.cancelled():
            if self._living.done():
                self._living.result()
            raise NeverRests(_too_long(f"{PATIENCE_SECONDS:g} s"))
        return working.result()


def is_at_rest(run: RunState) -> bool:
    """Whether a run rests, be it only until some time."""
    return run.status not in MOVING


def needs_somebody(run: RunState) -> bool:
    """Whether a run rests until somebody acts."""
    return is_at_rest(run) and not (run.status is RunStatus.SUSPENDED and run.wake_at is not None)


def _innermost(group: ExceptionGroup[Exception]) -> Exception:
    """Return what went wrong, if it is one thing."""
    error, *others = group.exceptions
    if others:
        return group
    return _innermost(cast("ExceptionGroup[Exception]", error)) if isinstance(error, ExceptionGroup) else error


def _too_long(span: str) -> str:
    return (
        f"What was started has neither ended nor come to rest in {span}. A workflow that goes on for ever is looked at with "
        "`perdure.start(…)` and `perdure.advance(…)`."
    )
