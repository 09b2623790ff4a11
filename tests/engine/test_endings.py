"""How runs end before their time: failures, cancels, timeouts, and engines that stop."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, node, workflow
from perdure.errors import EngineStopped, RunCancelled, RunFailed
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, counted, engine_on, log_of


@node
async def quick(ctx: Context, x: int) -> int:
    return x + 1


@node
async def takes(ctx: Context, seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@node
async def breaks(ctx: Context, after: float) -> float:
    await asyncio.sleep(after)
    raise ValueError("broken")


@node
async def tidies_up(ctx: Context, seconds: float) -> str:
    """Take a while to stop."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
        raise
    return "never"


@node
async def ignores_the_end(ctx: Context, seconds: float) -> str:
    """Do as if nothing had happened."""
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
    return "late"


@node
async def joins(ctx: Context, parts: list[float]) -> float:
    return sum(parts)


@workflow
def two_sides(after: float, seconds: float) -> float:
    return joins([breaks(after), takes(seconds)])


@workflow
def long_work(seconds: float) -> float:
    return takes(takes(seconds))


@workflow
def slow_to_stop(seconds: float) -> str:
    return tidies_up(seconds)


@workflow
def deaf(seconds: float) -> str:
    return ignores_the_end(seconds)


async def statuses(run) -> dict[str, NodeStatus]:
    return {state.node_id: state.status for state in (await run.load()).nodes}


