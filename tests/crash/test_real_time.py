"""Crashes in real time: many runs that share their commits, bodies in threads, commits in a thread or on a server.

Here nothing is deterministic; what must hold is the same.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.dispatch.local import LocalDispatch
from perdure.engine.settings import EngineSettings
from perdure.store.opening import open_store
from perdure.testing.crashes import LETHAL, CrashKind, CrashPlan
from perdure.testing.graphs import reference_graphs
from perdure.testing.world import World
from tests.crash.backends import postgres_rolls_back

SETTINGS = EngineSettings(
    heartbeat_in_thread=False,
    inline_max_bytes=1_024,
    recovery_seconds=0.1,
    poll_seconds=0.1,
    lease_seconds=3.0,
    heartbeat_seconds=0.3,
)
REFERENCES = [reference for reference in reference_graphs() if reference.name != "retry"]  # it waits for seconds
DEADLY = tuple(sorted(LETHAL))
SIDE_BY_SIDE = 12


async def crash_at_random(url: str, folder: Path, *, stories: int, seed: int) -> int:
    """Return how many crashes there were."""
    draw = random.Random(seed)
    store = await open_store(url)
    fired = 0
    try:
        roll_back = None if url.startswith("sqlite:") else await postgres_rolls_back(store)
        async with World(
            store, folder, settings=SETTINGS, clock=SystemClock, dispatch=LocalDispatch, roll_back=roll_back
        ) as world:
            expected = {reference.name: await world.tell(reference) for reference in REFERENCES}
            for _ in range(stories):
                references = draw.choices(REFERENCES, k=SIDE_BY_SIDE)
                plans = (
                    CrashPlan(at=draw.randint(1, 12), kind=draw.choice(DEADLY)),
                    CrashPlan(at=draw.randint(1, 12), kind=draw.choice(tuple(CrashKind))),
                )
                told = await world.tell_all(references, *plans)
                for reference, story in zip(references, told, strict=True):
                    assert story.problems == [], f"{reference.name} with {plans} ({story.run_id})"
                    assert story.outcome == expected[reference.name].outcome, f"{reference.name} with {plans}"
                fired += told[0].fired
            return fired
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_runs_that_share_commits_survive_crashes(store_url: str, tmp_path: Path):
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")

    fired = await crash_at_random(store_url, tmp_path, stories=12, seed=seed)

    assert fired >= 12


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_runs_that_share_commits_survive_many_crashes(store_url: str, tmp_path: Path):
    fired = await crash_at_random(store_url, tmp_path, stories=500, seed=1)

    assert fired >= 500
