"""Several engines on one database: who drives what, and what the others see of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.errors import RunCancelled, StoreUnavailable, TypesMissing
from perdure.ids import CommandId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.shapes import Command, StoredRun
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store, opened_world
from tests.engine.engines import assert_whole, counted, engine_on, in_another_process, killed_after, log_of


@node
async def slow(ctx: Context, seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@node
def in_a_thread(x: int) -> int:
    return x + 1


@workflow
def slowly(seconds: float) -> float:
    return slow(slow(seconds))


@workflow
def threaded(x: int) -> int:
    return in_a_thread(in_a_thread(x))


def test_another_engine_sees_and_cancels_a_run_that_it_does_not_drive(store_url: str):
    async def main() -> None:
        settings = EngineSettings(poll_seconds=0.2, recovery_seconds=0.2)
        async with Engine(store_url, settings=settings) as engine, Engine(store_url, settings=settings) as other:
            await engine.start(slowly, run_id="run", seconds=30)
            seen = await other.get("run")
            assert await seen.status() is RunStatus.RUNNING
            await seen.cancel("asked elsewhere")
            with pytest.raises(RunCancelled, match="asked elsewhere"):
                await seen.result()
            assert (await seen.load()).run.epoch == 1
            await assert_whole(other, seen)

    asyncio.run(main())


def test_a_result_reaches_an_engine_that_does_not_drive_the_run(store_url: str):
    async def main() -> None:
        settings = EngineSettings(poll_seconds=0.2, recovery_seconds=0.2)
        async with Engine(store_url, settings=settings) as engine, Engine(store_url, settings=settings) as other:
            await engine.start(threaded, run_id="run", x=1)
            seen = await other.get("run")
            assert await seen.result() == 3
            seqs = [entry.seq async for entry in seen.events()]
            assert seqs == list(range(1, len(seqs) + 1))

    asyncio.run(main())


def test_an_engine_that_expires_is_replaced_and_notices(sqlite_url: str, tmp_path):
    """The heartbeat of one engine is held up for longer than its lease, while it goes on working."""

    class Muted(StoreProxy):
        is_muted = False

        async def passing(self, name, call, *args):
            if name == "renew_engine" and self.is_muted:
                await asyncio.sleep(100)
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            muted = Muted(store)
            async with engine_on(muted.as_store) as engine, engine_on(store) as other:
                old_id = engine.engine_id
                run = await engine.start(slowly, run_id="run", seconds=120)
                muted.is_muted = True
                await asyncio.sleep(60)
                stored = await run.load()
                assert stored.owner == other.engine_id
                assert stored.run.epoch == 2
                muted.is_muted = False
                assert await run.result() == 120
                assert engine.engine_id != old_id
                assert (await counted(run))[e.AttemptLost] == 1
                await assert_whole(other, run)
                assert await (await engine.start(slowly, seconds=1)).result() == 1

    run_virtual(main())


def test_an_engine_that_lost_its_lease_comes_back_though_the_answer_is_lost(sqlite_url: str):
    """It registers under another name; that is done, but the answer does not come, so it registers again."""

    class Unlucky(StoreProxy):
        is_unlucky = False

        async def passing(self, name, call, *args):
            answer = await call()
            if self.is_unlucky and name == "register_engine":
                self.is_unlucky = False
                raise StoreUnavailable("the answer was lost")
            return False if self.is_unlucky and name == "renew_engine" else answer

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            unlucky = Unlucky(store)
            async with engine_on(unlucky.as_store) as engine:
                old_id = engine.engine_id
                unlucky.is_unlucky = True
                await asyncio.sleep(60)
                assert engine.engine_id != old_id
                assert [row.engine_id for row in await store.list_engines() if row.is_alive] == [engine.engine_id]
                assert await (await engine.start(slowly, seconds=1)).result() == 1

    run_virtual(main())


def test_nothing_is_started_while_the_lease_is_not_sure_and_everything_afterwards(sqlite_url: str):
    class Stalled(StoreProxy):
        is_stalled = False

        async def passing(self, name, call, *args):
            while name == "renew_engine" and self.is_stalled:
                await asyncio.sleep(0.5)
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            stalled = Stalled(store)
            async with engine_on(stalled.as_store) as engine:
                run = await engine.start(slowly, run_id="run", seconds=24)
                await asyncio.sleep(1)
                stalled.is_stalled = True
                await asyncio.sleep(26)  # the first node has ended, and the lease is not sure any more
                starts = (await counted(run))[e.NodeStarted]
                assert starts == 1
                stalled.is_stalled = False
                assert await run.result() == 24
                assert (await run.load()).run.epoch == 1
                await assert_whole(engine, run)

    run_virtual(main())


def test_adopting_twice_at_once_is_adopting_once(sqlite_url: str):
    class SlowReading(StoreProxy):
        async def passing(self, name, call, *args):
            answer = await call()
            await asyncio.sleep(0.01)
            return answer

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                await engine.start(slowly, run_id="run", seconds=10)
                await engine.stop(grace_seconds=0)
            async with engine_on(SlowReading(store).as_store, recover=False) as engine:
                drivers = await asyncio.gather(*(engine.adopt("run") for _ in range(3)))
                assert len(set(drivers)) == 1
                run = await engine.get("run")
                assert engine.driver_of(run.run_id) is drivers[0]
                await run.cancel()
                assert (await run.wait()).status is RunStatus.CANCELLED
                assert (await run.load()).run.epoch == 2
                await assert_whole(engine, run)

    run_virtual(main())


def test_a_run_whose_types_are_missing_is_left_for_another_engine(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            await engine.start(slowly, run_id="run", seconds=5)
            await engine.stop(grace_seconds=0)
        async with engine_on(sqlite_url, workflows=[threaded]) as stranger:
            await asyncio.sleep(30)
            run = await stranger.get("run")
            assert (await run.load()).run.epoch == 1
            with pytest.raises(TypesMissing, match="slow"):
                await stranger.adopt("run")
        async with engine_on(sqlite_url, workflows=[slowly]) as engine:
            run = await engine.get("run")
            assert await run.result() == 5
            await assert_whole(engine, run)

    run_virtual(main())


def test_a_run_that_cannot_be_taken_up_holds_up_no_other(sqlite_url: str, caplog: pytest.LogCaptureFixture):
    """One stored graph is damaged; the runs beside it are recovered all the same, and the engine lives on."""

    class Damaged(StoreProxy):
        async def passing(self, name, call, *args):
            answer = await call()
            if name == "load_run" and args[0] == "damaged" and isinstance(answer, StoredRun):
                raise TypeError("a row that nobody can read")
            return answer

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                for run_id in ("damaged", "whole"):
                    await engine.start(slowly, run_id=run_id, seconds=5)
                await engine.stop(grace_seconds=0)
            async with engine_on(Damaged(store).as_store) as engine:
                run = await engine.get("whole")
                assert await run.result() == 5
                await asyncio.sleep(60)
                assert await (await engine.start(slowly, seconds=1)).result() == 1

    with caplog.at_level(logging.CRITICAL):
        run_virtual(main())


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("resolve", {}),
        ("resolve", {"node_id": 7}),
        ("resolve", {"node_id": "nowhere", "resolution": "done"}),
        ("cancel", {"reason": ["not", "a", "text"]}),
        ("sing", {}),
    ],
)
def test_a_command_that_makes_no_sense_harms_nobody(sqlite_url: str, kind: str, payload: dict):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store) as engine:
            run = await engine.start(slowly, run_id="run", seconds=5)
            other = await engine.start(slowly, run_id="other", seconds=5)
            await store.add_command(
                Command(command_id=CommandId("odd"), run_id=RunId("run"), kind=kind, payload=payload)
            )
            await run.wait()
            assert await other.result() == 5
            await assert_whole(engine, run, other)
            assert await (await engine.start(slowly, seconds=1)).result() == 1

    run_virtual(main())


def test_a_bug_in_one_run_ends_that_run_and_no_other(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    from perdure.journal.decide import Decider

    decide = Decider.attempt_completed

    def buggy(self, node_id, *args, **kwargs):
        if self.projection.run.run_id == "unlucky":
            raise RuntimeError("a bug of ours")
        decide(self, node_id, *args, **kwargs)

    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            unlucky = await engine.start(slowly, run_id="unlucky", seconds=5)
            lucky = await engine.start(slowly, run_id="lucky", seconds=5)
            with monkeypatch.context() as patch:
                patch.setattr(Decider, "attempt_completed", buggy)
                assert await lucky.result() == 5
            # Nothing is lost: the log stands as last committed, and the run goes on once the bug is gone.
            async with asyncio.timeout(120):
                while (await unlucky.load()).run.status is not RunStatus.COMPLETED:
                    await asyncio.sleep(1)
            await assert_whole(engine, unlucky, lucky)

    run_virtual(main())


def test_a_killed_engine_is_replaced_at_once_on_its_own_host(sqlite_url: str, tmp_path):
    async def main() -> float:
        async with opened_world(sqlite_url, tmp_path) as world:

            async def begin(engine: Engine) -> None:
                await engine.start(slowly, run_id="run", seconds=10)
                await asyncio.sleep(1)

            await killed_after(world, begin)

            async def finish(engine: Engine) -> float:
                run = await engine.get("run")
                assert await run.result() == 10
                log = await log_of(run)
                (claimed,) = (entry for entry in log if isinstance(entry.event, e.RunClaimed) and entry.event.lost)
                return (claimed.at - log[-1].at) / 1_000_000 + 20

            return await in_another_process(world, finish)

    assert run_virtual(main()) == pytest.approx(0, abs=0.5)
