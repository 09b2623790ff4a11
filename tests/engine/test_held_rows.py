"""A run whose row somebody else holds in PostgreSQL holds up nobody but itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from perdure import Engine, EngineSettings, node, workflow
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole, held_row, log_of

SETTINGS = EngineSettings(poll_seconds=0.2, recovery_seconds=0.2, patience_seconds=60)
PROMPT_SECONDS = 10
"""Far below the patience that engines have with a held row, and far above what anything here takes."""

is_open: asyncio.Event


@pytest.fixture(autouse=True)
def closed_gate():
    global is_open
    is_open = asyncio.Event()


@node
async def gate(x: int) -> int:
    await is_open.wait()
    return x


@node(once=True)
async def once(x: int) -> int:
    await is_open.wait()
    return x


@workflow
def gated(x: int) -> int:
    return gate(x)


@workflow
def doubtful(x: int) -> int:
    return once(x)


async def leave_behind(url: str, *run_ids: str) -> None:
    async with Engine(url, settings=SETTINGS) as engine:
        for run_id in run_ids:
            await engine.start(gated, run_id=run_id, x=1)
        await engine.stop(grace_seconds=0)


async def test_runs_are_recovered_beside_one_that_is_held(postgres_url: str):
    await leave_behind(postgres_url, "held", "other", "third")
    is_open.set()

    async with AsyncExitStack() as holding:
        await holding.enter_async_context(held_row(postgres_url, "held"))
        async with Engine(postgres_url, settings=SETTINGS) as engine:
            async with asyncio.timeout(PROMPT_SECONDS):
                assert await (await engine.get("other")).result() == 1
                assert await (await engine.get("third")).result() == 1
            held = await engine.get("held")
            assert await held.status() is RunStatus.RUNNING
            await holding.aclose()
            async with asyncio.timeout(PROMPT_SECONDS):
                assert await held.result() == 1
            await assert_whole(engine, held)


async def test_commands_are_taken_up_beside_a_run_that_is_held(postgres_url: str):
    async with Engine(postgres_url, settings=SETTINGS) as engine:
        await engine.start(doubtful, run_id="resting", x=1)
        await engine.stop(grace_seconds=0)
    await leave_behind(postgres_url, "held")

    async with Engine(postgres_url, settings=SETTINGS, recover=False) as engine:
        async with held_row(postgres_url, "held"):
            waiting = asyncio.create_task((await engine.get("held")).result())
            while engine.driver_of((await engine.get("held")).run_id) is None:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(PROMPT_SECONDS):
                resting = await engine.get("resting")
                await resting.resolve("once", "done", output=7)
                async for _ in resting.events():
                    pass
                assert await resting.result() == 7
        is_open.set()
        async with asyncio.timeout(PROMPT_SECONDS):
            assert await waiting == 1


class Forgetful(StoreProxy):
    """A store that takes the engine for dead, once."""

    is_forgetful = False

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "renew_engine" and self.is_forgetful:
            self.is_forgetful = False
            return False
        return await call()


async def test_a_claim_that_waits_is_given_up_with_the_lease_under_which_it_was_made(postgres_url: str):
    settings = msgspec.structs.replace(SETTINGS, heartbeat_seconds=0.1, heartbeat_in_thread=False)
    await leave_behind(postgres_url, "held")
    is_open.set()
    inner = await open_store(postgres_url)
    store = Forgetful(inner)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(inner.close)
        holding = await stack.enter_async_context(AsyncExitStack())
        await holding.enter_async_context(held_row(postgres_url, "held"))
        engine = await stack.enter_async_context(Engine(store.as_store, settings=settings))
        held = await engine.get("held")
        first_name = engine.engine_id
        async with asyncio.timeout(PROMPT_SECONDS):
            while engine.driver_of(held.run_id) is None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # the claim has been offered, and the row is held
            store.is_forgetful = True
            while engine.engine_id == first_name or engine.driver_of(held.run_id) is None:
                await asyncio.sleep(0.01)
            await holding.aclose()
            assert await held.result() == 1
        claims = [entry.event for entry in await log_of(held) if isinstance(entry.event, e.RunClaimed)]
        assert [claim.engine_id for claim in claims[1:]] == [engine.engine_id]
        await assert_whole(engine, held)
