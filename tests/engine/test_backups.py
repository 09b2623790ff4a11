"""A store is copied while runs go on, and the copy is a store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import Engine, EngineSettings, ask, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import ProgramError, StoreUnavailable
from perdure.store.opening import open_store

SETTINGS = EngineSettings(inline_max_bytes=1_000, recovery_seconds=0.2, poll_seconds=0.2)


@node
async def backed_text(n: int) -> str:
    return str(n) * 3_000


@workflow
def backed_flow(n: int) -> str:
    return backed_text(n)


@workflow
def backed_question(n: int) -> str:
    return backed_answered(backed_text(n), ask("Right?", schema=bool))


@node
async def backed_answered(text: str, ok: bool) -> str:
    return text if ok else ""


async def start_many(engine: Engine, until: asyncio.Event) -> int:
    number = 0
    while not until.is_set():
        await (await engine.start(backed_flow, n=number % 10, run_id=f"run-{number}")).result()
        number += 1
    return number


def files_beside(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir() if found.is_file())


@pytest.mark.slow
async def test_a_copy_made_beside_runs_is_whole_and_goes_on(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url, settings=SETTINGS) as engine:
        asking = await engine.start(backed_question, n=1, run_id="asking")
        old = await engine.start(backed_flow, n=1, run_id="old")
        await old.result()
        await engine.archive(older_than=timedelta(0))
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(start_many(engine, done))
            while len(await engine.list()) < 10:
                await asyncio.sleep(0.01)
            first = await engine.backup(tmp_path / "copies" / "copy.db")
            with pytest.raises(ProgramError, match="already"):
                await engine.backup(first.path)
            second = await engine.backup(first.path, replace=True)
            done.set()
        assert starting.result() > 10
        assert second.size >= first.size
        await asking.cancel()
    assert files_beside(first.path) == ["copy.db"]

    async with Engine(second.url, settings=SETTINGS) as copy:
        runs = await copy.list(limit=10_000)
        assert len(runs) >= 10
        for run in runs:
            assert await verify_run(copy, run.run_id) == []
        twin = await copy.get("asking")
        while not (questions := await twin.questions()):
            await asyncio.sleep(0.01)
        await twin.answer(questions[0].interaction_id, True)
        assert await twin.result() == "1" * 3_000
        assert await (await copy.unarchive("old")).result() == "1" * 3_000


async def test_nobody_owns_the_runs_of_a_copy(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url, settings=SETTINGS) as engine:
        run = await engine.start(backed_question, n=1, run_id="owned")
        done = await engine.backup(tmp_path / "copy.db")
        store = await open_store(done.url)
        stored = await store.load_run(run.run_id)
        assert stored is not None
        assert (stored.owner, await store.list_engines()) == (None, [])
        await store.close()


async def test_a_file_that_is_in_use_is_not_replaced(sqlite_url: str):
    async with Engine(sqlite_url, settings=SETTINGS) as engine:
        await (await engine.start(backed_flow, n=1)).result()
        with pytest.raises(ProgramError, match="in use"):
            await engine.backup(sqlite_url.removeprefix("sqlite:///"), replace=True)


async def test_postgres_has_tools_of_its_own(postgres_url: str, tmp_path: Path):
    async with Engine(postgres_url, settings=SETTINGS) as engine:
        with pytest.raises(StoreUnavailable, match="pg_dump"):
            await engine.backup(tmp_path / "copy.db")
