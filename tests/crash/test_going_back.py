"""Runs that go back: a crash at every commit, in each of six ways, on both databases.

What was asked for happens once, and whoever asked again after a crash gets the same branch. What is kept does not run again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.loop import run_virtual
from perdure.testing.repairs import repair_references
from tests.crash.backends import opened_world
from tests.crash.test_every_commit import every_crash, told

REFERENCES = {reference.name: reference for reference in repair_references()}
BRANCHES = {"promoted": 3, "promoted_in_motion": 3, "items_begun_again": 3}
"""How many lines of history there are, where it is not two."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_a_crash_at_every_commit_changes_nothing(name: str, store_url: str, tmp_path: Path) -> None:
    reference = REFERENCES[name]

    async def main() -> None:
        async with opened_world(store_url, tmp_path) as world:
            expected = await world.tell(reference)
            assert expected.problems == []
            branches = len(await world.store.list_branches(expected.run_id))
            assert branches == BRANCHES.get(name, 2)
            boundaries = expected.boundaries[0]
            plans = every_crash(boundaries)
            stories = await told(world, reference, plans, expected)
            for plan, story in zip(plans, stories, strict=True):
                assert len(await world.store.list_branches(story.run_id)) == branches, (plan, story.run_id)
            fired = sum(story.fired for story in stories)
            assert fired >= boundaries
            print(f"{name}: {boundaries} boundaries, {fired} crashes")

    run_virtual(main())
