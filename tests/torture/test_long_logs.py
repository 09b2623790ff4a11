"""A log of a million events: it is made compact while nothing is lost, and the run is taken up as quickly as any other."""

from __future__ import annotations

import time
from contextlib import closing

import apsw
import asyncpg
import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.inspect import verify_run
from perdure.engine.keeping.compacting import EVENTS_PER_SEGMENT, KEPT_EVENTS, compact_run
from perdure.ids import RunId
from tests.engine.test_waiting import asked

LONG = RunId("long")
COLD = EngineSettings(hibernate_after=0)
RESUMED_SECONDS = 1.0


@node
async def scribbled(ctx: Context, number: int, times: int) -> int:
    for line in range(times):
        await ctx.checkpoint(line)
    return number


@node
async def signed(ctx: Context, pages: list[int]) -> str:
    return f"{len(pages)} pages, signed by {await ctx.ask('Who signs?')}"


@workflow
def scribbles(times: int) -> str:
    return signed([scribbled(number, times) for number in range(200)])


@pytest.mark.slow
async def test_a_log_of_20_000_events_is_made_compact(store_url: str) -> None:
    await scribble(store_url, times=100)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_log_of_1_000_000_events_is_made_compact(store_url: str) -> None:
    await scribble(store_url, times=5_000)


async def scribble(url: str, *, times: int) -> None:
    async with Engine(url, settings=COLD) as engine:
        await asked(await engine.start(scribbles, times=times, run_id=LONG), seconds=1_800)
        state = await engine.store.load_state(LONG)
        assert state is not None
        assert state.last_seq > 200 * times
        before = await rows_of_log(url)
        began = time.perf_counter()
        done = await compact_run(engine.store, LONG)
        took = time.perf_counter() - began
        assert done.events > state.last_seq - KEPT_EVENTS - EVENTS_PER_SEGMENT
        assert await rows_of_log(url) == before - done.events

    began = time.perf_counter()
    async with Engine(url, settings=COLD) as engine:
        run = await engine.get(LONG)
        (question,) = await run.questions()
        await run.answer(question.interaction_id, "me")
        assert await run.result() == "200 pages, signed by me"
        resumed = time.perf_counter() - began
        assert await verify_run(engine, LONG) == []
    print(f"{state.last_seq:,} events: compact in {took:.1f} s, resumed and ended in {resumed:.2f} s")
    assert resumed < RESUMED_SECONDS


async def rows_of_log(url: str) -> int:
    statement = "SELECT count(*) FROM run_events"
    if url.startswith("sqlite"):
        # Another library of SQLite in this process would let go of the locks of the engine's.
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as database:
            return int(database.execute(statement).get)
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(statement))
    finally:
        await connection.close()
