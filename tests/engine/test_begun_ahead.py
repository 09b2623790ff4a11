"""The task of a lone body begins while its start is being written, and waits for that: its body does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from perdure import Engine, EngineSettings, Run, node, workflow
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.bodies import Bodies
from perdure.errors import RunCancelled
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
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


@node(once=True)
async def ahead_once(n: int) -> int:
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


@workflow
def ahead_two_once(n: int) -> int:
    return ahead_once.named("second")(ahead_once.named("first")(n))


def ahead_starting() -> Graph:
    """Return a workflow whose second node starts a run of the first one."""
    return graph_from_json(
        {
            "name": "ahead_starting",
            "inputs": [{"name": "n"}],
            "nodes": [
                {"id": "first", "type": ahead.name},
                {"id": "second", "type": "perdure.start", "data": {"workflow": "ahead_two"}},
            ],
            "edges": [
                {"source": "$input", "sourceHandle": "n", "target": "first", "targetHandle": "n"},
                {"source": "first", "target": "second", "targetHandle": "n"},
                {"source": "second", "target": "$output", "targetHandle": "result"},
            ],
        }
    )


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
async def held(
    store_url: str, flow: Any = ahead_two, settings: EngineSettings = SETTINGS
) -> AsyncIterator[tuple[HeldStore, Engine, Run[int]]]:
    """Give a run whose second node has been decided to start, its task there, and the record of that on its way."""
    calls.clear()
    async with Engine(store_url) as owner:
        store = HeldStore(owner.store)
        workflows = [ahead_two, ahead_two_in_time, ahead_two_once]
        async with Engine(store.as_store, workflows=workflows, settings=settings) as engine:
            run = await engine.start(flow, n=1, run_id="run")
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


async def until_heard(engine: Engine, run: Run[int]) -> None:
    """Wait until the command that was given is decided about, although nothing is durable yet."""
    driver = engine.driver_of(run.run_id)
    assert driver is not None
    while not driver.hearing.has_untaken:
        await asyncio.sleep(0)


FLOWS = {"plain": ahead_two, "once": ahead_two_once, "starting": ahead_starting()}


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_run_that_is_cancelled_meanwhile_begins_nothing(store_url: str, flow: str):
    async with held(store_url, FLOWS[flow]) as (store, engine, run):
        await run.cancel()
        await until_heard(engine, run)
        store.go_on.set()

        with pytest.raises(RunCancelled):
            await run.result()
        assert calls == [1]
        await asyncio.sleep(0.05)
        assert not tasks_of_second()
        assert [found.run_id for found in await engine.list()] == ["run"]
        await assert_whole(engine, run)


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_run_that_is_paused_meanwhile_begins_nothing_and_goes_on_later(store_url: str, flow: str):
    async with held(store_url, FLOWS[flow]) as (store, engine, run):
        await run.pause()
        await until_heard(engine, run)
        store.go_on.set()
        assert (await run.wait()).status is RunStatus.PAUSED
        assert calls == [1]
        assert [found.run_id for found in await engine.list()] == ["run"]

        await run.resume()

        await run.result()
        assert calls[:2] == [1, 2]
        await assert_whole(engine, run)


async def test_a_run_that_is_lost_meanwhile_begins_nothing_here(store_url: str):
    async with held(store_url) as (store, _, run):
        store.refuses = True
        store.go_on.set()
        while tasks_of_second():
            await asyncio.sleep(0)
        assert calls == [1]

        assert await run.result() == 3  # it is this engine that takes it up again, from what is recorded


async def test_a_task_that_others_cancel_before_it_has_come_to_wait_is_begun_anew(
    store_url: str, monkeypatch: pytest.MonkeyPatch
):
    begin = Bodies._begin  # pyright: ignore[reportPrivateUsage]
    cancelled: list[Actor] = []

    def begin_and_cancel(self: Bodies, actor: Actor, group: asyncio.TaskGroup) -> None:
        begin(self, actor, group)
        if actor.node_id == "second" and not cancelled:
            cancelled.append(actor)
            assert actor.task is not None
            actor.task.cancel()
            store.go_on.set()

    monkeypatch.setattr(Bodies, "_begin", begin_and_cancel)
    calls.clear()
    async with Engine(store_url) as owner:
        store = HeldStore(owner.store)
        async with Engine(store.as_store, workflows=[ahead_two], settings=SETTINGS) as engine, asyncio.timeout(20):
            run = await engine.start(ahead_two, n=1)

            assert await run.result() == 3
            assert calls == [1, 2]
            assert cancelled
            await assert_whole(engine, run)


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


@pytest.mark.parametrize("grace_seconds", [0.0, 5.0])
async def test_an_engine_that_stops_meanwhile_leaves_nothing(store_url: str, grace_seconds: float):
    settings = msgspec.structs.replace(SETTINGS, grace_seconds=grace_seconds)
    async with held(store_url, ahead_two_once, settings) as (store, engine, run):
        asyncio.get_running_loop().call_later(0.2, store.go_on.set)
        await engine.stop()  # what was decided to start may end
        assert not tasks_of_second()

    async with Engine(store_url, workflows=[ahead_two_once], settings=SETTINGS) as engine:
        assert await (await engine.get(run.run_id)).result() == 3
        assert calls == [1, 2]
