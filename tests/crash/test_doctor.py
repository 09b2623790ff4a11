"""The doctor: a crash at every commit of runs that are damaged and repaired, in each of six ways, on both databases.

However often it is interrupted, there is one repair and one branch, and what was done is not done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, ask, node, when, workflow
from perdure.engine.runs.run import Run
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.graphs import TICK_SECONDS, Reference, add
from perdure.testing.ledger import effect
from perdure.testing.loop import run_virtual
from perdure.testing.waits import answering
from tests.crash.backends import opened_world
from tests.crash.test_every_commit import every_crash, told
from tests.engine.damage import Damage

mended: set[str] = set()


@node
async def doctored_flaky(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    if ctx.run_id not in mended:
        raise ConnectionError("reset")
    return x + 100


@workflow
def doctored_end(x: int) -> int:
    return add.named("after")(add.named("before")(x), add.named("beside")(x, ticks=4))


@workflow
def doctored_failure(x: int) -> int:
    return add.named("after")(doctored_flaky(add.named("before")(x)))


@workflow
def doctored_question(x: int) -> int:
    one = add.named("one")(x)
    with when(ask.named("may")("go on?", schema=bool, show=one)):
        two = add.named("two")(one)
    return two


async def is_repaired(run: Run[Any]) -> bool:
    found = [entry.event async for entry in run.events(follow=False)]
    return any(isinstance(event, e.RunRecovered) and event.branch is not None for event in found)


def repairing(damage: Damage, status: RunStatus) -> Callable[[Run[Any]], Awaitable[bool]]:
    """Damage a run once when it is in a status, and have the doctor look after it."""

    async def repair(run: Run[Any]) -> bool:
        state = await run.load()
        if state.run.status is not status or state.owner is not None or await is_repaired(run):
            return False
        mended.add(run.run_id)
        await damage.say_it_runs(run.run_id)
        await run.doctor(fix=True)
        return True

    return repair


def answering_after(repair: Callable[[Run[Any]], Awaitable[bool]]) -> Callable[[Run[Any]], Awaitable[bool]]:
    async def person(run: Run[Any]) -> bool:
        return await repair(run) or (await is_repaired(run) and bool(await answering(run)))

    return person


def references(url: str) -> list[Reference]:
    damage = Damage(url)
    waiting = answering_after(repairing(damage, RunStatus.AWAITING_INPUT))
    return [
        Reference(workflow=doctored_end, inputs={"x": 1}, repairs=repairing(damage, RunStatus.COMPLETED)),
        Reference(workflow=doctored_failure, inputs={"x": 1}, repairs=repairing(damage, RunStatus.FAILED)),
        Reference(workflow=doctored_question, inputs={"x": 1}, certain=frozenset(("one", "two")), person=waiting),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [found.name for found in references("")])
def test_a_crash_at_every_commit_leaves_one_repair(name: str, store_url: str, tmp_path: Path) -> None:
    reference = next(found for found in references(store_url) if found.name == name)

    async def main() -> None:
        async with opened_world(store_url, tmp_path) as world:
            expected = await world.tell(reference)
            assert expected.problems == []
            assert len(await world.store.list_branches(expected.run_id)) == 2
            boundaries = expected.boundaries[0]
            plans = every_crash(boundaries)
            stories = await told(world, reference, plans, expected)
            for plan, story in zip(plans, stories, strict=True):
                assert len(await world.store.list_branches(story.run_id)) == 2, (plan, story.run_id)
            fired = sum(story.fired for story in stories)
            assert fired >= boundaries
            print(f"{name}: {boundaries} boundaries, {fired} crashes")

    run_virtual(main())
