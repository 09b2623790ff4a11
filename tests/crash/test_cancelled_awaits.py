"""Whoever waits for the engine may be cancelled at any moment: nothing leaks, and every run can still be finished."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import apsw
import pytest

from perdure import Context, Engine, EngineSettings, SyncContext, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import EngineStopped, RunNotFound
from perdure.journal.states import RunStatus
from perdure.testing.awaits import cancelled_at, disturbed_at
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.loop import VirtualClock, run_virtual

MOST_SUSPENSIONS = 500
RUN_ID = "run"


@node
async def slow(ctx: Context, x: int) -> int:
    await asyncio.sleep(0.1)
    return x + 1


@node
async def waiting(ctx: Context, x: int) -> int:
    await asyncio.sleep(1)
    await ctx.checkpoint(x)
    await asyncio.sleep(1)
    return x


@workflow
def short(x: int) -> int:
    return slow(slow(x))


@workflow
def long(x: int) -> int:
    return slow(waiting(slow(x)))


def engine_at(url: str, **options: Any) -> Engine:
    return Engine(
        url,
        workflows=[short, long],
        settings=EngineSettings(heartbeat_in_thread=False, grace_seconds=0.5, recovery_seconds=1.0),
        dispatch=InlineDispatch(),
        clock=VirtualClock(),
        **options,
    )


@asynccontextmanager
async def nothing_left_behind() -> AsyncGenerator[None]:
    """Nothing is there afterwards that was not there before: tasks, threads and connections. Others' may have gone meanwhile."""
    tasks, threads, connections = asyncio.all_tasks(), set(threading.enumerate()), len(apsw.connections())
    yield
    for _ in range(20):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - tasks
    assert not left
    assert not set(threading.enumerate()) - threads
    assert len(apsw.connections()) <= connections


async def finished_elsewhere(url: str) -> RunStatus | None:
    """Have another engine finish the run, if there is one, and check that it is whole."""
    async with asyncio.timeout(3_600), engine_at(url) as engine:
        try:
            run = await engine.get(RUN_ID)
        except RunNotFound:
            return None
        state = await run.wait()
        assert await verify_run(engine, RUN_ID) == []
        return state.status


def at_every_suspension(url: str, scenario: Callable[[str, int], Awaitable[bool]]) -> list[RunStatus | None]:
    """Play the scenario, cancelled at its first suspension, then at its second, until there is none left to cancel at."""
    outcomes: list[RunStatus | None] = []
    for at in range(1, MOST_SUSPENSIONS):
        here = f"{url}-{at}"

        async def main(here: str = here, at: int = at) -> tuple[bool, RunStatus | None]:
            async with nothing_left_behind():
                is_cancelled = await scenario(here, at)
            return is_cancelled, await finished_elsewhere(here)

        is_cancelled, outcome = run_virtual(main())
        outcomes.append(outcome)
        if not is_cancelled:
            return outcomes
    raise AssertionError(f"there are more than {MOST_SUSPENSIONS} suspensions")


def test_a_program_may_be_cancelled_anywhere(sqlite_url: str):
    async def program(url: str) -> int:
        async with engine_at(url) as engine:
            run = await engine.start(long, run_id=RUN_ID, x=1)
            return await run.result()

    outcomes = at_every_suspension(sqlite_url, lambda url, at: cancelled_at(at, program(url)))

    assert outcomes[0] is None
    assert len(outcomes) >= 6
    begun = outcomes.index(RunStatus.COMPLETED)
    assert begun <= 4
    assert set(outcomes[begun:]) == {RunStatus.COMPLETED}


def test_opening_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        engine = engine_at(url)
        is_cancelled = await cancelled_at(at, engine.__aenter__())
        if not is_cancelled:
            await engine.stop()
        return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {None}


def test_starting_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine:
            is_cancelled = await cancelled_at(at, engine.start(short, run_id=RUN_ID, x=1))
            # The caller has left, not the engine: it takes further calls, and the same one again.
            assert await (await engine.start(short, run_id=RUN_ID, x=1)).result() == 3
            return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {RunStatus.COMPLETED}


def test_waiting_for_a_result_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine:
            run = await engine.start(short, run_id=RUN_ID, x=1)
            is_cancelled = await cancelled_at(at, run.result())
            assert await run.result() == 3
            return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {RunStatus.COMPLETED}


@pytest.mark.slow
def test_watching_from_another_engine_may_be_cancelled_anywhere(sqlite_url: str):
    async def watch(engine: Engine) -> list[int]:
        run = await engine.get(RUN_ID)
        return [entry.seq async for entry in run.events()]

    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine, engine_at(url, recover=False) as other:
            run = await engine.start(long, run_id=RUN_ID, x=1)
            is_cancelled = await cancelled_at(at, watch(other))
            await run.result()
            seqs = await watch(other)
            assert seqs == list(range(1, len(seqs) + 1))
            return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {RunStatus.COMPLETED}


def test_cancelling_a_run_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine:
            run = await engine.start(long, run_id=RUN_ID, x=1)
            is_cancelled = await cancelled_at(at, run.cancel("enough"))
            await run.wait()
            return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert outcomes[-1] is RunStatus.CANCELLED
    assert set(outcomes) <= {RunStatus.CANCELLED, RunStatus.COMPLETED}


