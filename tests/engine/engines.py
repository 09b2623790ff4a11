"""Engines for tests of what an engine does: on a file, in virtual time, with everything on the loop; and what befalls them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest

from perdure import Engine, EngineSettings
from perdure.clock import SystemClock
from perdure.engine.inspect import verify_run
from perdure.engine.runs.run import Run
from perdure.journal import events as e
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.loop import VirtualClock
from perdure.testing.process import Dead, Process
from perdure.testing.proxy import StoreProxy
from perdure.testing.world import World

T = TypeVar("T")

SETTINGS = EngineSettings(heartbeat_in_thread=False)


class AtOnce(StoreProxy):
    """Has whoever says something to a run wait until all others have looked at the run as well."""

    all_have_looked: asyncio.Barrier | None = None

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "add_command" and self.all_have_looked is not None:
            await self.all_have_looked.wait()
        return await call()


class Later(SystemClock):
    """The time of those who come an hour later."""

    def now_micros(self) -> int:
        return super().now_micros() + 3_600_000_000


def engine_on(url: Any, **options: Any) -> Engine:
    """Return an engine for a virtual loop. Options that are settings of engines are those."""
    settings = {name: options.pop(name) for name in EngineSettings.__struct_fields__ if name in options}
    return Engine(
        url,
        settings=msgspec.structs.replace(SETTINGS, **settings),
        clock=options.pop("clock", None) or VirtualClock(),
        dispatch=options.pop("dispatch", None) or InlineDispatch(),
        **options,
    )


async def killed_after(world: World, begin: Callable[[Engine], Awaitable[Any]]) -> None:
    """Let a process of this world begin something with its engine, and kill it then."""
    process = Process("first")
    door = world.door(process)

    async def live(engine: Engine) -> None:
        await begin(engine)
        door.kill()
        await asyncio.Event().wait()

    with pytest.raises(Dead):
        await process.run(world.engine(door), live)


async def in_another_process(world: World, work: Callable[[Engine], Awaitable[T]], **options: Any) -> T:
    """Do something with the engine of a process that comes after one that was killed, and return what comes of it."""
    process = Process("second")
    return await process.run(world.engine(world.door(process), **options), work)


@asynccontextmanager
async def held_row(url: str, run_id: str) -> AsyncGenerator[None]:
    """Hold the row of a run in PostgreSQL, in a session of somebody else's."""
    connection: Any = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM run_state WHERE run_id = $1 FOR UPDATE", run_id)
            yield
    finally:
        await connection.close()


async def log_of(run: Run[Any]) -> list[e.Recorded]:
    """Return the run's log as it is."""
    return [entry async for entry in run.events(follow=False)]


async def counted(run: Run[Any]) -> Counter[type[e.Event]]:
    """Return how often each type of event occurs in the run's log."""
    return Counter(type(entry.event) for entry in await log_of(run))


async def assert_whole(engine: Engine, *runs: Run[Any]) -> None:
    for run in runs:
        assert await verify_run(engine, run.run_id) == []
