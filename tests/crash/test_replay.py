"""A producer that does not repeat itself, as a language model does not: nobody ever sees two of its streams mixed.

At every commit the engine is lost, and the producer's next attempt yields other values. What was made of the earlier ones must
be gone from the run, on a branch of which every value comes from one attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.dispatch.context import Context
from perdure.engine.runs.run import Run
from perdure.graph.declare import node, workflow
from perdure.graph.trace import collect
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.crashes import LETHAL, CrashKind, CrashPlan
from perdure.testing.graphs import TICK_SECONDS
from perdure.testing.loop import run_virtual
from perdure.testing.process import Dead, Process
from perdure.testing.world import World
from tests.crash.backends import opened_world

ITEMS = 5


@node
async def fickle(ctx: Context, upto: int, same: int) -> AsyncIterator[str]:
    """Yield some items that are always the same, and then others at every attempt."""
    for number in range(upto):
        await asyncio.sleep(TICK_SECONDS)
        yield f"{number} of {0 if number < same else ctx.attempt}"


@node
async def shorter(ctx: Context, upto: int, same: int) -> AsyncIterator[str]:
    """Yield fewer items at every further attempt."""
    for number in range(max(same, upto - ctx.attempt)):
        await asyncio.sleep(TICK_SECONDS)
        yield f"{number} of 0"
    await asyncio.sleep(TICK_SECONDS)


@node(concurrency=2)
async def marked(ctx: Context, text: str) -> str:
    await asyncio.sleep(TICK_SECONDS)
    return f"<{text}>"


@node
async def aside(ctx: Context, upto: int) -> int:
    await asyncio.sleep(upto * TICK_SECONDS)
    return upto


@node
async def both(ctx: Context, texts: list[str], number: int) -> list[str]:
    return [f"{text}{number}" for text in texts]


@workflow
def replayed(n: int, same: int) -> list[str]:
    return both(collect(marked.map(fickle(n, same))), aside(n))


@workflow
def cut_short(n: int, same: int) -> list[str]:
    return both(collect(marked.map(shorter(n, same))), aside(n))


async def started(engine: Any, flow: Any, run_id: RunId, same: int) -> Run[Any]:
    try:
        return await engine.get(run_id)
    except Exception:  # it is not there yet
        return await engine.start(flow, run_id=run_id, n=ITEMS, same=same)


async def told(world: World, flow: Any, run_id: RunId, plan: CrashPlan | None, same: int) -> tuple[list[str], int]:
    """Run to the end, with one engine that dies as planned, and return the result and how many commits there were."""

    async def drive(engine: Any) -> Any:
        return await (await started(engine, flow, run_id, same)).result()

    process = Process("first")
    door = world.door(process, plan)
    try:
        result = await process.run(world.engine(door), drive)
    except Dead:
        second = Process("second")
        result = await second.run(world.engine(world.door(second)), drive)
    return result, door.boundaries


def seeds_of(result: list[str]) -> set[str]:
    """Return from which attempts the items of a result are."""
    return {text.partition(" of ")[2].partition(">")[0] for text in result}


@pytest.mark.slow
@pytest.mark.parametrize("same", [0, 2])
def test_no_reader_ever_sees_two_streams_of_a_producer_mixed(same: int, store_url: str, tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        branched = 0
        async with opened_world(store_url, tmp_path) as world:
            result, boundaries = await told(world, replayed, RunId("undisturbed"), None, same)
            assert seeds_of(result[same:]) == {"1"}
            for at in range(1, boundaries + 1):
                for kind in sorted(LETHAL):
                    run_id = RunId(f"{kind}-{at}")
                    result, _ = await told(world, replayed, run_id, CrashPlan(at=at, kind=kind), same)
                    assert [text.partition(" ")[0] for text in result] == [f"<{number}" for number in range(ITEMS)]
                    assert len(seeds_of(result[same:])) == 1, result
                    assert await world.violations(run_id) == []
                    branched += await branches_of(world, run_id)
        return boundaries, branched

    boundaries, branched = run_virtual(main())

    assert boundaries > ITEMS
    assert branched > 0


@pytest.mark.slow
def test_a_producer_that_ends_earlier_than_before_is_not_mixed_either(store_url: str, tmp_path: Path) -> None:
    async def main() -> int:
        branched = 0
        async with opened_world(store_url, tmp_path) as world:
            _, boundaries = await told(world, cut_short, RunId("undisturbed"), None, 2)
            for at in range(1, boundaries + 1):
                for kind in sorted(LETHAL):
                    run_id = RunId(f"{kind}-{at}")
                    result, _ = await told(world, cut_short, run_id, CrashPlan(at=at, kind=kind), 2)
                    attempts = await attempts_at(world, run_id, "shorter")
                    assert len(result) == ITEMS - attempts
                    assert await world.violations(run_id) == []
                    branched += await branches_of(world, run_id)
        return branched

    assert run_virtual(main()) > 0


@pytest.mark.slow
def test_what_does_not_depend_on_the_producer_is_kept_on_the_branch(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        kept = 0
        async with opened_world(store_url, tmp_path) as world:
            _, boundaries = await told(world, replayed, RunId("undisturbed"), None, 2)
            for at in range(1, boundaries + 1):
                run_id = RunId(f"at-{at}")
                await told(world, replayed, run_id, CrashPlan(at=at, kind=CrashKind.AFTER), 2)
                dump = await world.store.dump_run(run_id)
                assert dump is not None
                completions = [entry.event.node_id for entry in dump.events if isinstance(entry.event, e.NodeCompleted)]
                assert completions.count("aside") == 1
                assert dump.stored.run.status is RunStatus.COMPLETED
                generations = {node.node_id: node.generation for node in dump.stored.nodes}
                if dump.stored.run.branch_id > 1:
                    kept += 1
                    assert generations["aside"] == generations["fickle"] == 1
                    assert generations["marked"] == 2
        assert kept > 0

    run_virtual(main())


@node
async def shaky(ctx: Context, upto: int) -> AsyncIterator[str]:
    """Give something else at every attempt from the third item on, and break once in the middle."""
    for number in range(upto):
        await asyncio.sleep(TICK_SECONDS)
        if number == 4 and ctx.attempt == 1:
            raise ConnectionError("lost")
        yield f"{number} of {0 if number < 2 else ctx.attempt}"


retried = node(retries=5, backoff=0, name="tests.crash.test_replay.retried")(shaky.fn)


@workflow
def branched(n: int, same: int) -> list[str]:
    return both(collect(marked.map(retried(n))), aside(same))


@pytest.mark.slow
def test_a_run_that_has_branched_is_taken_over_at_any_commit(store_url: str, tmp_path: Path) -> None:
    async def main() -> int:
        found = 0
        async with opened_world(store_url, tmp_path) as world:
            result, boundaries = await told(world, branched, RunId("undisturbed"), None, 2)
            assert len(seeds_of(result[2:])) == 1
            for at in range(1, boundaries + 1):
                run_id = RunId(f"at-{at}")
                result, _ = await told(world, branched, run_id, CrashPlan(at=at, kind=CrashKind.AFTER), 2)
                assert [text.partition(" ")[0] for text in result] == [f"<{number}" for number in range(ITEMS)]
                assert len(seeds_of(result[2:])) == 1, result
                assert await world.violations(run_id) == []
                found += await branches_of(world, run_id) > 1
        return found

    assert run_virtual(main()) > 0


async def branches_of(world: World, run_id: RunId) -> int:
    """Return how often the run has branched, and check that its rows say so, too."""
    dump = await world.store.dump_run(run_id)
    assert dump is not None
    created = [entry for entry in dump.events if isinstance(entry.event, e.BranchCreated)]
    assert dump.stored.run.branch_id == 1 + len(created)
    after = [entry.branch_id for entry in dump.events]
    assert after == sorted(after)
    return len(created)


async def attempts_at(world: World, run_id: RunId, node_id: str) -> int:
    dump = await world.store.dump_run(run_id)
    assert dump is not None
    return msgspec.convert(next(node.attempt for node in dump.stored.nodes if node.node_id == node_id), int)
