"""Runs that wait or are paused: a crash at every commit, in each of six ways, on both databases.

Somebody answers, signals, sends and resumes all the while, again and again under the same ids, whatever process lives. Bodies
that wait are kept in memory (warm) or ended at once (cold).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perdure.journal.events import Journal
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.loop import run_virtual
from perdure.testing.waits import wait_references
from perdure.testing.world import SETTINGS
from tests.crash.backends import opened_world

pytestmark = pytest.mark.slow

REFERENCES = {reference.name: reference for reference in wait_references()}
KINDS = tuple(CrashKind)


def crash_everywhere(
    url: str, folder: Path, name: str, hibernate_after: float, kinds: tuple[CrashKind, ...], journal: Journal = "log"
) -> str:
    reference = REFERENCES[name]
    settings = msgspec.structs.replace(SETTINGS, hibernate_after=hibernate_after)

    async def main() -> str:
        async with opened_world(url, folder, settings=settings, journal=journal) as world:
            expected = await world.tell(reference)
            assert expected.problems == [], expected.problems
            boundaries = expected.boundaries[0]
            assert boundaries >= 3, "the run has never waited"
            fired = 0
            for at in range(1, boundaries + 1):
                for kind in kinds[at % len(kinds) :: 2] if len(kinds) > 2 else kinds:
                    story = await world.tell(reference, CrashPlan(at=at, kind=kind))
                    assert story.problems == [], f"{name}, {kind} at {at} ({story.run_id}): {story.problems}"
                    assert story.outcome == expected.outcome, f"{name}, {kind} at {at} ({story.run_id})"
                    fired += story.fired
            assert fired >= boundaries
            return f"{name}: {boundaries} boundaries, {fired} crashes"

    return run_virtual(main())


@pytest.mark.parametrize("hibernate_after", [0.0, 5.0], ids=["cold", "warm"])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_crash_at_every_commit_changes_nothing(
    name: str, hibernate_after: float, store_url: str, tmp_path: Path
) -> None:
    print(crash_everywhere(store_url, tmp_path, name, hibernate_after, KINDS))
