"""A signal may come at any moment of watching a run, also before anything was read of it."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.console import Console

from perdure import Engine, EngineSettings, node, workflow
from perdure.cli.live import Picture
from perdure.cli.plainly import Lines, Silence
from perdure.cli.running import drive
from perdure.cli.watch import Display
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy

ROUNDS = 1_000
DISPLAYS: dict[str, Callable[[], Display]] = {
    "picture": lambda: Picture(Console(file=io.StringIO(), force_terminal=True)),
    "lines": Lines,
    "silence": Silence,
}


@node
async def endless() -> int:
    await asyncio.Event().wait()
    return 0


@workflow
def endlessly() -> int:
    return endless()


class SignalledBeforeReading(StoreProxy):
    """Has the process told to end before any event of a run is read, and waits until it must have heard of it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_told = False

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "load_events" and not self.is_told:
            self.is_told = True
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
        return await call()


@pytest.mark.parametrize("name", DISPLAYS)
async def test_a_signal_before_anything_is_known_of_a_run_lets_go_of_it(store_url: str, name: str):
    store = await open_store(store_url)
    try:
        signalled = SignalledBeforeReading(store)
        settings = EngineSettings(grace_seconds=0.1)
        async with Engine(signalled.as_store, settings=settings, workflows=[endlessly], recover=False) as engine:
            run = await engine.start(endlessly)
            async with asyncio.timeout(30):
                display = DISPLAYS[name]()
                number = await drive(engine, run.run_id, display, known=0)
                display.close()

        assert signalled.is_told
        assert number == signal.SIGTERM
        left = await store.load_run(run.run_id)
        assert left is not None
        assert (left.run.status, left.owner) == (RunStatus.RUNNING, None)
    finally:
        await store.close()
