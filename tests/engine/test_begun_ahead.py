"""The task of a lone body begins while its start is being written, and waits for that: its body does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Engine, EngineSettings, Run, node, workflow
from perdure.errors import RunCancelled
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.transitions import LeaseLost, Transition
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole, log_of

SETTINGS = EngineSettings(recovery_seconds=0.2, poll_seconds=0.1, grace_seconds=5.0)

calls: list[int] = []


@node
async def ahead(n: int) -> int:
    calls.append(n)
    return n + 1


@node(timeout=0.2)
async def ahead_in_time(n: int) -> int:
    calls.append(n)
    return n + 1


@workflow
def ahead_two(n: int) -> int:
    return ahead.named("second")(ahead.named("first")(n))


@workflow
def ahead_two_in_time(n: int) -> int:
    return ahead_in_time.named("second")(ahead_in_time.named("first")(n))


class HeldStore(StoreProxy):
    """A store that writes the start of the second node when it is told to."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()
        self.refuses = False

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit" and not self.is_held.is_set() and any(map(_starts_second, args[0])):
            self.is_held.set()
            await self.go_on.wait()
            if self.refuses:
                return [LeaseLost() for _ in args[0]]
        return await call()


def _starts_second(transition: Transition) -> bool:
    events: Sequence[Any] = [entry.event for entry in transition.events]
    return any(isinstance(event, e.NodeStarted) and event.node_id == "second" for event in events)


@asynccontextmanager
async def held(store_url: str, flow: Any = ahead_two) -> AsyncIterator[tuple[HeldStore, Engine, Run[int]]]:
    """Give a run whose second node has been decided to start, its task there, and the record of that on its way."""
    calls.clear()
    async with Engine(store_url) as owner:
        store = HeldStore(owner.store)
        async with Engine(store.as_store, workflows=[flow], settings=SETTINGS) as engine:
            run = await engine.start(flow, n=1)
            await store.is_held.wait()
            while not tasks_of_second():
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)  # it has come as far as it can
            assert calls == [1]
            yield store, engine, run
        assert not tasks_of_second()


def tasks_of_second() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().endswith("/second")]


async def test_a_body_begins_when_its_start_is_durable(store_url: str):
    async with held(store_url) as (store, engine, run):
        store.go_on.set()

        assert await run.result() == 3
        assert calls == [1, 2]
        await assert_whole(engine, run)


async def test_waiting_for_the_record_is_no_part_of_the_time_a_body_has_or_takes(store_url: str):
    async with held(store_url, ahead_two_in_time) as (store, _, run):
        await asyncio.sleep(0.4)
        store.go_on.set()

        assert await run.result() == 3
        (second,) = [entry.event for entry in await log_of(run) if _completes_second(entry.event)]
        assert second.duration_ms < 200


def _completes_second(event: Any) -> bool:
    return isinstance(event, e.NodeCompleted) and event.node_id == "second"


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_run_that_is_cancelled_meanwhile_begins_nothing(store_url: str, at_once: bool):
    async with held(store_url) as (store, engine, run):
        await run.cancel()
        if not at_once:
            await asyncio.sleep(0.3)  # the command is decided about before the start is durable
        store.go_on.set()

        with pytest.raises(RunCancelled):
            await run.result()
        assert calls == [1] or (at_once and calls == [1, 2])
        await assert_whole(engine, run)


async def test_a_run_that_is_paused_meanwhile_begins_nothing_and_goes_on_later(store_url: str):
    async with held(store_url) as (store, engine, run):
        await run.pause()
        await asyncio.sleep(0.3)
        store.go_on.set()
        assert (await run.wait()).status is RunStatus.PAUSED
        assert calls == [1]

        await run.resume()

        assert await run.result() == 3
        assert calls == [1, 2]
        await assert_whole(engine, run)


async def test_a_run_that_is_lost_meanwhile_begins_nothing_here(store_url: str):
    async with held(store_url) as (store, _, run):
        store.refuses = True
        store.go_on.set()
        while tasks_of_second():
            await asyncio.sleep(0)
        assert calls == [1]

        assert await run.result() == 3  # it is this engine that takes it up again, from what is recorded


async def test_a_task_that_others_cancel_meanwhile_is_begun_anew(store_url: str):
    async with held(store_url) as (store, engine, run):
        for task in tasks_of_second():
            task.cancel()
        store.go_on.set()

        assert await run.result() == 3
        assert calls == [1, 2]
        await assert_whole(engine, run)


async def test_a_task_that_others_have_cancelled_is_begun_anew(store_url: str):
    async with held(store_url) as (store, engine, run):
        for task in tasks_of_second():
            task.cancel()
        while tasks_of_second():
            await asyncio.sleep(0)
        store.go_on.set()

        assert await run.result() == 3
        assert calls == [1, 2]
        await assert_whole(engine, run)


async def test_an_engine_that_stops_meanwhile_leaves_nothing(store_url: str):
    async with held(store_url) as (store, engine, run):
        asyncio.get_running_loop().call_later(0.2, store.go_on.set)
        await engine.stop()  # what was decided to start may end
        assert not tasks_of_second()

    async with Engine(store_url, workflows=[ahead_two], settings=SETTINGS) as engine:
        assert await (await engine.get(run.run_id)).result() == 3
        assert calls == [1, 2]
