"""What perdure itself finds wrong is told in words: there is no code of the user's in it that a traceback could point to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, collect, node, workflow
from perdure.errors import RunFailed
from perdure.graph.declare import Workflow


@node
def count(n: int) -> Iterator[int]:
    yield from range(n)


@node
async def add(x: int, y: int) -> int:
    return x + y


@node
async def anything() -> Any:
    return {"a": 1}


@node(timeout=0.05)
async def sleepy(x: int) -> int:
    await asyncio.sleep(10)
    return x


@node
async def unstorable(x: int) -> Any:
    return asyncio.current_task()


@node
async def saves(ctx: Context, x: int) -> int:
    await ctx.checkpoint(x)
    return x


@workflow
def uneven() -> Any:
    return collect(add.map(count(2), count.named("more")(3), join="zip"))


@workflow
def mapped_dict() -> Any:
    return collect(add.map(anything(), y=1))


@workflow
def missing_part() -> Any:
    given: Any = anything()
    return add(given["a"], given["b"])


@workflow
def too_late() -> Any:
    return sleepy(1)


@workflow
def too_late_for_an_item() -> Any:
    return collect(sleepy.map([1]))


@workflow
def not_storable() -> Any:
    return unstorable(1)


@workflow
def not_storable_item() -> Any:
    return collect(unstorable.map([1]))


@workflow
def misused() -> Any:
    return collect(saves.map([1]))


async def failure_of(url: str, flow: Workflow[..., Any]) -> RunFailed:
    async with Engine(url) as engine:
        run = await engine.start(flow)
        with pytest.raises(RunFailed) as caught:
            await run.result()
    return caught.value


@pytest.mark.parametrize(
    ("flow", "name"),
    [
        (uneven, "StreamsUneven"),
        (mapped_dict, "InputUnusable"),
        (missing_part, "InputUnusable"),
        (too_late, "AttemptTimeout"),
        (too_late_for_an_item, "AttemptTimeout"),
        (not_storable, "ValueNotStorable"),
        (not_storable_item, "ValueNotStorable"),
    ],
)
async def test_an_error_that_perdure_raises_by_itself_has_no_traceback(
    sqlite_url: str, flow: Workflow[..., Any], name: str
) -> None:
    failed = await failure_of(sqlite_url, flow)

    assert failed.error_type == name
    assert failed.traceback == ""


async def test_one_that_a_body_has_caused_shows_where(sqlite_url: str) -> None:
    failed = await failure_of(sqlite_url, misused)

    assert failed.error_type == "CheckpointNotHere"
    assert "in saves" in failed.traceback
    assert str(Path(__file__)) in failed.traceback
