"""What is durable when: `sync`, `async` and `exit`, and bodies that may start early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, node, workflow
from perdure.engine.engine import Engine
from perdure.ids import RunId
from perdure.journal.states import RunStatus
from perdure.testing.crashes import LETHAL, CrashKind, CrashPlan
from perdure.testing.ledger import effect
from perdure.testing.loop import run_virtual
from perdure.testing.process import Dead, Process
from perdure.testing.proxy import StoreProxy
from perdure.testing.world import World
from tests.crash.backends import opened_store, opened_world
from tests.engine.engines import engine_on

COMMIT_SECONDS = 1.0
_begun: dict[str, float] = {}


@node
async def worker(ctx: Context, x: int) -> int:
    effect(ctx)
    _begun[ctx.node_id] = asyncio.get_running_loop().time()
    await asyncio.sleep(0.5)
    return x + 1


@node(pure=True)
async def thinker(ctx: Context, x: int) -> int:
    _begun[ctx.node_id] = asyncio.get_running_loop().time()
    await asyncio.sleep(0.5)
    return x + 1


@node
async def saver(ctx: Context, x: int) -> float:
    begun = asyncio.get_running_loop().time()
    await ctx.checkpoint(x)
    return asyncio.get_running_loop().time() - begun


@workflow
def four(x: int) -> int:
    return worker.named("d")(worker.named("c")(worker.named("b")(worker.named("a")(x))))


@workflow
def pure_four(x: int) -> int:
    return thinker.named("d")(thinker.named("c")(thinker.named("b")(thinker.named("a")(x))))


@workflow
def saving(x: int) -> float:
    return saver(x)


class SlowCommits(StoreProxy):
    """A commit takes a second to become durable."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            await asyncio.sleep(COMMIT_SECONDS)
        return await call()


async def seconds_taken(url: str, workflow: Any, **options: Any) -> float:
    async with (
        opened_store(url) as store,
        engine_on(SlowCommits(store).as_store, **options.pop("engine", {})) as engine,
    ):
        begun = asyncio.get_running_loop().time()
        run = await engine.start(workflow, x=1, **options)
        assert await run.result() == 5
        return asyncio.get_running_loop().time() - begun


def test_no_body_starts_before_what_it_depends_on_is_durable(sqlite_url: str):
    taken = run_virtual(seconds_taken(sqlite_url, four))

    # Each of the four starts is durable first, and so is the end.
    assert taken == pytest.approx(5 * COMMIT_SECONDS + 4 * 0.5, abs=0.1)


@pytest.mark.parametrize(("workflow", "durability"), [(four, "async"), (pure_four, "sync"), (four, "exit")])
def test_bodies_that_may_start_early_do_not_wait(sqlite_url: str, workflow: Any, durability: Any):
    taken = run_virtual(seconds_taken(sqlite_url, workflow, durability=durability))

    # Only the beginning and the end are waited for, and a commit that is on its way when the end comes.
    assert 2 * COMMIT_SECONDS + 4 * 0.5 <= taken + 0.01 <= 3 * COMMIT_SECONDS + 4 * 0.5 + 0.1


@pytest.mark.parametrize(("durability", "is_awaited"), [("sync", True), ("async", False), ("exit", False)])
def test_a_checkpoint_is_durable_when_it_returns_only_in_sync(sqlite_url: str, durability: Any, is_awaited: bool):
    async def main() -> float:
        async with opened_store(sqlite_url) as store, engine_on(SlowCommits(store).as_store) as engine:
            return await (await engine.start(saving, x=1, durability=durability)).result()

    assert (run_virtual(main()) >= COMMIT_SECONDS) is is_awaited


async def tell(world: World, durability: Any, plan: CrashPlan | None) -> tuple[RunStatus, int, int]:
    """Return how the run ended, how many commits its first engine began, and how many effects it had."""
    run_id = RunId(f"{durability}-{plan.at if plan else 0}-{plan.kind if plan else ''}")
    commits = 0

    async def drive(engine: Engine) -> RunStatus:
        run = await engine.start(four, run_id=run_id, x=1, durability=durability)
        return (await run.wait()).status

    for turn in (plan, None):
        process = Process("engine")
        door = world.door(process, turn)
        try:
            status = await process.run(world.engine(door), drive)
        except Dead:
            commits = door.boundaries
            continue
        commits = commits or door.boundaries
        break
    assert await world.violations(run_id) == []
    return status, commits, len(world.ledger.effects(run_id))


def test_exit_writes_only_at_the_beginning_and_at_the_end(sqlite_url: str, tmp_path: Path):
    async def main() -> tuple[RunStatus, int, int]:
        async with opened_world(sqlite_url, tmp_path) as world:
            return await tell(world, "exit", None)

    assert run_virtual(main()) == (RunStatus.COMPLETED, 2, 4)


@pytest.mark.parametrize("kind", sorted(LETHAL))
@pytest.mark.parametrize(("durability", "most_commits"), [("async", 9), ("exit", 2)])
def test_a_crash_loses_only_what_was_not_written(
    sqlite_url: str, tmp_path: Path, durability: str, most_commits: int, kind: CrashKind
):
    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            _, commits, _ = await tell(world, durability, None)
            assert commits <= most_commits
            for at in range(1, commits + 1):
                status, _, effects = await tell(world, durability, CrashPlan(at=at, kind=kind))
                assert status is RunStatus.COMPLETED
                assert 4 <= effects <= 8

    run_virtual(main())
