"""A part of each item of a stream: as a list for a node, inside a template, and as what a workflow returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Outputs, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunFailed
from perdure.graph.declare import Workflow

LARGE = "x" * 300_000


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    async with Engine(f"sqlite:///{tmp_path}/parts.db") as opened:
        yield opened


async def result_of(engine: Engine, flow: Workflow[..., Any], **inputs: Any) -> Any:
    run = await engine.start(flow, **inputs)
    try:
        return await run.result()
    finally:
        assert await verify_run(engine, run.run_id) == []


@node
def pages(n: int, width: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(n):
        yield {"n": number, "deep": [{"m": -number}], "text": "x" * width}


@node
async def copied(page: dict[str, Any]) -> dict[str, Any]:
    return page


@node
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@node
async def shown(value: dict[str, Any]) -> dict[str, Any]:
    return value


WIDTHS = [
    pytest.param(0, id="at hand"),
    pytest.param(20_000, id="a large list"),
    pytest.param(300_000, id="large items"),
]


@pytest.mark.parametrize("width", WIDTHS)
async def test_parts_of_items_are_collected(engine: Engine, width: int) -> None:
    @workflow
    def flow(n: int, width: int) -> Any:
        given = pages(n, width)
        copies = copied.map(given)
        return {
            "returned": collect(given["n"]),
            "deep": collect(given["deep"][0]["m"]),
            "mapped": collect(copies["n"]),
            "inside": [1, {"two": collect(given["n"])}],
            "argument": total(collect(given["n"])),
            "template": shown({"all": collect(given["n"]), "n": n}),
        }

    assert await result_of(engine, flow, n=20, width=width) == {
        "returned": list(range(20)),
        "deep": [-number for number in range(20)],
        "mapped": list(range(20)),
        "inside": [1, {"two": list(range(20))}],
        "argument": 190,
        "template": {"all": list(range(20)), "n": 20},
    }


@pytest.mark.parametrize("width", [20_000, 300_000])
async def test_parts_that_are_large_themselves_are_collected(engine: Engine, width: int) -> None:
    @workflow
    def flow(n: int, width: int) -> Any:
        given = pages(n, width)
        return {"returned": collect(given["text"]), "argument": shown({"all": collect(given["text"])})}

    texts = ["x" * width] * 15
    assert await result_of(engine, flow, n=15, width=width) == {"returned": texts, "argument": {"all": texts}}


class Sides(Outputs):
    left: dict[str, Any]
    right: dict[str, Any]


@node
def sides(n: int) -> Iterator[Sides]:
    for number in range(n):
        page = {"n": number, "text": LARGE if number == 2 else ""}
        yield Sides(left=page) if number % 3 else Sides(left=page, right=page)


async def test_parts_are_those_of_the_output_that_was_chosen(engine: Engine) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = sides(n)
        return [collect(given.left["n"]), collect(given.right["n"]), total(collect(given.left["n"]))]

    assert await result_of(engine, flow, n=7) == [[0, 1, 2, 3, 4, 5, 6], [0, 3, 6], 21]


@node
def ragged(n: int) -> Iterator[dict[str, Any]]:
    for number in range(n):
        yield {"text": LARGE if number == 4 else ""} if number % 2 == 0 else {"n": number}


async def test_an_output_is_null_where_an_item_lacks_the_part(engine: Engine) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = ragged(n)
        return collect(given["n"])

    assert await result_of(engine, flow, n=3) == [None, 1, None]
    assert await result_of(engine, flow, n=6) == [None, 1, None, 3, None, 5]


@pytest.mark.parametrize("part", ["n", "text"])
async def test_an_argument_cannot_be_made_where_an_item_lacks_the_part(engine: Engine, part: str) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = ragged(n)
        return total(collect(given[part]))

    position = {"n": 0, "text": 1}[part]
    with pytest.raises(RunFailed, match=f"'numbers' wants '{part}' of .* 'ragged' gave, but item {position} has none"):
        await result_of(engine, flow, n=6)


begun: asyncio.Event


@node(once=True)
async def stuck() -> AsyncIterator[dict[str, Any]]:
    begun.set()
    await asyncio.sleep(1_000)
    yield {}


@pytest.mark.parametrize("width", [0, 20_000])
async def test_parts_of_what_somebody_says_a_node_has_given_are_collected(sqlite_url: str, width: int) -> None:
    global begun
    begun = asyncio.Event()

    @workflow
    def flow() -> Any:
        given = stuck()
        return [collect(given["n"]), collect(given["text"]), total(collect(given["n"]))]

    async with Engine(sqlite_url) as engine:
        await engine.start(flow, run_id="run")
        await begun.wait()
        await engine.stop(grace_seconds=0)
    async with Engine(sqlite_url) as engine:
        run = await engine.get("run")
        items = [{"n": number, "text": "x" * width} for number in range(20)]
        await run.resolve("stuck", "done", output=items)
        result = await run.result()

    assert result == [list(range(20)), ["x" * width] * 20, 190]


@node(executor="process", concurrency=2)
def measured(page: dict[str, Any], beside: str) -> list[int]:
    return [page["n"], len(page["text"]), len(beside)]


@node
async def large() -> str:
    return LARGE


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
async def test_bodies_in_processes_get_items_of_any_size(engine: Engine, width: int) -> None:
    @workflow
    def flow(n: int, width: int) -> Any:
        return collect(measured.map(pages(n, width), beside=large()))

    assert await result_of(engine, flow, n=3, width=width) == [[n, width, len(LARGE)] for n in range(3)]
