"""What can be seen of streams while they flow: who works, who waits for whom, and what lies between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Stream, collect, node, workflow
from perdure.engine.runs.run import Run
from perdure.engine.streams.inbox import MAX_BUFFERED_ITEMS
from perdure.engine.streams.live import EdgeFacts, LiveStreams
from perdure.ids import NodeId

gates: dict[str, asyncio.Event] = {}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    gates.clear()
    gates.update(source=asyncio.Event(), call=asyncio.Event(), read=asyncio.Event())
    async with Engine(f"sqlite:///{tmp_path}/live.db") as opened:
        yield opened


@node
def count(n: int) -> Iterator[int]:
    yield from range(n)


@node
async def gated_count(n: int) -> AsyncIterator[int]:
    await gates["source"].wait()
    for number in range(n):
        yield number


@node(concurrency=3)
async def gated_call(x: int) -> int:
    await gates["call"].wait()
    return x


@node
async def gated_read(xs: Stream[int]) -> int:
    await gates["read"].wait()
    return len([x async for x in xs])


@workflow
def mapped(n: int) -> Any:
    return collect(gated_call.map(count(n)))


@workflow
def hungry(n: int) -> Any:
    numbers = gated_count(n)
    return [collect(gated_call.map(numbers)), gated_read(numbers)]


@workflow
def listed(xs: list[int]) -> Any:
    return collect(gated_call.map(xs))


async def seen(engine: Engine, run: Run[Any], claim: Callable[[LiveStreams], bool]) -> LiveStreams:
    """Wait until the streams of a run look like this, and return how they look."""
    async with asyncio.timeout(10):
        while True:
            driver = engine.driver_of(run.run_id)
            assert driver is not None, "the run waits for a gate"
            if claim(facts := driver.live_streams()):
                return facts
            await asyncio.sleep(0.005)


def edge_to(facts: LiveStreams, target: str) -> EdgeFacts:
    return next(edge for edge in facts.edges if edge.target == target)


@pytest.mark.slow
async def test_a_producer_is_blocked_while_its_reader_has_enough_to_do(engine: Engine) -> None:
    run = await engine.start(mapped, n=5_000)

    facts = await seen(engine, run, lambda now: NodeId("count") in now.nodes and now.nodes[NodeId("count")].is_blocked)

    assert facts.nodes[NodeId("gated_call")].running == 3
    assert facts.nodes[NodeId("gated_call")].total is None
    edge = edge_to(facts, "gated_call")
    assert (edge.source, edge.target_handle, edge.taken) == ("count", "x", 3)
    assert edge.buffered + edge.behind >= MAX_BUFFERED_ITEMS - 3
    gates["call"].set()
    assert len(await run.result()) == 5_000


async def test_how_many_calls_there_will_be_is_known_when_the_source_has_ended(engine: Engine) -> None:
    run = await engine.start(mapped, n=10)

    def is_under_way(now: LiveStreams) -> bool:
        return any(node.total == 10 for node in now.nodes.values()) and edge_to(now, "gated_call").taken >= 3

    facts = await seen(engine, run, is_under_way)

    edge = edge_to(facts, "gated_call")
    assert (edge.taken, edge.buffered, edge.behind, edge.is_over) == (3, 7, 0, False)
    gates["call"].set()
    assert await run.result() == list(range(10))


async def test_the_length_of_a_list_is_known_from_the_beginning(engine: Engine) -> None:
    run = await engine.start(listed, xs=[1, 2, 3, 4])

    facts = await seen(engine, run, lambda now: any(node.running == 3 for node in now.nodes.values()))

    assert facts.nodes[NodeId("gated_call")].total == 4
    assert facts.edges == ()
    gates["call"].set()
    assert await run.result() == [1, 2, 3, 4]


async def test_readers_are_starved_while_there_is_nothing_to_read(engine: Engine) -> None:
    gates["read"].set()
    run = await engine.start(hungry, n=5)
    readers = (NodeId("gated_call"), NodeId("gated_read"))

    await seen(engine, run, lambda now: all(name in now.nodes and now.nodes[name].is_starved for name in readers))

    gates["source"].set()
    facts = await seen(engine, run, lambda now: any(node.running == 3 for node in now.nodes.values()))
    assert not facts.nodes[NodeId("gated_call")].is_starved
    gates["call"].set()
    assert await run.result() == [[0, 1, 2, 3, 4], 5]


async def test_whoever_still_looks_when_the_run_is_let_go_sees_that_nothing_flows(engine: Engine) -> None:
    run = await engine.start(mapped, n=3)
    driver = engine.driver_of(run.run_id)
    assert driver is not None
    gates["call"].set()
    await run.result()

    async with asyncio.timeout(10):
        while engine.driver_of(run.run_id) is not None:
            await asyncio.sleep(0)
    await asyncio.sleep(0.01)  # its task ends in one of the next rounds of the loop

    assert driver.live_streams() == LiveStreams(nodes={}, edges=())
