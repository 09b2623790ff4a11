"""Looking at runs without driving them, from Python: reports, prefixes of ids, logs that grow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, follow_events, living_engines, report_run, verify_run
from perdure.errors import RunIdAmbiguous, RunNotFound
from perdure.graph.declare import node, workflow
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.opening import open_store


@node
async def one() -> int:
    return 1


@node
async def two(n: int) -> int:
    return n + 1


@workflow
def sums() -> int:
    return two(one())


async def test_a_run_is_found_by_its_id_or_by_the_beginning_of_it(sqlite_url: str):
    async with Engine(sqlite_url, workflows=[sums]) as engine:
        for run_id in ("a", "ab", "abc", "b%", *(f"many-{number}" for number in range(30))):
            await (await engine.start(sums, run_id=run_id)).result()

        assert await find_run(engine.store, "ab") == "ab"
        assert await find_run(engine.store, "b") == "b%"
        with pytest.raises(RunNotFound):
            await find_run(engine.store, "%")
        with pytest.raises(RunIdAmbiguous) as caught:
            await find_run(engine.store, "many")
        assert len(caught.value.candidates) == 10


async def test_a_log_is_followed_from_outside_each_event_once(sqlite_url: str):
    seen: list[e.Recorded] = []

    async with Engine(sqlite_url, workflows=[sums]) as engine:
        run = await engine.start(sums, run_id="r1")
        onlooker = await open_store(sqlite_url)
        async with asyncio.timeout(20):
            async for entry in follow_events(onlooker, RunId("r1")):
                seen.append(entry)
        assert [entry.seq for entry in seen] == list(range(1, (await run.load()).run.last_seq + 1))
        assert isinstance(seen[-1].event, e.RunCompleted)
        assert await living_engines(onlooker) == {engine.engine_id}
        await onlooker.close()


async def test_a_run_whose_graph_is_gone_is_still_reported(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url, workflows=[sums]) as engine:
        await (await engine.start(sums, run_id="r1")).result()
    connection = apsw.Connection(str(tmp_path / "perdure.db"))
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("UPDATE workflow_versions SET graph = '[]'")
    connection.close()

    store = await open_store(sqlite_url)
    report = await report_run(store, RunId("r1"))
    violations = await verify_run(store, "r1")
    await store.close()

    assert report.status is RunStatus.COMPLETED
    assert [(found.id, found.status) for found in report.nodes] == [
        ("one", NodeStatus.COMPLETED),
        ("two", NodeStatus.COMPLETED),
    ]
    assert {violation.invariant for violation in violations} == {"I2"}


async def test_a_run_that_is_not_there_cannot_be_verified(sqlite_url: str):
    async with Engine(sqlite_url, workflows=[sums]) as engine:
        with pytest.raises(RunNotFound):
            await verify_run(engine, "nothing")
