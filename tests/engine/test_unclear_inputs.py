"""Inputs that conditions and outputs look at: what their stored form does not tell is refused, never guessed."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any

import pytest

from perdure import Engine, node, unless, when, workflow
from perdure.errors import RunFailed, WrongInputs
from perdure.ids import RunId
from perdure.journal.states import NodeStatus

LARGE = "x" * 400_000


class Level(IntEnum):
    NONE = 0
    SOME = 1


@node
async def said(word: str) -> str:
    return word


@workflow
def asked(given: Any) -> Any:
    with when(given):
        said.named("yes")("yes")
    with unless(given):
        said.named("no")("no")


@workflow
def looked(given: dict[str, Any]) -> Any:
    with when(given["ok"]):
        return said("yes")


@workflow
def part(given: dict[str, Any]) -> Any:
    said("anything")
    return given["ok"]


@pytest.mark.parametrize(("value", "side"), [(1, "yes"), (0, "no"), ("", "no"), ([0], "yes"), (Level.SOME, "yes")])
async def test_what_can_be_told_is_told(sqlite_url: str, value: Any, side: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(asked, given=value)
        await run.result()
        completed = {n.node_id for n in (await run.load()).nodes if n.status is NodeStatus.COMPLETED}
        assert completed == {side}


async def test_a_condition_on_what_hides_its_truth_is_refused(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(WrongInputs, match=r"'given' .* pass bool"):
            await engine.start(asked, given=Level.NONE)
        assert await engine.list() == []


@pytest.mark.parametrize("flow", [looked, part])
async def test_looking_into_a_large_input_is_refused(sqlite_url: str, flow: Any):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(WrongInputs, match="too large to be looked into"):
            await engine.start(flow, given={"ok": 5, "text": LARGE})
        assert await engine.list() == []


# A doubt that is resolved as failed


@node(once=True)
async def doubtful() -> None:
    await asyncio.sleep(60)


@node
async def endless() -> None:
    await asyncio.sleep(60)


@workflow
def pair() -> None:
    doubtful()
    endless()


async def test_bodies_are_stopped_when_a_doubt_is_resolved_as_failed(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(pair, run_id="r")
        await asyncio.sleep(0.1)
        driver = engine.driver_of(RunId("r"))
        assert driver is not None
        driver.decider.attempt_lost(
            next(iter(driver.projection.nodes)), reason="a test", at=driver.machinery.clock.now_micros()
        )
        driver.happened()
        await asyncio.sleep(0.1)

        await run.resolve("doubtful", "fail")

        async with asyncio.timeout(10):
            with pytest.raises(RunFailed):
                await run.result()
