"""Signals to runs that have ended, or end in this very moment: who sends one is told what came of it. And signals that come when
it is too late for those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.runs.run import Run
from perdure.errors import CommandIdTaken, RunCancelled, RunEnded, RunFailed
from perdure.journal import events as e
from perdure.journal.events import Journal
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import Later, assert_whole, log_of

broken: set[str] = set()


@pytest.fixture(autouse=True)
def whole() -> None:
    broken.clear()


@node
async def late_step(x: int) -> int:
    if "step" in broken:
        raise ValueError("broken")
    return x


@node
async def late_awaited(ctx: Context, x: int) -> int:
    return x + int(await ctx.wait_for("more"))


@workflow
def late_flow(x: int) -> int:
    return late_awaited(late_step(x))


class Before(StoreProxy):
    """Lets something happen just before a command is kept, once."""

    def __init__(self, inner: Store, happen: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._happen: Callable[[], Awaitable[Any]] | None = happen

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        happen, is_signal = self._happen, name == "add_command" and args[0].kind == "signal"
        if is_signal and happen is not None:
            self._happen = None
            await happen()
        return await call()


async def kept(engine: Engine, run: Run[Any]) -> list[str]:
    return [command.kind for command in await engine.store.latest_commands(run.run_id, limit=10)]


async def received(run: Run[Any]) -> list[str]:
    return [entry.event.signal_id for entry in await log_of(run) if isinstance(entry.event, e.SignalReceived)]


async def test_a_run_that_has_ended_hears_no_signal(store_url: str) -> None:
    broken.add("step")
    async with Engine(store_url) as engine:
        run = await engine.start(late_flow, x=1)
        with pytest.raises(RunFailed):
            await run.result()

        with pytest.raises(RunEnded, match="Signal 'more' was not sent") as refused:
            await run.signal("more", 10)

        assert refused.value.status == "failed"
        assert await kept(engine, run) == []
        broken.clear()
        await run.retry()
        await run.signal("more", 100)
        assert await run.result() == 101
        await assert_whole(engine, run)


async def test_a_signal_that_a_run_has_heard_may_be_sent_again_when_it_has_ended(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(late_flow, x=1)
        await run.signal("more", 10, id="one")
        assert await run.result() == 11

        await run.signal("more", 10, id="one")

        assert await received(run) == ["one"]
        with pytest.raises(CommandIdTaken):
            await run.signal("more", 11, id="one")
        with pytest.raises(RunEnded):
            await run.signal("more", 10, id="another")
        assert await kept(engine, run) == []
        await assert_whole(engine, run)


async def test_a_signal_that_comes_just_after_the_end_comes_to_nothing(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(late_flow, x=1)

        async def end() -> None:
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result()

        inner = await open_store(store_url)
        async with Engine(Before(inner, end).as_store, workflows=(), recover=False) as sender:
            with pytest.raises(RunEnded, match="it is cancelled"):
                await (await sender.get(run.run_id)).signal("more", 10)
        await inner.close()

        assert await kept(engine, run) == []
        await run.retry()
        await run.signal("more", 100)
        assert await run.result() == 101
        assert len(await received(run)) == 1
        await assert_whole(engine, run)


async def test_a_signal_that_is_heard_and_ends_the_run_at_once_was_sent(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(late_flow, x=1)

        class After(StoreProxy):
            async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
                answer = await call()
                if name == "add_command":
                    await run.result()
                return answer

        inner = await open_store(store_url)
        async with Engine(After(inner).as_store, workflows=(), recover=False) as sender:
            await (await sender.get(run.run_id)).signal("more", 10)
        await inner.close()

        assert await run.result() == 11


async def test_a_signal_that_was_sent_twice_and_acknowledged_once_counts(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(late_flow, x=1)

        class Twice(StoreProxy):
            async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
                if name == "add_command":
                    await run.cancel()
                    with pytest.raises(RunCancelled):
                        await run.result()
                answer = await call()
                if name == "add_command":
                    await run.signal("more", 10, id="one")  # which is acknowledged: it is there
                return answer

        inner = await open_store(store_url)
        async with Engine(Twice(inner).as_store, workflows=(), recover=False) as sender:
            await (await sender.get(run.run_id)).signal("more", 10, id="one")
        await inner.close()

        await run.retry()
        assert await run.result() == 11
        assert await received(run) == ["one"]
        await assert_whole(engine, run)


# After the time of those who wait


async def until(run: Run[Any], status: RunStatus) -> None:
    while await run.status() is not status:
        await asyncio.sleep(0.01)


@node
async def in_time(ctx: Context) -> list[int]:
    async def more(timeout: float) -> int:
        try:
            return await ctx.wait_for("more", schema=int, timeout=timeout)
        except TimeoutError:
            return -1

    return [*await asyncio.gather(more(60), more(60), more(7_200)), await more(7_200)]


@workflow
def in_time_flow() -> list[int]:
    return in_time()


@pytest.mark.parametrize("is_paused", [False, True], ids=["asleep", "paused"])
@pytest.mark.parametrize("journal", ["log", "audit"])
async def test_a_signal_that_is_sent_too_late_for_some_is_for_others(
    store_url: str, journal: Journal, is_paused: bool
) -> None:
    async with Engine(store_url, journal=journal, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(in_time_flow)
        await until(run, RunStatus.SUSPENDED)
        if is_paused:
            await run.pause()
            await until(run, RunStatus.PAUSED)

    async with Engine(store_url, workflows=(), recover=False) as sender:
        await (await sender.get(run.run_id)).signal("more", 1)
    async with Engine(store_url, workflows=(), recover=False, clock=Later()) as sender:
        late = await sender.get(run.run_id)
        await late.signal("more", 2)
        await late.signal("more", 3)
        if is_paused:
            await late.resume()

    async with Engine(store_url, workflows=[in_time_flow], clock=Later()) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == [1, -1, 2, 3]
        await assert_whole(engine, run)
