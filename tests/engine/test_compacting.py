"""Logs that are made compact: they take less room, and nothing that is read of a run changes."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing, suppress

import apsw
import asyncpg
import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.inspect import verify_run
from perdure.engine.keeping import compacting
from perdure.engine.keeping.compacting import compact_long_logs, compact_run
from perdure.engine.recording.driven import driven_seconds
from perdure.errors import RunNotFound, StoreDamaged
from perdure.ids import RunId, Seq
from perdure.journal.events import Recorded
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from tests.engine.test_waiting import asked

LONG = RunId("long")
COLD = EngineSettings(hibernate_after=0)


@node
async def jotted(ctx: Context, places: int) -> int:
    for place in range(places):
        await ctx.checkpoint(place)
    return places


@node
async def asked_for_more(ctx: Context, so_far: int) -> int:
    return so_far + await ctx.ask("How many more?", schema=int)


@workflow
def jots(places: int) -> int:
    return asked_for_more(jotted(places))


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "EVENTS_PER_SEGMENT", 10)
    monkeypatch.setattr(compacting, "KEPT_EVENTS", 7)


async def log_of(store: Store, *, page: int = 1_000) -> list[Recorded]:
    log: list[Recorded] = []
    while found := await store.load_events(LONG, after=log[-1].seq if log else Seq(0), limit=page):
        log += found
    return log


async def left_waiting(engine: Engine) -> None:
    """Have the run write fifty events, and rest until somebody answers."""
    run = await engine.start(jots, places=50, run_id=LONG)
    while await run.status() is not RunStatus.AWAITING_INPUT:
        await asyncio.sleep(0.01)


async def test_what_is_read_of_a_run_does_not_change(store_url: str) -> None:
    async with Engine(store_url, settings=COLD) as engine:
        await left_waiting(engine)
        store = engine.store
        before = await log_of(store)
        then = await (await engine.get(LONG)).at(20)
        driven = await driven_seconds(store, LONG)

        planned = await compact_run(store, LONG, dry_run=True)
        assert await store.list_segments(LONG) == []
        done = await compact_run(store, LONG)

        assert (done.events, done.runs) == (planned.events, planned.runs) == (len(before) // 10 * 10 - 10, 1)
        assert len(await store.list_segments(LONG)) == done.events // 10
        for page in (1, 3, 10, 1_000):
            assert await log_of(store, page=page) == before
        dump = await store.dump_run(LONG)
        assert dump is not None
        assert list(dump.events) == before
        assert await (await engine.get(LONG)).at(20) == then
        assert await driven_seconds(store, LONG) == driven
        assert await verify_run(engine, LONG) == []


async def test_a_run_goes_on_while_its_log_is_made_compact(store_url: str) -> None:
    async with Engine(store_url, settings=COLD) as engine:
        await left_waiting(engine)
        run = await engine.get(LONG)
        await compact_run(engine.store, LONG)
        (question,) = await asked(run)
        await run.answer(question.interaction_id, 3)

        assert await run.result() == 53
        await compact_run(engine.store, LONG)
        assert await verify_run(engine, LONG) == []


async def test_of_several_who_do_it_at_once_each_event_is_moved_by_one(store_url: str) -> None:
    async with Engine(store_url, settings=COLD) as engine:
        await left_waiting(engine)
        before = await log_of(engine.store)
        others = [await open_store(store_url) for _ in range(3)]
        try:
            done = await asyncio.gather(*(compact_run(store, LONG) for store in others))
        finally:
            for store in others:
                await store.close()

        assert sum(each.events for each in done) == len(before) // 10 * 10 - 10
        assert await log_of(engine.store) == before
        assert await verify_run(engine, LONG) == []


async def test_only_long_logs_are_made_compact(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "RUNS_PER_PAGE", 1)
    async with Engine(store_url) as engine:
        for number, places in enumerate((5, 60, 80)):
            await asked(await engine.start(jots, places=places, run_id=f"run-{number}"))

        first = await compact_long_logs(engine.store, longer_than=30)
        again = await compact_long_logs(engine.store, longer_than=30)

        assert first.runs == 2
        assert first.events >= 50 + 70
        assert (again.runs, again.events) == (0, 0)
        assert await engine.store.list_segments(RunId("run-0")) == []


@pytest.mark.slow
async def test_an_engine_does_it_by_itself(store_url: str) -> None:
    settings = EngineSettings(compact_longer_than=30, compact_every_seconds=0.05)
    async with Engine(store_url, settings=settings) as engine:
        await left_waiting(engine)
        while not await engine.store.list_segments(LONG):
            await asyncio.sleep(0.01)
        assert await verify_run(engine, LONG) == []


async def test_a_run_that_is_not_there_has_no_log(store_url: str) -> None:
    store = await open_store(store_url)
    try:
        with pytest.raises(RunNotFound):
            await compact_run(store, RunId("nobody"))
    finally:
        await store.close()


async def test_a_damaged_part_is_an_error_and_found_by_verify(store_url: str) -> None:
    async with Engine(store_url, settings=COLD) as engine:
        await left_waiting(engine)
        await compact_run(engine.store, LONG)
        await _damage(store_url)

        with pytest.raises(StoreDamaged, match="made compact cannot be read"):
            await log_of(engine.store)
        (found,) = await verify_run(engine, LONG)
        assert found.invariant == "I4"


async def _damage(url: str) -> None:
    statement = "UPDATE run_log_segments SET events = {} WHERE first_seq = 1"
    if url.startswith("sqlite"):
        # Another library of SQLite in this process would let go of the locks of the engine's.
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as database:
            database.execute(statement.format("x'00'"))
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement.format(r"'\x00'"))
    finally:
        await connection.close()


KILLED = """
import asyncio, sys
from perdure.engine.keeping import compacting
from perdure.ids import RunId
from perdure.store.opening import open_store

compacting.EVENTS_PER_SEGMENT = 2
compacting.KEPT_EVENTS = 0

async def main():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    await compacting.compact_run(store, RunId("long"))

asyncio.run(main())
"""


async def _killed(url: str, *, after_seconds: float) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(after_seconds)
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


@pytest.mark.slow
async def test_a_kill_leaves_each_event_in_one_place(store_url: str) -> None:
    async with Engine(store_url, settings=COLD) as engine:
        await asked(await engine.start(jots, places=2_000, run_id=LONG))
        before = await log_of(engine.store)
        for kill in range(10):
            await _killed(store_url, after_seconds=0.02 * kill)
            assert await log_of(engine.store) == before
        moved = sum(part.last_seq - part.first_seq + 1 for part in await engine.store.list_segments(LONG))

        assert moved > 0
        assert await verify_run(engine, LONG) == []
