"""What a run brings along when another engine takes it up: commands, lacking types, and the time it has used."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, node, workflow
from perdure.engine.recording.driven import driven_seconds
from perdure.errors import RunFailed, TypesMissing
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.loop import VirtualClock, run_virtual
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, counted, engine_on


@node(once=True)
async def pay(ctx: Context, seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@node
async def wait(ctx: Context, seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@workflow
def paying(seconds: float) -> float:
    return wait(pay(seconds))


@workflow
def waiting(seconds: float) -> float:
    for _ in range(6):
        seconds = wait(seconds)
    return seconds


@pytest.mark.parametrize("before", ["resolve", "resume", None])
def test_a_cancel_is_applied_where_the_types_are_missing_whatever_was_asked_before(sqlite_url: str, before: str | None):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store, workflows=[paying]) as engine:
                run = await engine.start(paying, run_id="run", seconds=50)
                await asyncio.sleep(1)
                await engine.stop(grace_seconds=0)
            stored = await store.load_state(RunId("run"))
            assert stored is not None
            assert stored.status is RunStatus.SUSPENDED
            async with engine_on(store, workflows=[]) as engine:
                run = await engine.get("run")
                if before == "resolve":
                    await run.resolve("pay", "retry")
                elif before == "resume":
                    await run.resume()
                await asyncio.sleep(30)
                if before is not None:
                    assert (await run.status()) is RunStatus.SUSPENDED
                    with pytest.raises(TypesMissing):
                        await engine.adopt("run")
                await run.cancel("enough")
                async with asyncio.timeout(37):
                    assert (await run.wait()).status is RunStatus.CANCELLED
                await asyncio.sleep(30)
                stored = await run.load()
                assert stored.commands == ()
                assert (await counted(run))[e.RunClaimed] == 2
                await assert_whole(engine, run)

    run_virtual(main())


# The time a run may take


@pytest.mark.parametrize("offset", [-7_200.0, 0.0, 7_200.0])
def test_the_time_of_a_run_does_not_depend_on_the_clock_of_whoever_takes_it_over(sqlite_url: str, offset: float):
    """It takes 60 s in all, 35 of them here; the next host's clock is hours off."""

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                await engine.start(waiting, run_id="run", seconds=10, timeout=100)
                await asyncio.sleep(35)
                await engine.stop(grace_seconds=10)
            async with engine_on(store, clock=VirtualClock(wall_offset_seconds=offset)) as engine:
                run = await engine.get("run")
                assert await run.result() == 10
                await assert_whole(engine, run)

    run_virtual(main())


def test_time_in_which_nobody_drives_a_run_does_not_count(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                await engine.start(waiting, run_id="run", seconds=10, timeout=100)
                await asyncio.sleep(35)
                await engine.stop(grace_seconds=10)
            assert await driven_seconds(store, RunId("run")) == pytest.approx(40, abs=1)
            await asyncio.sleep(5_000)
            async with engine_on(store) as engine:
                assert await (await engine.get("run")).result() == 10

    run_virtual(main())


def test_time_in_which_others_have_driven_a_run_counts(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            for _ in range(2):
                async with engine_on(store) as engine:
                    await engine.start(waiting, run_id="run", seconds=10, timeout=50)
                    await asyncio.sleep(15)
                    await engine.stop(grace_seconds=10)
            async with engine_on(store) as engine:
                run = await engine.get("run")
                began = asyncio.get_running_loop().time()
                with pytest.raises(RunFailed, match="longer than 50 s"):
                    await run.result()
                assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=6)
                await assert_whole(engine, run)

    run_virtual(main())
