"""Deleting a run: its values go, what happened stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from perdure import Context, Engine, EngineSettings, ask, collect, node, workflow
from perdure.engine.inspect import report_run
from perdure.engine.runs.run import Run
from perdure.errors import RunFailed, RunNotEnded, ValuesDeleted
from tests.engine.engines import assert_whole, log_of

SECRET = "hunter2"
TOO_MUCH = 7
SETTINGS = EngineSettings(recovery_seconds=0.2, poll_seconds=0.2, hibernate_after=0.0, inline_max_bytes=1_000)


@node
async def deleted_parts(n: int, secret: str) -> AsyncIterator[str]:
    for number in range(n):
        yield f"{secret}-{number}"


@node
async def deleted_part(ctx: Context, part: str) -> str:
    ctx.log.info("got", part=part)
    await ctx.step(lambda: part + "!")
    if part.endswith(f"-{TOO_MUCH}"):
        raise ValueError(f"{part} is too much")
    return part


@node
async def deleted_whole(ctx: Context, parts: list[str], ok: str) -> str:
    told = await ctx.wait_for("word")
    return f"{ok}{told}" + "".join(parts) * 100


@workflow
def deleted_flow(n: int, secret: str) -> str:
    parts = collect(deleted_part.map(deleted_parts(n, secret)))
    return deleted_whole(parts, ask("hunter2, is it?", schema=str, show=secret))


async def ended(engine: Engine, run_id: str, n: int = 3, secret: str = SECRET) -> Run[str]:
    run = await engine.start(deleted_flow, n=n, secret=secret, run_id=run_id)
    if n <= TOO_MUCH:  # else it fails at any moment, and may be told nothing from then on
        while not (questions := await run.questions()):
            await asyncio.sleep(0.01)
        await run.answer(questions[0].interaction_id, secret)
        await run.signal("word", secret)
    await run.wait()
    return run


async def content_of(url: str, run_id: str) -> str:
    """Return all that the database holds of a run, as one text."""
    tables = (
        *("run_state", "run_events", "run_node_state", "run_branches", "run_steps", "run_waits", "run_signals"),
        *("run_checkpoints", "run_inbox_messages", "run_commands", "blobs", "run_logs"),
    )
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        found = [connection.execute(f"SELECT * FROM {name} WHERE run_id = ?", (run_id,)).fetchall() for name in tables]
        connection.close()
        return str(found)
    raw: Any = await asyncpg.connect(url)
    found = [await raw.fetch(f"SELECT * FROM {name} WHERE run_id = $1", run_id) for name in tables]
    await raw.close()
    return str([[tuple(row) for row in rows] for rows in found])


def file_of(url: str) -> bytes:
    """Return what is in the file of a database."""
    return Path(url.removeprefix("sqlite:///")).read_bytes()


@pytest.mark.parametrize("n", [3, 9], ids=["completed", "failed"])
async def test_the_values_of_a_run_are_gone_and_what_happened_stays(store_url: str, tmp_path: Path, n: int):
    async with Engine(store_url, blobs=(tmp_path / "blobs").as_uri(), settings=SETTINGS) as engine:
        run = await ended(engine, "secret", n)
        before, status = await log_of(run), await run.status()
        stored = await run.load()
        while not await engine.store.load_logs(run.run_id, after=0, limit=1):
            await asyncio.sleep(0.01)  # they are written a moment after what they tell of
        assert SECRET in await content_of(store_url, "secret")

        assert await run.delete(by="Ada", reason="asked for") is True

        after = await log_of(run)
        assert SECRET not in await content_of(store_url, "secret")
        assert [(entry.id, type(entry.event)) for entry in after[:-1]] == [
            (entry.id, type(entry.event)) for entry in before
        ]
        assert (after[-1].event.__class__.__name__, await run.status()) == ("RunDeleted", status)
        emptied = await run.load()
        assert [(found.node_id, found.status, found.attempt) for found in emptied.nodes] == [
            (found.node_id, found.status, found.attempt) for found in stored.nodes
        ]
        await assert_whole(engine, run)
        assert (await engine.list())[0].deleted_at == after[-1].at
        assert (await report_run(engine.store, run.run_id)).deleted_at is not None
        assert await run.delete() is False
        assert await log_of(run) == after
        with pytest.raises(ValuesDeleted if n == 3 else RunFailed):
            await run.result()
        with pytest.raises(ValuesDeleted):
            await (run.retry() if n == 9 else run.jump("deleted_whole"))
        with pytest.raises(ValuesDeleted):
            await engine.start(deleted_flow, n=n, secret=SECRET, run_id="secret")


async def test_a_file_holds_nothing_of_what_was_deleted(sqlite_url: str, tmp_path: Path):
    secret = "correct horse battery staple"
    async with Engine(sqlite_url, blobs=(tmp_path / "blobs").as_uri(), settings=SETTINGS) as engine:
        runs = [await ended(engine, name, 6, secret=secret) for name in ("one", "two")]
    assert secret.encode() in file_of(sqlite_url)
    async with Engine(sqlite_url, blobs=(tmp_path / "blobs").as_uri(), settings=SETTINGS) as engine:
        for run in runs:
            await (await engine.get(run.run_id)).delete()
    assert secret.encode() not in file_of(sqlite_url)


async def test_a_run_that_lives_keeps_its_values(store_url: str):
    async with Engine(store_url, settings=SETTINGS) as engine:
        run = await engine.start(deleted_flow, n=1, secret=SECRET, run_id="alive")
        with pytest.raises(RunNotEnded, match="alive"):
            await run.delete()
        await run.cancel()
        await run.wait()
        assert await run.delete()
        await assert_whole(engine, run)


async def test_a_deleted_run_stays_deleted_wherever_it_goes(store_url: str, tmp_path: Path):
    settings = {"archive_folder": str(tmp_path / "archive")}
    async with Engine(store_url, settings=EngineSettings(**settings)) as engine:
        run = await ended(engine, "gone")
        await run.delete()
        await run.export(tmp_path / "gone.bundle")
        copy = await engine.import_run(tmp_path / "gone.bundle", run_id="copy")
        assert await engine.store.load_deletion(copy.run_id) == await engine.store.load_deletion(run.run_id)
        await engine.archive(older_than=timedelta(0))
        back = await engine.unarchive("gone")
        assert await engine.store.load_deletion(back.run_id) is not None
        await assert_whole(engine, back)
        assert await back.delete() is False
