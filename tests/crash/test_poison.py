"""Bodies that do their worst. The run that kills its engines is put aside, by name; all others finish."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunCancelled
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.opening import open_store
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.ledger import LEDGER_VARIABLE, Ledger
from perdure.testing.loop import VirtualClock, run_virtual
from tests.crash.poison_program import HEALTHY, POISONED

MAX_RECOVERIES = 5
SETTINGS = EngineSettings(heartbeat_in_thread=False)
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "kill", "segfault"])
def test_a_run_that_kills_its_engine_is_quarantined(how: str, store_url: str, tmp_path: Path):
    environment = {**os.environ, LEDGER_VARIABLE: str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "faulthandler=0", "-m", "tests.crash.poison_program", store_url, how]

    deaths = 0
    while subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, capture_output=True).returncode != 0:
        deaths += 1
        assert deaths <= MAX_RECOVERIES + 1

    # The first start and five recoveries have died of it; the sixth recovery puts it aside instead of trying again.
    assert deaths == MAX_RECOVERIES + 1
    asyncio.run(check_poisoned(store_url, tmp_path))


async def check_poisoned(url: str, folder: Path) -> None:
    store = await open_store(url)
    try:
        dump = await store.dump_run(RunId(POISONED))
        assert dump is not None
        run = dump.stored.run
        assert run.status is RunStatus.QUARANTINED
        assert run.failed_node == "deadly"
        assert "deadly" in run.reason
        assert run.recoveries == MAX_RECOVERIES + 1
        starts = [entry.event for entry in dump.events if isinstance(entry.event, e.NodeStarted)]
        ledger = Ledger(folder)
        effects = [done for done in ledger.effects(RunId(POISONED)) if done.node_id == "deadly"]
        assert len(effects) == sum(event.node_id == "deadly" for event in starts) == MAX_RECOVERIES + 1
        for run_id in [POISONED, *HEALTHY]:
            assert await verify_run(store, run_id) == []
        for run_id in HEALTHY:
            stored = await store.load_run(RunId(run_id))
            assert stored is not None
            assert stored.run.status is RunStatus.COMPLETED
    finally:
        await store.close()


# In this process


@node
async def blocks_the_loop(ctx: Context, seconds: float) -> str:
    """Block the first time."""
    if ctx.attempt == 1:
        time.sleep(seconds)  # noqa: ASYNC251
    return "awake"


@node
async def swallows_cancel(ctx: Context) -> str:
    for _ in range(3):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            continue
    return "late"


@node
async def runs_out_of_memory(ctx: Context) -> int:
    if ctx.attempt <= 2:
        raise MemoryError("no more")
    return ctx.attempt


@workflow
def blocking_workflow(seconds: float) -> str:
    return blocks_the_loop(seconds)


@workflow
def stubborn() -> str:
    return swallows_cancel()


@workflow
def greedy() -> int:
    return runs_out_of_memory()


class Bystander:
    """A second engine in a thread of its own, which would take over whatever is left alone."""

    def __init__(self, url: str, settings: EngineSettings) -> None:
        self._url = url
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))

    def __enter__(self) -> Bystander:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _live(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with Engine(self._url, workflows=[blocking_workflow], settings=self._settings):
            self._ready.set()
            await self._over.wait()


@pytest.mark.slow
async def test_a_blocked_loop_keeps_its_runs(store_url: str):
    settings = EngineSettings(lease_seconds=1.0, heartbeat_seconds=0.2, recovery_seconds=0.1)
    with Bystander(store_url, settings):
        async with Engine(store_url, workflows=[blocking_workflow], settings=settings) as engine:
            run = await engine.start(blocking_workflow, seconds=2.5)

            assert await run.result() == "awake"

            stored = await run.load()
            assert stored.run.epoch == 1
            assert await verify_run(engine, run.run_id) == []


@pytest.mark.slow
async def test_a_loop_that_is_blocked_for_too_long_loses_its_runs(store_url: str):
    settings = EngineSettings(
        lease_seconds=0.6, heartbeat_seconds=0.2, recovery_seconds=0.1, loop_stall_seconds=0.3, poll_seconds=0.2
    )
    with Bystander(store_url, settings):
        async with Engine(store_url, workflows=[blocking_workflow], settings=settings) as engine:
            run = await engine.start(blocking_workflow, seconds=2.0)

            assert await run.result() == "awake"

            stored = await run.load()
            assert stored.run.epoch >= 2
            assert await verify_run(engine, run.run_id) == []


@pytest.mark.slow
def test_a_body_that_does_not_stop_is_left_behind(sqlite_url: str):
    async def main() -> None:
        engine = Engine(
            sqlite_url, workflows=[stubborn], settings=SETTINGS, clock=VirtualClock(), dispatch=InlineDispatch()
        )
        async with engine:
            loop = asyncio.get_running_loop()
            run = await engine.start(stubborn, run_id="stubborn")
            await asyncio.sleep(1)

            asked = loop.time()
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result()

            grace = (await run.load()).run.settings.grace_seconds
            assert grace <= loop.time() - asked < grace + 5
            await asyncio.sleep(1_000)
            assert (await run.load()).run.status is RunStatus.CANCELLED
            assert await verify_run(engine, run.run_id) == []

    run_virtual(main())


def test_running_out_of_memory_is_tried_again(sqlite_url: str):
    async def main() -> None:
        engine = Engine(
            sqlite_url, workflows=[greedy], settings=SETTINGS, clock=VirtualClock(), dispatch=InlineDispatch()
        )
        async with engine:
            run = await engine.start(greedy)

            assert await run.result() == 3

    run_virtual(main())
