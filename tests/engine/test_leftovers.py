"""What becomes of the items that are left when the shortest of several zipped streams has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunFailed
from perdure.graph.declare import Workflow
from perdure.journal import events as e


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    async with Engine(f"sqlite:///{tmp_path}/leftovers.db") as opened:
        yield opened


async def result_of(engine: Engine, flow: Workflow[..., Any], **inputs: Any) -> Any:
    run = await engine.start(flow, **inputs)
    try:
        async with asyncio.timeout(20):
            return await run.result()
    finally:
        assert await verify_run(engine, run.run_id) == []


@node
def count(n: int) -> Iterator[int]:
    yield from range(n)


@node
async def count_slowly(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0.002)
        yield number


@node(concurrency=3)
async def add(x: int, y: int) -> int:
    return x + y


@node
async def add_three(x: int, y: int, z: int) -> int:
    return x + y + z


@workflow
def dropping(n: int, m: int) -> Any:
    longer, shorter = count(n), count_slowly(m)
    return {
        "sums": collect(add.map(longer, shorter, join="zip", leftovers="drop")),
        "x": collect(longer),
        "y": collect(shorter),
    }


@pytest.mark.parametrize(("n", "m"), [(5, 3), (3, 5), (3, 3), (0, 4), (4, 0), (3_000, 2), (3, 100)])
async def test_a_zip_may_end_with_the_shortest_stream(engine: Engine, n: int, m: int) -> None:
    result = await result_of(engine, dropping, n=n, m=m)

    assert result == {"sums": [2 * x for x in range(min(n, m))], "x": list(range(n)), "y": list(range(m))}


async def test_a_list_may_be_the_shortest(engine: Engine) -> None:
    @workflow
    def flow(n: int, given: list[int]) -> Any:
        return collect(add_three.map(count(n), given, [1, 1, 1, 1], join="zip", leftovers="drop"))

    assert await result_of(engine, flow, n=1_000, given=[10, 20]) == [11, 22]
    assert await result_of(engine, flow, n=3, given=[10] * 9) == [11, 12, 13]
    assert await result_of(engine, flow, n=9, given=[10] * 9) == [11, 12, 13, 14]


async def test_leftovers_fail_unless_they_may_be_dropped(engine: Engine) -> None:
    @workflow
    def flow(n: int, m: int) -> Any:
        return collect(add.map(count(n), count_slowly(m), join="zip", leftovers="fail"))

    assert await result_of(engine, flow, n=2, m=2) == [0, 2]
    with pytest.raises(RunFailed, match=r"'y' has ended after 2 items and 'x' goes on.*leftovers='drop'"):
        await result_of(engine, flow, n=3, m=2)


@pytest.mark.slow
async def test_a_zip_ends_while_the_longer_stream_goes_on(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as first:
        run = await first.start(dropping, n=2, m=2_000, run_id="run")
        async for entry in run.events():
            if isinstance(entry.event, e.NodeCompleted) and entry.event.node_id == "add":
                break
        assert await verify_run(first, "run") == []
        await first.stop(grace_seconds=0)
    async with Engine(sqlite_url) as second:
        result = await (await second.get("run")).result()

    assert result == {"sums": [0, 2], "x": [0, 1], "y": list(range(2_000))}


async def test_a_zip_that_drops_goes_on_after_a_loss(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as first:
        run = await first.start(dropping, n=2_000, m=200, run_id="run")
        async for entry in run.events():
            if entry.seq > 20:
                break
        await first.stop(grace_seconds=0)
    async with Engine(sqlite_url) as second:
        result = await (await second.get("run")).result()
        assert await verify_run(second, "run") == []

    assert result["sums"] == [2 * x for x in range(200)]
    assert result["x"] == list(range(2_000))
