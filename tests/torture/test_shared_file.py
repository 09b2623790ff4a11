"""Processes that share one SQLite file wait for each other, and none is starved."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw
import pytest

from perdure import Engine, node, workflow
from perdure.ids import CommandId, RunId
from perdure.store.base import Store
from perdure.store.shapes import Command
from perdure.store.sqlite.connection import parse_url
from tests.torture import checks
from tests.torture.processes import Children

WRITES = 30


@node
async def one() -> int:
    return 1


@workflow
def trivial() -> int:
    return one()


async def test_a_write_waits_until_another_process_has_written(sqlite_url: str):
    async with Engine(sqlite_url, workflows=[trivial], recover=False) as engine:
        run = await engine.start(trivial, run_id="r")
        assert await run.result() == 1
        other = apsw.Connection(str(parse_url(sqlite_url).path))
        other.execute("BEGIN IMMEDIATE")

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write(engine.store, 0))
            await asyncio.sleep(0.3)
            assert not writing.done()
            other.execute("ROLLBACK")
        other.close()


@pytest.mark.slow
async def test_a_busy_writer_starves_nobody(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url, workflows=[trivial]) as engine:
        await (await engine.start(trivial, run_id="r")).result()
    async with Children(tmp_path, {}) as children, checks.opened(sqlite_url) as store:
        hammer = await children.start("hammer", str(parse_url(sqlite_url).path))
        await hammer.ready()

        took = [await timed_write(store, number) for number in range(WRITES)]

        assert hammer.is_alive
    print(f"{WRITES} writes beside a busy writer: at most {max(took):.2f} s, {sum(took) / WRITES:.3f} s on average")


async def timed_write(store: Store, number: int) -> float:
    began = time.monotonic()
    await write(store, number)
    return time.monotonic() - began


async def write(store: Store, number: int) -> None:
    assert await store.add_command(Command(command_id=CommandId(f"c{number}"), run_id=RunId("r"), kind="cancel"))
