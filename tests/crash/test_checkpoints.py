"""Runs whose places in the log are given names: a crash at every commit, in each of six ways, on both databases.

Whatever a person was told about a checkpoint stays true, and what is saved by itself is numbered without gaps and only saved if
something has happened: the checks of `verify` see to that after each story.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perdure.ids import RunId, Seq
from perdure.testing.checkpoints import acknowledged, checkpoint_references
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.loop import run_virtual
from perdure.testing.world import SETTINGS, World
from tests.crash.backends import opened_world

REFERENCES = {reference.name: reference for reference in checkpoint_references()}
KINDS = tuple(CrashKind)


async def names_of(world: World, run_id: RunId) -> list[str]:
    return [saved.name for saved in await world.store.list_checkpoints(run_id, after=Seq(0), limit=1_000)]


async def broken_promises(world: World, run_id: RunId) -> list[str]:
    """Return what people were told of checkpoints and is not so."""
    stored = {saved.name: saved for saved in await world.store.list_checkpoints(run_id, after=Seq(0), limit=1_000)}
    return [
        told.name
        for told in acknowledged.pop(run_id, [])
        if told.name not in stored or (stored[told.name].seq, stored[told.name].branch_id) != (told.seq, told.branch)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("hibernate_after", [0.0, 5.0], ids=["cold", "warm"])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_crash_at_every_commit_changes_nothing(
    name: str, hibernate_after: float, store_url: str, tmp_path: Path
) -> None:
    reference = REFERENCES[name]
    settings = msgspec.structs.replace(SETTINGS, hibernate_after=hibernate_after)

    async def main() -> None:
        async with opened_world(store_url, tmp_path, settings=settings) as world:
            expected = await world.tell(reference)
            assert expected.problems == []
            assert len(await names_of(world, expected.run_id)) >= 2
            fired = told = 0
            boundaries = expected.boundaries[0]
            for at in range(1, boundaries + 1):
                for kind in KINDS[at % 2 :: 2]:
                    story = await world.tell(reference, CrashPlan(at=at, kind=kind))
                    where = f"{name}, {kind} at {at} ({story.run_id})"
                    assert story.problems == [], where
                    assert story.outcome == expected.outcome, where
                    assert await names_of(world, story.run_id) != [], where
                    fired += story.fired
                    told += len(acknowledged.get(story.run_id, ()))
                    assert await broken_promises(world, story.run_id) == [], where
            assert fired >= boundaries
            assert told or reference.workflow.name != "named_by_people"

    run_virtual(main())
