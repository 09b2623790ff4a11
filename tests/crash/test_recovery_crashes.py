"""Crashes during recovery, and during the recovery from that."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.testing.crashes import LETHAL, CrashKind, CrashPlan
from perdure.testing.graphs import Reference, reference_graphs
from perdure.testing.loop import run_virtual
from perdure.testing.world import Story, World
from tests.crash.backends import opened_world

REFERENCES = reference_graphs()
SMALLEST = ("blocking", "lifecycle", "conditions", "failure")
DEADLY = tuple(sorted(LETHAL))
KINDS = tuple(CrashKind)


def assert_survived(story: Story, expected: Story, plans: tuple[CrashPlan, ...], reference: Reference) -> None:
    where = f"{reference.name}, {', '.join(f'{plan.kind} at {plan.at}' for plan in plans)} ({story.run_id})"
    assert story.problems == [], where
    assert story.outcome == expected.outcome, where


async def every_pair(world: World, reference: Reference) -> AsyncIterator[tuple[CrashPlan, CrashPlan]]:
    """Yield each deadly crash of the first engine with each crash of the one that recovers from it."""
    undisturbed = await world.tell(reference)
    for at in range(1, undisturbed.boundaries[0] + 1):
        for kind in DEADLY:
            first = CrashPlan(at=at, kind=kind)
            recovered = await world.tell(reference, first)
            for second_at in range(1, recovered.boundaries[1] + 1):
                for second_kind in KINDS:
                    yield first, CrashPlan(at=second_at, kind=second_kind)


def survive_pairs(url: str, folder: Path, reference: Reference, *, share: float, seed: int) -> int:
    async def main() -> int:
        async with opened_world(url, folder) as world:
            expected = await world.tell(reference)
            pairs = [plans async for plans in every_pair(world, reference)]
            chosen = random.Random(seed).sample(pairs, round(share * len(pairs)))
            for plans in chosen:
                story = await world.tell(reference, *plans)
                assert_survived(story, expected, plans, reference)
                assert story.fired == 2
        return len(chosen)

    return run_virtual(main())


def survive_at_random(url: str, folder: Path, *, stories: int, seed: int) -> tuple[int, int]:
    """Tell stories with two or three crashes of reference workflows at random; return how many crashes there were."""

    async def main() -> tuple[int, int]:
        draw = random.Random(seed)
        fired = deaths = 0
        async with opened_world(url, folder) as world:
            undisturbed = {reference.name: await world.tell(reference) for reference in REFERENCES}
            for _ in range(stories):
                reference = draw.choice(REFERENCES)
                expected = undisturbed[reference.name]
                most = expected.boundaries[0]
                first = [
                    CrashPlan(at=draw.randint(1, most), kind=draw.choice(DEADLY)) for _ in range(draw.randint(1, 2))
                ]
                plans = (*first, CrashPlan(at=draw.randint(1, most), kind=draw.choice(KINDS)))
                story = await world.tell(reference, *plans)
                assert_survived(story, expected, plans, reference)
                fired += story.fired
                deaths += len(story.boundaries) - 1
        return fired, deaths

    return run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_crash_during_recovery_changes_nothing(name: str, store_url: str, tmp_path: Path):
    reference = next(reference for reference in REFERENCES if reference.name == name)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")

    count = survive_pairs(store_url, tmp_path, reference, share=0.15, seed=seed)

    assert count >= 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SMALLEST)
def test_every_pair_of_crashes_changes_nothing(name: str, store_url: str, tmp_path: Path):
    reference = next(reference for reference in REFERENCES if reference.name == name)

    count = survive_pairs(store_url, tmp_path, reference, share=1.0, seed=0)

    print(f"{name}: {count} pairs")


@pytest.mark.slow
def test_two_or_three_crashes_at_random_change_nothing(store_url: str, tmp_path: Path):
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")

    fired, deaths = survive_at_random(store_url, tmp_path, stories=100, seed=seed)

    assert fired >= 150
    assert deaths >= 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(6))
def test_thousands_of_crashes_at_random_change_nothing(seed: int, store_url: str, tmp_path: Path):
    fired, deaths = survive_at_random(store_url, tmp_path, stories=1_000, seed=seed)

    assert fired >= 1_500
    assert deaths >= 1_000