def test_a_failure_stops_everything_else(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(two_sides, after=1, seconds=100)
            with pytest.raises(RunFailed, match="broken"):
                await run.result()

            stored = await run.load()
            assert (stored.run.ended_at - stored.run.started_at) / 1_000_000 == pytest.approx(1, abs=0.2)
            assert await statuses(run) == {"breaks": NodeStatus.FAILED, "takes": NodeStatus.CANCELLED}
            await assert_whole(engine, run)

    run_virtual(main())


def test_what_does_not_depend_on_a_failure_may_finish(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(two_sides, after=1, seconds=100, on_failure="finish")
            with pytest.raises(RunFailed, match="broken"):
                await run.result()

            assert await statuses(run) == {"breaks": NodeStatus.FAILED, "takes": NodeStatus.COMPLETED}
            await assert_whole(engine, run)

    run_virtual(main())


def test_cancelling_waits_for_bodies_within_their_grace_period(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(slow_to_stop, seconds=5)
            await asyncio.sleep(1)
            asked = asyncio.get_running_loop().time()

            await run.cancel("enough")
            with pytest.raises(RunCancelled, match="enough"):
                await run.result()

            assert asyncio.get_running_loop().time() - asked == pytest.approx(5, abs=0.2)
            assert await statuses(run) == {"tidies_up": NodeStatus.CANCELLED}
            await assert_whole(engine, run)

    run_virtual(main())


@pytest.mark.slow
def test_a_body_that_does_not_stop_is_not_waited_for(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(deaf, seconds=500)
            await asyncio.sleep(1)
            asked = asyncio.get_running_loop().time()

            await run.cancel()
            state = await run.wait()

            assert state.status is RunStatus.CANCELLED
            assert asyncio.get_running_loop().time() - asked == pytest.approx(state.settings.grace_seconds, abs=0.5)
            await asyncio.sleep(1_000)
            await assert_whole(engine, run)

    run_virtual(main())


def test_cancelling_a_run_that_was_just_started_is_quick(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            asked = asyncio.get_running_loop().time()
            run = await engine.start(long_work, seconds=1_000)
            await run.cancel()
            await run.wait()

            assert asyncio.get_running_loop().time() - asked < 1
            await assert_whole(engine, run)

    run_virtual(main())


def test_a_cancelled_run_stays_cancelled_and_a_completed_one_completed(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            cancelled = await engine.start(long_work, seconds=10)
            await cancelled.cancel()
            await cancelled.cancel()
            assert (await cancelled.wait()).status is RunStatus.CANCELLED
            await cancelled.cancel()
            completed = await engine.start(long_work, seconds=1)
            assert await completed.result() == 1
            await completed.cancel()
            await asyncio.sleep(30)

            assert (await cancelled.load()).run.status is RunStatus.CANCELLED
            assert (await completed.load()).run.status is RunStatus.COMPLETED
            assert (await counted(cancelled))[e.RunCancelling] == 1
            await assert_whole(engine, cancelled, completed)

    run_virtual(main())


def test_a_run_that_takes_too_long_fails(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(long_work, seconds=6, timeout=10)
            with pytest.raises(RunFailed, match="10 s"):
                await run.result()

            stored = await run.load()
            assert (stored.run.ended_at - stored.run.started_at) / 1_000_000 == pytest.approx(10, abs=0.2)
            assert await statuses(run) == {"takes": NodeStatus.COMPLETED, "takes_2": NodeStatus.CANCELLED}
            await assert_whole(engine, run)

    run_virtual(main())


def test_the_time_of_a_run_goes_on_while_no_engine_drives_it(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            await engine.start(long_work, run_id="run", seconds=6, timeout=10)
            await asyncio.sleep(1)
            await engine.stop(grace_seconds=0)
        await asyncio.sleep(60)
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("run")
            with pytest.raises(RunFailed, match="10 s"):
                await run.result()
            await assert_whole(engine, run)

    run_virtual(main())


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_cancel_reaches_bodies_whatever_the_durability(sqlite_url: str, durability):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(long_work, seconds=1_000, durability=durability)
            await asyncio.sleep(1)
            asked = asyncio.get_running_loop().time()
            await run.cancel()
            await run.wait()

            assert asyncio.get_running_loop().time() - asked < 5
            await assert_whole(engine, run)

    run_virtual(main())


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_failure_stops_everything_else_whatever_the_durability(sqlite_url: str, durability):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(two_sides, after=1, seconds=1_000, durability=durability)
            asked = asyncio.get_running_loop().time()
            assert (await run.wait()).status is RunStatus.FAILED

            assert asyncio.get_running_loop().time() - asked < 5
            await assert_whole(engine, run)

    run_virtual(main())


# Stopping an engine


def test_bodies_may_end_while_the_engine_stops(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            await engine.start(long_work, run_id="run", seconds=5)
            await asyncio.sleep(1)
            await engine.stop(grace_seconds=10)
        async with engine_on(sqlite_url, recover=False) as engine:
            run = await engine.get("run")
            assert await statuses(run) == {"takes": NodeStatus.COMPLETED, "takes_2": NodeStatus.SCHEDULED}
            assert (await run.load()).owner is None
            await assert_whole(engine, run)

    run_virtual(main())


def test_bodies_that_do_not_end_are_tried_again_elsewhere_and_nobody_is_blamed(sqlite_url: str):
    async def main() -> None:
        for _ in range(8):  # more often than a run may be lost
            async with engine_on(sqlite_url) as engine:
                await engine.start(long_work, run_id="run", seconds=100)
                await asyncio.sleep(1)
                await engine.stop(grace_seconds=2)
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("run")
            assert await run.result() == 100
            stored = await run.load()
            assert stored.run.recoveries == 0
            assert stored.nodes[0].attempt == 9
            assert not [entry for entry in await log_of(run) if isinstance(entry.event, e.RunRecovered)]
            await assert_whole(engine, run)

    run_virtual(main())


def test_stopping_takes_no_longer_than_its_grace_period(sqlite_url: str):
    async def main() -> None:
        engine = engine_on(sqlite_url)
        async with engine:
            await engine.start(deaf, run_id="run", seconds=500)
            await asyncio.sleep(1)
            asked = asyncio.get_running_loop().time()
            stopping = asyncio.get_running_loop().create_task(engine.stop(grace_seconds=3))
            await asyncio.sleep(0)
            with pytest.raises(EngineStopped):
                await engine.start(long_work, seconds=1)
            await asyncio.wait((stopping,), timeout=100)
            assert asyncio.get_running_loop().time() - asked < 5
            assert stopping.done()

    run_virtual(main())


def test_no_body_is_launched_once_the_grace_period_is_over(sqlite_url: str):
    """The start of the second body is on its way to the disk when the engine is told to stop at once."""

    class SlowCommits(StoreProxy):
        async def passing(self, name, call, *args):
            if name == "commit":
                await asyncio.sleep(1)
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            engine = engine_on(SlowCommits(store).as_store)
            async with engine:
                await engine.start(long_work, run_id="run", seconds=100)
                await asyncio.sleep(100.5)
                asked = asyncio.get_running_loop().time()
                await engine.stop(grace_seconds=0)
                assert asyncio.get_running_loop().time() - asked < 10
            async with engine_on(store, recover=False) as other:
                run = await other.get("run")
                assert await statuses(run) == {"takes": NodeStatus.COMPLETED, "takes_2": NodeStatus.SCHEDULED}
                await assert_whole(other, run)

    run_virtual(main())
