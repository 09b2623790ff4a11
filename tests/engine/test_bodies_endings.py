"""Endings of attempts: whatever a body does to its task, its time or its thread, there is an outcome, and its slot returns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import Backoff, Context, Engine, EngineSettings, node, workflow
from perdure.errors import RunFailed
from perdure.journal import events as e
from perdure.journal.states import NodeStatus
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, counted, engine_on, log_of

NO_PAUSE = Backoff(first=timedelta(0), jitter=False)

calls: Counter[str] = Counter()
doors: dict[str, threading.Event] = {}


def _task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())


@node
async def misbehaves(how: str) -> str:
    match how:
        case "cancels itself":
            _task().cancel()
            await asyncio.sleep(0)
        case "cancels itself at the end":
            _task().cancel()
        case "swallows its own cancellation":
            _task().cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
        case "times out like an old library":
            _task().cancel()
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                raise TimeoutError("too slow") from None
        case "ends like a generator":
            raise GeneratorExit
        case _:
            raise AssertionError(how)
    return "done"


@node
class Finalized:
    async def run(self, how: str) -> str:
        raise GeneratorExit

    async def finalize(self) -> None:
        calls["finalized"] += 1


@node
def ends_like_a_generator(how: str) -> str:
    raise GeneratorExit


@node
async def well_behaved(how: str) -> str:
    await asyncio.sleep(3)
    return how


@workflow
def misbehaving(how: str) -> str:
    return misbehaves(how)


@workflow
def finalizing(how: str) -> str:
    return Finalized(how)


@workflow
def misbehaving_in_a_thread(how: str) -> str:
    return ends_like_a_generator(how)


@workflow
def quiet(how: str) -> str:
    return well_behaved(how)


@pytest.mark.parametrize(
    ("flow", "how", "outcome"),
    [
        (misbehaving, "cancels itself", "CancelledError"),
        (misbehaving, "cancels itself at the end", "done"),
        (misbehaving, "swallows its own cancellation", "done"),
        (misbehaving, "times out like an old library", "TimeoutError"),
        (misbehaving, "ends like a generator", "GeneratorExit"),
        (finalizing, "ends like a generator", "GeneratorExit"),
        (misbehaving_in_a_thread, "ends like a generator", "GeneratorExit"),
    ],
)
def test_a_body_that_misbehaves_has_an_outcome_and_harms_no_other(sqlite_url: str, flow: Any, how: str, outcome: str):
    calls.clear()

    async def main() -> None:
        async with engine_on(sqlite_url, loop_bodies=2) as engine:
            other = await engine.start(quiet, how="other")
            run = await engine.start(flow, how=how)
            if outcome == "done":
                assert await run.result() == "done"
            else:
                with pytest.raises(RunFailed, match=outcome):
                    await run.result()
            # Its slot is free again: two run at once.
            assert await (await engine.start(quiet, how="next")).result() == "next"
            assert await other.result() == "other"
            await assert_whole(engine, run, other)

    run_virtual(main())
    assert calls["finalized"] == (flow is finalizing)


@node(retries=1, backoff=NO_PAUSE, timeout=5.0)
async def stubborn_at_first(ctx: Context) -> int:
    while ctx.attempt == 1:
        try:
            await asyncio.sleep(60)
            break
        except asyncio.CancelledError:
            calls["swallowed"] += 1
    return ctx.attempt


@node
async def slowly(x: int) -> int:
    await asyncio.sleep(100)
    return x


@workflow
def patient() -> int:
    return slowly(stubborn_at_first())


def test_a_body_that_outlives_its_time_is_left_behind_and_its_result_discarded(sqlite_url: str):
    calls.clear()

    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(patient)
            assert await run.result() == 2
            log = await log_of(run)
            failed = next(entry for entry in log if isinstance(entry.event, e.NodeFailed))
            started = next(entry for entry in log if isinstance(entry.event, e.NodeStarted))
            assert (failed.at - started.at) / 1_000_000 == pytest.approx(15, abs=0.2)  # its time and the grace period
            (discarded,) = [entry.event for entry in log if isinstance(entry.event, e.AttemptResultDiscarded)]
            assert (discarded.node_id, discarded.attempt, discarded.outcome) == ("stubborn_at_first", 1, "completed")
            await assert_whole(engine, run)

    run_virtual(main())
    assert calls["swallowed"] == 1


@node(retries=1, backoff=NO_PAUSE, timeout=5.0)
async def tidy_at_first(ctx: Context, how: str) -> int:
    if ctx.attempt == 1:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # a part of the grace period
            if how == "failed":
                raise OSError("while it tidied up") from None
    return ctx.attempt


@workflow
def tidy(how: str) -> int:
    return tidy_at_first(how)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_what_a_body_comes_to_when_it_is_told_that_its_time_is_over_is_discarded(sqlite_url: str, how: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(tidy, how=how)
            assert await run.result() == 2
            log = [entry.event for entry in await log_of(run)]
            (discarded,) = [event for event in log if isinstance(event, e.AttemptResultDiscarded)]
            assert (discarded.attempt, discarded.outcome) == (1, how)
            (failed,) = [event for event in log if isinstance(event, e.NodeFailed)]
            assert failed.error.message == "the attempt took longer than 5 s"
            await assert_whole(engine, run)

    run_virtual(main())


@node(retries=1, backoff=NO_PAUSE, timeout=0.05)
def late_at_first(ctx: Context) -> int:
    if ctx.attempt == 1:
        doors["late"].wait()
    return ctx.attempt


@node
async def until_all_is_known(ctx: Context, x: int) -> int:
    doors["late"].set()
    await asyncio.sleep(0.2)
    return x


@workflow
def late() -> int:
    return until_all_is_known(late_at_first())


async def test_the_late_result_of_a_thread_is_recorded_as_discarded(sqlite_url: str):
    doors["late"] = threading.Event()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(late)
        assert await run.result() == 2
        assert (await counted(run))[e.AttemptResultDiscarded] == 1
        await assert_whole(engine, run)


@node(timeout=0.05)
def stuck(x: int) -> int:
    doors["stuck"].wait()
    return x


@node(timeout=0.05)
def healthy(x: int) -> int:
    return x


@workflow
def sticking(x: int) -> int:
    return stuck(x)


@workflow
def moving(x: int) -> int:
    return healthy(x)


async def test_what_no_thread_is_left_for_is_not_started_until_there_is_one(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
):
    doors["stuck"] = threading.Event()
    async with Engine(sqlite_url, settings=EngineSettings(threads=1)) as engine:
        for x in range(2):
            with pytest.raises(RunFailed, match="took longer"):
                await (await engine.start(sticking, x=x)).result()
        assert [line.levelno for line in caplog.records if line.message == "too_many_threads_lost"] == [logging.ERROR]

        run = await engine.start(moving, x=1)
        await asyncio.sleep(0.1)
        assert [node.status for node in (await run.load()).nodes] == [NodeStatus.SCHEDULED]

        doors["stuck"].set()
        assert await run.result() == 1


@node(retries=1_200, backoff=Backoff(first=timedelta(microseconds=1), cap=timedelta(microseconds=1), jitter=False))
async def fails_often(ctx: Context) -> int:
    if ctx.attempt < 1_100:
        raise ConnectionError
    return ctx.attempt


@node(retries=1, backoff=Backoff(first=timedelta.max, cap=timedelta.max))
async def waits_for_ever(ctx: Context) -> int:
    raise ConnectionError


@workflow
def often() -> int:
    return fails_often()


@workflow
def hardly() -> int:
    return waits_for_ever()


def test_pauses_stay_within_their_cap_however_often_an_attempt_fails(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            assert await (await engine.start(often, durability="exit")).result() == 1_100

    run_virtual(main())


def test_a_pause_is_never_longer_than_what_can_be_stored(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(hardly)
            await asyncio.sleep(1)
            (state,) = (await run.load()).nodes
            assert state.status is NodeStatus.SCHEDULED
            assert state.due is not None
            await run.cancel()

    run_virtual(main())
