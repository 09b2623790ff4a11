"""How far runs have come and how long the rest takes, as `run.progress()` tells it: exactly in virtual time, and in earnest on
both databases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from perdure import Context, Engine, Progress, Stream, Tick, ask, collect, node, schedule, when, workflow
from perdure.engine.inspect import report_run
from perdure.engine.runs.run import Run
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, engine_on
from tests.engine.test_waiting import SELDOM

T = TypeVar("T")


def virtually(url: str, work: Callable[[Engine], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Do something with an engine in virtual time."""

    async def main() -> T:
        async with engine_on(url, **{**SELDOM, **options}) as engine:
            return await work(engine)

    return run_virtual(main())


@node
async def spent(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@node
async def spent_after(seconds: float, before: Any) -> float:
    await asyncio.sleep(seconds)
    return seconds


@workflow
def forked(short: float = 10, long: float = 30, last: float = 20) -> float:
    """A diamond: what comes last waits for the longer of two."""
    first = spent.named("first")(10)
    one = spent_after.named("short")(short, first)
    other = spent_after.named("long")(long, first)
    return spent_after.named("last")(last, [one, other])


async def history(engine: Engine, flow: Any, times: int = 3, **inputs: Any) -> None:
    """Run a workflow to its end, several times at once."""
    runs = [await engine.start(flow, **inputs) for _ in range(times)]
    for run in runs:
        await run.result()


async def begun(run: Run[Any], node_id: str, kind: type[e.NodeEvent] = e.NodeStarted) -> None:
    """Wait until a node has begun, or something else has happened to it."""
    async for entry in run.events():
        if isinstance(entry.event, kind) and entry.event.node_id == node_id:
            return


def test_nothing_is_told_before_three_runs_have_completed(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        for _ in range(3):
            run = await engine.start(forked)
            await asyncio.sleep(15)
            assert await run.progress() == Progress(done=1, total=4)
            await run.result()
            assert (await run.progress()).percent == 100.0
        run = await engine.start(forked)
        await asyncio.sleep(15)
        assert (await run.progress()).based_on_runs == 3

    virtually(sqlite_url, main)


def test_what_is_told_follows_the_longest_way(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, forked, 5)
        run = await engine.start(forked)

        for elapsed, percent, remaining in ((5, 7, 55), (15, 28, 45), (35, 64, 25), (55, 93, 5)):
            await asyncio.sleep(elapsed - (engine.clock.now_micros() - ((await run.state()).started_at or 0)) / 1e6)
            told = await run.progress()
            assert told.percent == pytest.approx(percent, abs=1)
            assert told.remaining_seconds == pytest.approx(remaining, abs=0.1)
            assert told.remaining_low_seconds == pytest.approx(remaining * 0.9, abs=0.1)
            assert told.remaining_high_seconds == pytest.approx(remaining * 1.1, abs=0.1)
            assert (told.based_on_runs, told.overdue, told.waits) == (5, (), False)
        await run.result()
        ended = await run.progress()
        assert (ended.done, ended.percent, ended.remaining_seconds) == (4, 100.0, None)
        assert ended.based_on_runs == 5  # its own time is not among them
        await assert_whole(engine, run)

    virtually(sqlite_url, main)


def test_runs_of_another_version_tell_nothing(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, forked)
        run = await engine.start(graph_of(1))
        await asyncio.sleep(0.5)
        assert (await run.progress()).based_on_runs is None
        await run.result()
        await history(engine, graph_of(1))
        again = await engine.start(graph_of(1))
        await asyncio.sleep(0.5)
        assert (await again.progress()).based_on_runs == 4

    virtually(sqlite_url, main)


def graph_of(seconds: float) -> Any:
    """Return a graph that has the name of the workflow above, and is another one."""

    @workflow(name="forked")
    def other() -> float:
        return spent(seconds)

    return other.graph


def test_a_node_that_takes_longer_than_ever_is_named(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, forked)
        run = await engine.start(forked, long=1_000.0)
        await asyncio.sleep(100)
        told = await run.progress()
        assert told.overdue == ("long",)
        assert told.remaining_seconds is None
        assert told.percent == pytest.approx(71, abs=1)
        await run.cancel("enough")

    virtually(sqlite_url, main)


@workflow
def approved() -> Any:
    first = spent.named("first")(10)
    with when(ask("may it go on?", schema=bool, show=first)):
        last = spent_after.named("last")(30, first)
    return last


async def answer(run: Run[Any]) -> None:
    while not (questions := await run.questions()):
        await asyncio.sleep(1)
    await run.answer(questions[0].interaction_id, True)


def test_waiting_for_people_is_not_counted_and_is_told(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        for minutes in range(3):
            run = await engine.start(approved)
            await asyncio.sleep(60 * (minutes + 1))
            await answer(run)
            await run.result()
        run = await engine.start(approved)
        await asyncio.sleep(5)
        before = await run.progress()
        assert before.remaining_seconds == pytest.approx(35, abs=1.5)
        assert before.waits
        await asyncio.sleep(300)
        waiting = await run.progress()
        assert await run.status() is RunStatus.AWAITING_INPUT
        assert waiting.remaining_seconds == pytest.approx(30, abs=1.5)
        assert waiting.percent == pytest.approx(25, abs=1)
        assert waiting.waits
        await answer(run)
        await begun(run, "last")
        await asyncio.sleep(10)
        after = await run.progress()
        assert after.remaining_seconds == pytest.approx(20, abs=1.5)
        assert not after.waits
        await run.result()
        stopped = await engine.start(approved)
        await stopped.cancel()
        assert (await stopped.wait()).status is RunStatus.CANCELLED
        assert not (await stopped.progress()).waits

    virtually(sqlite_url, main)


def test_a_run_that_waits_for_people_says_so_although_there_were_none_before(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(approved)
        await asyncio.sleep(60)
        assert await run.status() is RunStatus.AWAITING_INPUT
        waiting = await run.progress()
        assert (waiting.waits, waiting.based_on_runs) == (True, None)
        await answer(run)
        await run.result()
        assert not (await run.progress()).waits

    virtually(sqlite_url, main)


@node
async def slept(ctx: Context, seconds: float) -> float:
    await ctx.sleep(seconds=seconds)
    return seconds


@workflow
def sleeper(seconds: float = 600) -> float:
    return spent_after(10, slept(seconds))


@pytest.mark.slow
def test_a_run_that_hibernates_until_some_time_is_waited_for(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, sleeper)
        run = await engine.start(sleeper)
        await asyncio.sleep(200)
        assert await run.status() is RunStatus.SUSPENDED
        usual = await run.progress()
        longer = await engine.start(sleeper, seconds=2_000.0)
        await asyncio.sleep(200)

        assert usual.remaining_seconds == pytest.approx(410, abs=1.5)
        assert not usual.waits
        assert (await longer.progress()).remaining_seconds == pytest.approx(1_810, abs=1.5)
        await run.result()
        await longer.result()

    virtually(sqlite_url, main)


def test_a_run_that_was_paused_begins_again_what_it_has_lost(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, forked)
        run = await engine.start(forked)
        await asyncio.sleep(35)
        await run.pause(grace=0)
        assert (await run.wait()).status is RunStatus.PAUSED
        await asyncio.sleep(500)
        told = await run.progress()
        assert told.remaining_seconds == pytest.approx(50, abs=1)
        assert told.waits
        await run.resume()
        await run.result()

    virtually(sqlite_url, main)


# Streams


@node
async def produced(items: int) -> AsyncIterator[int]:
    for number in range(items):
        yield number


@node
async def consumed(x: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return x


@node
async def read_whole(xs: Stream[int]) -> int:
    return len([x async for x in xs])


@workflow
def streamed(items: int = 20, seconds: float = 1.0) -> list[Any]:
    found = consumed.map(produced(items), seconds=seconds)
    return [spent_after(10, collect(found)), read_whole(found)]


def test_the_number_of_items_tells_how_long_a_stream_takes(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await history(engine, streamed)
        run = await engine.start(streamed, items=200)
        await asyncio.sleep(50.5)
        told = await run.progress()
        assert told.remaining_seconds == pytest.approx(160, rel=0.05)
        slow = await engine.start(streamed, items=200, seconds=5.0)
        await asyncio.sleep(500.5)
        told = await slow.progress()
        assert told.remaining_seconds == pytest.approx(510, rel=0.1)
        assert told.overdue == ()
        await slow.cancel()

    virtually(sqlite_url, main)


@workflow
def ticking() -> list[Any]:
    return [spent(100), collect(ticked.map(schedule(every=10)))]


@node
async def ticked(tick: Tick) -> str:
    return str(tick.at)


def test_a_run_that_is_fed_until_it_is_stopped_has_no_end_that_is_known(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        for _ in range(4):
            run = await engine.start(ticking)
            await asyncio.sleep(50)
            told = await run.progress()
            await asyncio.sleep(100)
            fed = await run.progress()
            await run.stop()
            await run.result()

        assert (told.based_on_runs, told.remaining_seconds) == (3, None)
        assert told.percent == pytest.approx(50, abs=1)
        assert (fed.percent, fed.remaining_seconds) == (None, None)

    virtually(sqlite_url, main)


# What others see


def test_a_report_tells_how_long_nodes_took_and_usually_take(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        for _ in range(3):
            await history(engine, forked, 1)
        run = await engine.start(forked, short=25.0)
        await asyncio.sleep(37)
        report = await report_run(engine.store, run.run_id)
        nodes = {found.id: found for found in report.nodes}

        assert nodes[NodeId("short")].status is NodeStatus.COMPLETED
        assert nodes[NodeId("short")].duration_seconds == pytest.approx(25, abs=0.1)
        assert nodes[NodeId("short")].usual_seconds == pytest.approx(10, abs=0.1)
        assert nodes[NodeId("last")].duration_seconds is None
        assert nodes[NodeId("last")].usual_seconds == pytest.approx(20, abs=0.1)
        assert report.progress.based_on_runs == 3
        await run.result()

    virtually(sqlite_url, main)


# In earnest


@workflow
def in_earnest(seconds: float) -> float:
    return spent_after(seconds, spent(0.05))


@pytest.mark.slow
async def test_the_band_holds_what_comes(store_url: str) -> None:
    async with Engine(store_url) as engine:
        for seconds in (0.2, 0.6, 1.0, 1.4, 1.8):
            await (await engine.start(in_earnest, seconds=seconds)).result()
        run = await engine.start(in_earnest, seconds=1.0)
        await begun(run, "spent_after")

        told, began = await run.progress(), time.monotonic()
        await run.result()
        took = time.monotonic() - began

        assert told.based_on_runs == 5
        assert told.remaining_low_seconds is not None
        assert told.remaining_high_seconds is not None
        assert told.remaining_seconds == pytest.approx(1.0, abs=0.3)
        assert told.remaining_low_seconds <= took <= told.remaining_high_seconds
        await assert_whole(engine, run)


@pytest.mark.slow
async def test_an_engine_tells_of_a_run_that_another_drives_or_has_left(store_url: str) -> None:
    async with Engine(store_url, recover=False) as watcher:
        async with Engine(store_url) as engine:
            for _ in range(3):
                await (await engine.start(in_earnest, seconds=1.0)).result()
            started = await engine.start(in_earnest, seconds=60.0)
            await begun(started, "spent_after")
            run = await watcher.get(started.run_id)
            await asyncio.sleep(0.5)

            driven = await run.progress()
            await engine.stop(grace_seconds=0)

        left = await run.progress()
        assert driven.remaining_seconds is not None
        assert left.remaining_seconds is not None
        assert left.remaining_seconds > driven.remaining_seconds + 0.4
        assert driven.percent is not None
        assert left.percent is not None
        assert left.percent < driven.percent - 20
