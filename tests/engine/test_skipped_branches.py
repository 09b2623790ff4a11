"""Numbers of branches: each is given once, also where a branch was created on which the run never went on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.runs.run import Run
from perdure.errors import PlaceNotFound, RunFailed
from perdure.ids import BranchId, NodeId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from tests.engine.damage import Damage
from tests.engine.engines import assert_whole, log_of

broken: set[str] = set()
closed: set[str] = set()
begun: set[str] = set()
given: list[int] = []


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    for each in (broken, closed, begun):
        each.clear()
    given.clear()


@node
async def skip_step(ctx: Context, x: int) -> int:
    begun.add(ctx.node_id)
    if ctx.node_id in broken:
        raise ValueError(f"{ctx.node_id} is broken")
    while ctx.node_id in closed:
        await asyncio.sleep(0.005)
    return x + 1


@workflow
def skip_chain(x: int) -> int:
    return skip_step.named("last")(skip_step.named("first")(x))


async def with_unused_branch(url: str, run: Run[Any]) -> None:
    """Have a branch be created on which the run never goes on, as a log from elsewhere may tell of one."""
    state = await run.state()
    number = max(found.branch for found in await run.branches()) + 1
    created = e.BranchCreated(
        branch_id=BranchId(number), parent=state.branch_id, cut=state.last_seq, dropped=(NodeId("first"),)
    )
    await Damage(url).append(run.run_id, created, seq=state.last_seq + 1, at=state.created_at)


async def failed(engine: Engine) -> Run[int]:
    broken.add("last")
    run = await engine.start(skip_chain, x=0)
    with pytest.raises(RunFailed):
        await run.result()
    broken.clear()
    return run


Going = Callable[[Run[Any]], Coroutine[Any, Any, BranchId]]
WAYS: dict[str, Going] = {
    "retry": lambda run: run.retry(),
    "jump": lambda run: run.jump("first"),
    "restore": lambda run: run.restore(4),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_branch_gets_the_number_after_the_largest(store_url: str, way: str) -> None:
    async with Engine(store_url) as engine:
        run = await failed(engine)
        await with_unused_branch(store_url, run)
        before = (await run.state()).last_seq

        assert await WAYS[way](run) == 3

        assert await run.result() == 2
        assert [found.branch for found in await run.branches()] == [1, 2, 3]
        log = await log_of(run)
        activated = next(entry.seq for entry in log if entry.event == e.BranchActivated(branch_id=BranchId(3)))
        assert {entry.branch_id for entry in log if entry.seq < activated} == {1}
        assert {entry.branch_id for entry in log if entry.seq >= activated} == {3}
        await assert_whole(engine, run)

        left = (await run.at_end_of(1)).run
        assert (left.status, before <= left.last_seq < activated) == (RunStatus.FAILED, True)
        with pytest.raises(PlaceNotFound, match="never went on on it"):
            await run.promote(2)
        assert await run.promote(1) == 4
        assert await run.status() is RunStatus.FAILED
        await with_unused_branch(store_url, run)
        assert await run.jump("last") == 6
        assert await run.result() == 2
        await assert_whole(engine, run)


async def test_a_run_that_is_taken_up_again_goes_on_with_the_numbers(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await failed(engine)
        await with_unused_branch(store_url, run)
        await run.retry()
        assert await run.result() == 2
        closed.add("last")
        begun.clear()
        assert await run.jump("first") == 4
        while "last" not in begun:
            await asyncio.sleep(0.005)
        # It is driven here all the time.
        assert await run.jump("last", inputs={"x": 10}) == 5
        closed.clear()

        assert await run.result() == 11
        await assert_whole(engine, run)


async def test_a_branch_that_was_left_while_it_was_taken_over_can_be_gone_back_to(store_url: str) -> None:
    damage = Damage(store_url)
    closed.add("last")
    async with Engine(store_url, settings=EngineSettings(grace_seconds=0.05)) as engine:
        run = await engine.start(skip_chain, x=0)
        while "last" not in begun:
            await asyncio.sleep(0.005)
    closed.clear()
    await damage.set_run(run.run_id, owner="gone", status="running")
    async with Engine(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 2
        claimed = next(
            entry.seq for entry in await log_of(run) if isinstance(entry.event, e.RunClaimed) and entry.event.lost
        )
        assert (await run.at(claimed)).run.status is RunStatus.RECOVERING

        assert await run.restore(claimed) == 2

        assert await run.result() == 2
        await assert_whole(engine, run)
