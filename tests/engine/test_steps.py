"""Steps and checkpoints together: what a body that runs again is given, and what it is never given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, SyncContext, collect, node, workflow
from perdure.dispatch.local import LocalDispatch
from perdure.engine.inspect import verify_run
from perdure.engine.runs.run import Run
from perdure.errors import RunFailed
from perdure.journal import events as e
from perdure.testing.loop import run_virtual
from perdure.testing.stores import opened_store
from tests.crash.backends import opened_world
from tests.engine.engines import counted, engine_on, in_another_process, killed_after

worked: list[int] = []
stalled = asyncio.Event()


def work(number: int) -> int:
    worked.append(number)
    return number


async def rows_of(engine: Engine, run: Run[Any]) -> list[tuple[str, int]]:
    """Return the steps that the store keeps, of a run that is as it should be."""
    assert await verify_run(engine, run.run_id) == []
    return [(step.name, step.occurrence) for step in (await run.load()).steps]


async def taken_in(run: Run[Any]) -> int:
    """Return how many steps the log tells of."""
    return (await counted(run))[e.StepCompleted]


# A body that goes on from a checkpoint


@node(retries=2, backoff=0)
async def steps_and_saves(ctx: Context, upto: int, fails_at: list[int]) -> list[int]:
    got: list[int] = ctx.restored or []
    for number in range(len(got), upto):
        got = [*got, await ctx.step(work, number)]
        await ctx.checkpoint(got)
        if number in fails_at[ctx.attempt - 1 : ctx.attempt]:
            raise ConnectionError("lost")
    return got


@workflow
def stepped_and_saved(upto: int, fails_at: list[int]) -> list[int]:
    return steps_and_saves(upto, fails_at)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])  # one transition each, or some, or one for all
def test_a_step_after_a_checkpoint_is_none_of_those_before_it(store_url: str, durability: Any) -> None:
    async def main() -> None:
        worked.clear()
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(stepped_and_saved, upto=5, fails_at=[1, 2], durability=durability)

            assert await run.result() == [0, 1, 2, 3, 4]
            assert worked == [0, 1, 2, 3, 4]
            assert await rows_of(engine, run) == []
            assert await taken_in(run) == 5

    run_virtual(main())


@node(retries=1, backoff=0)
def saves_in_a_thread(ctx: SyncContext, upto: int) -> list[int]:
    got: list[int] = ctx.restored or []
    for number in range(len(got), upto):
        got = [*got, ctx.step(work, number)]
        if number % 2:
            ctx.checkpoint(got)
        if number == 2 and ctx.attempt == 1:
            raise ConnectionError("lost")
    return got


@node(retries=1, backoff=0, executor="process")
def saves_in_a_process(ctx: SyncContext, upto: int) -> list[int]:
    got: list[int] = ctx.restored or []
    for number in range(len(got), upto):
        got = [*got, ctx.step(work, number)]
        if number % 2:
            ctx.checkpoint(got)
        if number == 2 and ctx.attempt == 1:
            raise ConnectionError("lost")
    return got


@workflow
def saved_in_a_thread(upto: int) -> list[int]:
    return saves_in_a_thread(upto)


@workflow
def saved_in_a_process(upto: int) -> list[int]:
    return saves_in_a_process(upto)


@pytest.mark.parametrize("saved", [saved_in_a_thread, saved_in_a_process], ids=["thread", "process"])
async def test_steps_after_a_checkpoint_are_told_apart_wherever_the_body_runs(sqlite_url: str, saved: Any) -> None:
    async with Engine(sqlite_url, dispatch=LocalDispatch()) as engine:
        run = await engine.start(saved, upto=5)

        assert await run.result() == [0, 1, 2, 3, 4]
        assert await rows_of(engine, run) == [("work", 0)]
        assert await taken_in(run) == 5  # the step after the checkpoint was not taken again


@node
async def saves_and_stalls(ctx: Context) -> list[int]:
    got: list[int] = ctx.restored or []
    for number in range(len(got), 4):
        got = [*got, await ctx.step(work, number)]
        if number == 1:
            await ctx.checkpoint(got)
        if number == 2 and ctx.attempt == 1:
            stalled.set()
            await asyncio.Event().wait()
    return got


@workflow
def saved_and_stalled() -> list[int]:
    return saves_and_stalls()


def test_a_step_after_a_checkpoint_outlives_its_process(store_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        await engine.start(saved_and_stalled, run_id="one")
        await stalled.wait()

    async def end(engine: Engine) -> None:
        run = await engine.get("one")
        assert await run.result() == [0, 1, 2, 3]
        assert worked == [0, 1, 2, 3]
        assert await rows_of(engine, run) == [("work", 0), ("work", 1)]

    async def main() -> None:
        global stalled
        stalled = asyncio.Event()
        worked.clear()
        async with opened_world(store_url, tmp_path) as world:
            await killed_after(world, begin)
            await in_another_process(world, end)

    run_virtual(main())


@node(retries=1, backoff=0)
async def goes_on_otherwise(ctx: Context) -> AsyncIterator[int]:
    if ctx.restored is None:
        yield await ctx.step(work, 10)
        await ctx.checkpoint("half")
    yield await ctx.step(work, 20)
    yield ctx.attempt
    if ctx.attempt == 1:
        await asyncio.sleep(1)  # until it was read
        raise ConnectionError("lost")
    yield await ctx.step(work, 30)


@workflow
def gone_on_otherwise() -> list[int]:
    return collect(goes_on_otherwise())


def test_a_branch_keeps_the_steps_after_the_last_checkpoint(store_url: str) -> None:
    async def main() -> None:
        worked.clear()
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(gone_on_otherwise)

            assert await run.result() == [10, 20, 2, 30]
            assert worked == [10, 20, 30]
            assert await rows_of(engine, run) == [("work", 0), ("work", 1)]
            assert (await counted(run))[e.BranchCreated] == 1

    run_virtual(main())


@node
async def takes_a_step(ctx: Context, number: int) -> int:
    return await ctx.step(abs, -number)


@workflow
def read_otherwise() -> list[int]:
    return collect(takes_a_step.map(goes_on_otherwise()))


def test_a_node_that_begins_again_on_a_branch_has_taken_no_steps(store_url: str) -> None:
    async def main() -> None:
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(read_otherwise)

            assert await run.result() == [10, 20, 2, 30]
            assert (await counted(run))[e.BranchCreated] == 1
            assert len(await rows_of(engine, run)) == 2 + 4

    run_virtual(main())


# What a suspension saves is no checkpoint


@node
async def steps_and_suspends(ctx: Context) -> list[Any]:
    first = await ctx.step(work, 1)
    told = await ctx.suspend("look at it", {"first": first})
    return [first, told, await ctx.step(work, 2), ctx.restored]


@workflow
def stepped_and_suspended() -> list[Any]:
    return steps_and_suspends()


@pytest.mark.parametrize("hibernate_after", [0, 1_000], ids=["cold", "warm"])
def test_a_body_that_was_suspended_comes_back_to_its_steps(tmp_path: Path, hibernate_after: float) -> None:
    async def main() -> None:
        worked.clear()
        async with engine_on(f"sqlite:///{tmp_path}/p.db", hibernate_after=hibernate_after) as engine:
            run = await engine.start(stepped_and_suspended)
            await asyncio.sleep(5)
            await run.resume("steps_and_suspends", "go on")

            assert await run.result() == [1, "go on", 2, {"first": 1}]
            assert worked == [1, 2]
            assert await rows_of(engine, run) == [("work", 0), ("work", 1)]

    run_virtual(main())


# Steps and checkpoints at once


async def after(seconds: float, value: int) -> int:
    worked.append(value)
    await asyncio.sleep(seconds)
    return value


@node(retries=1, backoff=0)
async def steps_beside_a_checkpoint(ctx: Context) -> list[int]:
    if ctx.restored is not None:
        return [*ctx.restored, await ctx.step(after, 1, 30), await ctx.step(after, 1, 40)]
    early = asyncio.ensure_future(ctx.step(after, 5, 10))
    first = await ctx.step(after, 1, 20)
    await ctx.checkpoint([first])
    late = await ctx.step(
        after, 1, 30
    )  # counted from the checkpoint, as the one that is still being taken was from the start
    both = [await early, late]
    assert both == [10, 30]
    raise ConnectionError("lost")


@workflow
def stepped_beside_a_checkpoint() -> list[int]:
    return steps_beside_a_checkpoint()


def test_a_step_that_is_being_taken_at_a_checkpoint_is_none_of_those_after_it(store_url: str) -> None:
    async def main() -> None:
        worked.clear()
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(stepped_beside_a_checkpoint)

            assert await run.result() == [20, 30, 40]
            assert sorted(worked) == [10, 20, 30, 40]
            assert await rows_of(engine, run) == [("after", 0), ("after", 1)]

    run_virtual(main())


@node(retries=1, backoff=0)
async def calls_while_it_saves(ctx: Context) -> list[int]:
    if ctx.restored is not None:
        return [await ctx.step(work, 3), await ctx.step(work, 4)]
    await ctx.step(work, 1)
    saving = asyncio.ensure_future(ctx.checkpoint("saved"))
    await asyncio.sleep(0)
    meanwhile = ctx.step(work, 2)  # called for while the checkpoint is on its way, and taken when it is there
    await saving
    got = [await ctx.step(work, 3), await ctx.step(work, 4), await meanwhile]
    assert got == [3, 4, 2]
    raise ConnectionError("lost")


@workflow
def called_while_it_saves() -> list[int]:
    return calls_while_it_saves()


def test_a_step_called_for_while_a_checkpoint_is_stored_is_none_of_those_after_it(store_url: str) -> None:
    async def main() -> None:
        worked.clear()
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(called_while_it_saves)

            assert await run.result() == [3, 4]
            assert worked == [1, 3, 4, 2]
            assert await rows_of(engine, run) == [("work", 0), ("work", 1)]

    run_virtual(main())


# Mapped nodes


@node(retries=1, backoff=0)
async def yields_and_saves(ctx: Context, upto: int) -> AsyncIterator[int]:
    for number in range(ctx.restored or 0, upto):
        yield await ctx.step(work, number)
        await ctx.checkpoint(number + 1)
        if number == 1 and ctx.attempt == 1:
            raise ConnectionError("lost")


@node(retries=1, backoff=0)
async def steps_per_item(ctx: Context, number: int) -> list[int]:
    first = await ctx.step(work, 10 * number)
    if ctx.attempt == 1:
        raise ConnectionError("lost")
    return [first, await ctx.step(work, 10 * number + 1)]


@workflow
def stepped_per_item(upto: int) -> list[list[int]]:
    return collect(steps_per_item.map(yields_and_saves(upto)))


def test_a_checkpoint_of_one_node_leaves_the_steps_of_others(store_url: str) -> None:
    async def main() -> None:
        worked.clear()
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(stepped_per_item, upto=3)

            assert await run.result() == [[0, 1], [10, 11], [20, 21]]
            assert sorted(worked) == [0, 0, 1, 1, 2, 10, 11, 20, 21]  # each once, by the generator and for the items
            assert len(await rows_of(engine, run)) == 6

    run_virtual(main())


@node
class SavesBetweenItems:
    async def initialize(self, ctx: Context) -> None:
        await ctx.checkpoint("nothing")

    async def process(self, ctx: Context, number: int) -> int:
        return await ctx.step(work, number)


@workflow
def saved_between_items(upto: int) -> list[int]:
    return collect(SavesBetweenItems.map(yields_and_saves(upto)))


def test_a_mapped_node_has_no_state_to_save_between_its_items_either(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine_on(f"sqlite:///{tmp_path}/p.db") as engine:
            run = await engine.start(saved_between_items, upto=3)

            with pytest.raises(RunFailed, match="called once per item"):
                await run.result()

    run_virtual(main())


# How much is kept


@node
async def saves_a_thousand_times(ctx: Context) -> int:
    total: int = 0
    for number in range(1_000):
        total += await ctx.step(work, number)
        await ctx.checkpoint([number + 1, total])
    return total


@workflow
def saved_a_thousand_times() -> int:
    return saves_a_thousand_times()


@pytest.mark.slow
def test_a_body_that_takes_checkpoints_keeps_few_steps(store_url: str) -> None:
    async def main() -> None:
        async with opened_store(store_url) as store, engine_on(store) as engine:
            run = await engine.start(saved_a_thousand_times)
            most = 0
            while not (await run.load()).run.ended_at:
                most = max(most, len((await run.load()).steps))
                await asyncio.sleep(0)

            assert await run.result() == 499_500
            assert most <= 1
            assert await rows_of(engine, run) == []
            assert await taken_in(run) == 1_000

    run_virtual(main())