def test_adopting_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine:
            await engine.start(long, run_id=RUN_ID, x=1)
            await engine.stop(grace_seconds=0)
        async with engine_at(url, recover=False) as engine:
            is_cancelled = await cancelled_at(at, engine.adopt(RUN_ID))
            await engine.adopt(RUN_ID)
            assert await (await engine.get(RUN_ID)).result() == 3
            return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {RunStatus.COMPLETED}


def test_stopping_may_be_cancelled_anywhere(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        engine = engine_at(url)
        await engine.__aenter__()
        await engine.start(long, run_id=RUN_ID, x=1)
        is_cancelled = await cancelled_at(at, engine.stop())
        with pytest.raises(EngineStopped):
            await engine.start(short, run_id="another", x=1)
        return is_cancelled

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert len(outcomes) >= 2
    assert set(outcomes) == {RunStatus.COMPLETED}


def test_the_engine_may_be_stopped_while_a_run_is_started(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with asyncio.TaskGroup() as group:
            engine = engine_at(url)
            await engine.__aenter__()
            is_stopped = False
            try:
                is_stopped = await disturbed_at(
                    at, engine.start(long, run_id=RUN_ID, x=1), lambda: group.create_task(engine.stop(0))
                )
            except EngineStopped:
                is_stopped = True
            await engine.stop(0)
            return is_stopped

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) <= {RunStatus.COMPLETED, None}
    assert outcomes[-1] is RunStatus.COMPLETED


def test_the_engine_may_be_stopped_while_a_run_is_adopted(sqlite_url: str):
    async def scenario(url: str, at: int) -> bool:
        async with engine_at(url) as engine:
            await engine.start(long, run_id=RUN_ID, x=1)
            await engine.stop(grace_seconds=0)
        async with asyncio.TaskGroup() as group:
            engine = engine_at(url, recover=False)
            await engine.__aenter__()
            is_stopped = False
            try:
                is_stopped = await disturbed_at(at, engine.adopt(RUN_ID), lambda: group.create_task(engine.stop(0)))
            except EngineStopped:
                is_stopped = True
            await engine.stop(0)
            return is_stopped

    outcomes = at_every_suspension(sqlite_url, scenario)

    assert set(outcomes) == {RunStatus.COMPLETED}


def test_who_waits_for_a_result_hears_that_the_engine_stops(sqlite_url: str):
    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            engine = engine_at(sqlite_url)
            await engine.__aenter__()
            run = await engine.start(long, run_id=RUN_ID, x=1)
            waiting_for_it = group.create_task(hears_the_end(run.result()))
            await asyncio.sleep(0.5)
            await engine.stop(0)
            assert await waiting_for_it

    run_virtual(main())


async def hears_the_end(result: Awaitable[Any]) -> bool:
    try:
        await result
    except EngineStopped:
        return True
    return False


# In real time: with a heartbeat and bodies in threads, and a database that answers when it likes.


@node
def blocking(ctx: SyncContext, x: int) -> int:
    ctx.checkpoint(x)
    return x + 1


@workflow
def with_threads(x: int) -> int:
    return blocking(slow(blocking(x)))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_with_threads_may_be_cancelled_anywhere(store_url: str):
    settings = EngineSettings(recovery_seconds=0.1, poll_seconds=0.1, grace_seconds=1.0)

    async def program(run_id: str) -> int:
        async with Engine(store_url, workflows=[with_threads], settings=settings) as engine:
            return await (await engine.start(with_threads, run_id=run_id, x=1)).result()

    async def prepare() -> None:
        async with Engine(store_url, settings=settings):
            pass  # its tables are made: else most of the awaits would be those of that

    async def main(run_id: str, at: int) -> bool:
        tasks = asyncio.all_tasks()
        is_cancelled = await cancelled_at(at, program(run_id))
        # A driver may still be telling its server, in a task of its own, that an answer is not wanted any more.
        if left := asyncio.all_tasks() - tasks:
            _, left = await asyncio.wait(left, timeout=2)
        assert not left
        return is_cancelled

    asyncio.run(prepare())
    threads, connections = threading.active_count(), len(apsw.connections())
    for at in range(1, MOST_SUSPENSIONS):
        is_cancelled = asyncio.run(main(f"run-{at}", at))
        assert threading.active_count() == threads, f"{at}: {threading.enumerate()}"
        assert len(apsw.connections()) == connections, at
        if not is_cancelled:
            break
    assert 5 < at < MOST_SUSPENSIONS - 1

    asyncio.run(finish_all(store_url, settings, at))


async def finish_all(url: str, settings: EngineSettings, most: int) -> None:
    """Whatever was begun is finished, and whole."""
    async with Engine(url, workflows=[with_threads], settings=settings) as engine:
        summaries = await engine.list(limit=1_000)
        assert 5 <= len(summaries) <= most
        for summary in summaries:
            run = await engine.get(summary.run_id)
            assert await run.result() == 4
            assert await verify_run(engine, summary.run_id) == []
