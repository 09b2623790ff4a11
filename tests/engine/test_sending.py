"""Inputs that are streams: fed while the run lives, durable before the sender hears, each item once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Stream, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import CommandIdTaken, InputClosed, InvalidDeclaration, WrongInputs
from perdure.graph.forms import graph_from_json
from perdure.graph.writing import graph_to_json
from perdure.ids import RunId
from perdure.journal.states import RunStatus
from perdure.testing.loop import run_virtual
from perdure.testing.world import World
from tests.crash.backends import opened_world
from tests.engine.engines import in_another_process, killed_after

heard: list[str] = []


@node(concurrency=2)
async def answer(ctx: Context, message: str) -> str:
    heard.append(message)
    return message.upper()


@node
async def echo(messages: Stream[str]) -> AsyncIterator[str]:
    async for message in messages:
        yield message


@workflow
def chat(messages: Stream[str]) -> list[str]:
    return collect(answer.map(messages))


@workflow
def read(messages: Stream[str], prefix: str = "") -> list[str]:
    return collect(echo(messages))


async def until(engine: Engine, count: int) -> None:
    async with asyncio.timeout(5):
        while len(heard) < count:
            await asyncio.sleep(0.005)


async def test_items_are_processed_while_the_run_lives(sqlite_url: str) -> None:
    heard.clear()
    async with Engine(sqlite_url) as engine:
        run = await engine.start(chat)
        await run.send("messages", "one")
        await run.send("messages", "two")
        await until(engine, 2)
        await run.send("messages", "three")
        await until(engine, 3)
        assert await run.status() is RunStatus.RUNNING

        await run.close("messages")

        assert await run.result() == ["ONE", "TWO", "THREE"]
        assert await verify_run(engine, run.run_id) == []


async def test_an_item_with_the_same_id_counts_once(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(read)
        for _ in range(3):
            await run.send("messages", "one", item_id="1")
        with pytest.raises(CommandIdTaken):
            await run.send("messages", "other", item_id="1")
        await run.close("messages")
        await run.close("messages")

        assert await run.result() == ["one"]


async def test_nothing_is_taken_after_the_end(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(read)
        await run.close("messages")
        with pytest.raises(InputClosed, match="is closed"):
            await run.send("messages", "late")
        assert await run.result() == []
        with pytest.raises(InputClosed):
            await run.send("messages", "later")


async def test_what_does_not_fit_is_refused_and_nothing_is_stored(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(read)
        with pytest.raises(WrongInputs, match="there is no input 'message' that is a stream"):
            await run.send("message", "one")
        with pytest.raises(WrongInputs, match="there is no input 'prefix' that is a stream"):
            await run.close("prefix")
        with pytest.raises(WrongInputs, match="a int does not fit"):
            await run.send("messages", 17)
        assert (await run.load()).commands == ()
        await run.cancel()


async def test_items_that_are_known_from_the_start_are_all_there_are(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(chat, messages=["one", "two"])

        assert await run.result() == ["ONE", "TWO"]
        with pytest.raises(WrongInputs, match="takes a list of its items, not a str"):
            await engine.start(chat, messages="one")


async def test_a_graph_with_such_an_input_reads_back_the_same(sqlite_url: str) -> None:
    again = graph_from_json(graph_to_json(chat.graph))

    assert again == chat.graph
    async with Engine(sqlite_url) as engine:
        run = await engine.start(again, messages=["one"])
        assert await run.result() == ["ONE"]


def test_a_stream_has_no_default() -> None:
    def flow(xs: Stream[int] = None) -> list[int]:  # type: ignore[assignment]
        return collect(xs)

    with pytest.raises(InvalidDeclaration, match="is a stream, which has no default"):
        workflow(flow)


def test_what_was_sent_to_an_engine_that_dies_is_neither_lost_nor_doubled(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened_world(store_url, tmp_path) as world:
            for sent_before in range(4):
                assert await told(world, RunId(f"run-{sent_before}"), sent_before) == list("ABCD")
                assert await world.violations(RunId(f"run-{sent_before}")) == []

    async def told(world: World, run_id: RunId, sent_before: int) -> Any:
        async def begin(engine: Engine) -> None:
            run = await engine.start(chat, run_id=run_id)
            for item in "abcd"[:sent_before]:
                await run.send("messages", item, item_id=item)

        async def go_on(engine: Engine) -> Any:
            run = await engine.get(run_id)
            for item in "abcd":
                await run.send("messages", item, item_id=item)
            await run.close("messages")
            return await run.result()

        await killed_after(world, begin)
        return await in_another_process(world, go_on)

    run_virtual(main())


async def test_an_engine_that_stops_does_not_wait_for_items(sqlite_url: str) -> None:
    async with asyncio.timeout(5):
        async with Engine(sqlite_url) as engine:
            run = await engine.start(read)
            await run.send("messages", "one")
    async with Engine(sqlite_url) as engine:
        again = await engine.get(run.run_id)
        await again.send("messages", "two")
        await again.close("messages")
        assert await again.result() == ["one", "two"]
