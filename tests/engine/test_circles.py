"""What a run leaves behind when it is let go: nothing that only the collector finds, which would cost a third of the time of
thousands of short runs."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from perdure import Context, Engine, Workflow, ask, node, workflow

RUNS = 20


@node
async def circled(x: int) -> int:
    return x + 1


@node
def circled_in_a_thread(x: int) -> int:
    return x + 1


@node
async def circled_wait(ctx: Context, x: int) -> int:
    await ctx.step(lambda: x)
    return int(await ctx.wait_for("go"))


@workflow
def circled_chain(x: int) -> int:
    return circled(circled(circled(x)))


@workflow
def circled_chain_in_threads(x: int) -> int:
    return circled_in_a_thread(circled_in_a_thread(x))


@workflow
def circled_waits(x: int) -> int:
    return circled_wait(x)


@workflow
def circled_question(x: int) -> str:
    return ask("Well?", show=x)


@pytest.mark.parametrize(
    "flow",
    [circled_chain, circled_chain_in_threads, circled_waits, circled_question],
    ids=["chain", "threads", "signal", "question"],
)
async def test_a_run_that_was_let_go_leaves_nothing_to_the_collector(sqlite_url: str, flow: Workflow[..., Any]) -> None:
    async with Engine(sqlite_url) as engine:

        async def go(number: int) -> None:
            run = await engine.start(flow, x=number)
            if flow is circled_waits:
                await run.signal("go", number)
            await run.wait()

        await go(0)  # what is kept for all runs is made with the first
        gc.collect()
        gc.disable()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(1, RUNS):
                    group.create_task(go(number))
            await asyncio.sleep(0.2)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [type(thing).__name__ for thing in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert "Driver" not in left
    assert len(left) < RUNS
