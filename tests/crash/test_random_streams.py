"""Random workflows with streams, crashed at random commits, with limits so small that everything is spilled, paged and held up.

Whatever happens, the result is what plain Python makes of the same graph.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.engine.driving import mapping
from perdure.engine.streams import entries, inbox, outbox, streams, whole
from perdure.store.codecs import blob_refs
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.loop import run_virtual
from perdure.testing.world import Story, World
from tests.crash.backends import opened_world
from tests.crash.random_streams import random_streams, untagged

LIMITS = (
    (inbox, "MAX_BUFFERED_ITEMS", (1, 2, 512)),
    (inbox, "MAX_BUFFERED_BYTES", (1, 4 << 20)),
    (streams, "PAGE_ROWS", (1, 2, 16)),
    (entries, "MAX_ROW_ENTRIES", (1, 2, 1_000)),
    (entries, "MAX_ROW_BYTES", (1, 1 << 20)),
    (outbox, "MAX_PENDING_ENTRIES", (1, 2, 1_024)),
    (outbox, "MAX_PENDING_BYTES", (1, 4 << 20)),
    (outbox, "MAX_KEPT_BYTES", (0, 256 << 10)),
    (whole, "MAX_GATHERED_BYTES", (0, 4 << 20)),
    (mapping, "MAX_AHEAD", (2, 4, 1_024)),
    (mapping, "CALLS_PER_TURN", (1, 64)),
)
KINDS = tuple(CrashKind)
INVARIANT = re.compile(r"I\d+: |the run is ")


@contextmanager
def limits(draw: random.Random) -> Generator[None]:
    """Draw each limit anew, most of them tiny."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, choices in LIMITS:
            patch.setattr(module, name, draw.choice(choices))
        yield


def test_random_streams_come_to_what_plain_python_makes_of_them(tmp_path: Path) -> None:
    crash_at_random(f"sqlite:///{tmp_path / 'perdure.db'}", tmp_path, seeds=range(20), crashes=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_streams_survive_crashes(store_url: str, tmp_path: Path) -> None:
    first = random.randrange(1_000_000)
    print(f"seeds from {first}")
    crash_at_random(store_url, tmp_path, seeds=range(first, first + 60), crashes=3)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("_block", range(6))
def test_thousands_of_random_streams_survive_crashes(store_url: str, tmp_path: Path, _block: int) -> None:
    first = random.randrange(1_000_000)
    print(f"seeds from {first}")
    crash_at_random(store_url, tmp_path, seeds=range(first, first + 500), crashes=5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_result_is_ever_made_of_two_attempts_of_a_fickle_source(store_url: str, tmp_path: Path) -> None:
    first = random.randrange(1_000_000)
    print(f"seeds from {first}")
    crash_at_random(store_url, tmp_path, seeds=range(first, first + 40), crashes=3, is_fickle=True)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("_block", range(4))
def test_thousands_of_results_are_made_of_one_attempt_of_a_fickle_source(
    store_url: str, tmp_path: Path, _block: int
) -> None:
    first = random.randrange(1_000_000)
    print(f"seeds from {first}")
    crash_at_random(store_url, tmp_path, seeds=range(first, first + 500), crashes=5, is_fickle=True)


def crash_at_random(url: str, folder: Path, *, seeds: range, crashes: int, is_fickle: bool = False) -> None:
    async def main() -> int:
        fired = 0
        async with opened_world(url, folder) as world:
            for seed in seeds:
                fired += await told(world, seed, crashes=crashes, is_fickle=is_fickle)
        return fired

    fired = run_virtual(main())
    assert fired >= crashes * len(seeds) // 4


async def told(world: World, seed: int, *, crashes: int, is_fickle: bool = False) -> int:
    """Tell one workflow undisturbed, and with crashes. Return how many of them came to pass."""
    draw = random.Random(seed)
    reference, expected = random_streams(seed, is_fickle=is_fickle)
    with limits(draw):
        undisturbed = await world.tell(reference)
        check(seed, undisturbed, expected)
        fired = 0
        for _ in range(crashes):
            plans = [
                CrashPlan(at=draw.randint(1, max(undisturbed.boundaries)), kind=draw.choice(KINDS))
                for _ in range(draw.randint(1, 3))
            ]
            story = await world.tell(reference, *plans)
            check(seed, story, expected, plans, is_fickle=is_fickle)
            fired += story.fired
    return fired


def check(seed: int, story: Story, expected: dict[str, Any], plans: object = (), *, is_fickle: bool = False) -> None:
    where = f"seed {seed}, {plans} ({story.run_id})"
    # Where a source does not repeat itself, what was made of its items is made again.
    problems = [found for found in story.problems if not is_fickle or INVARIANT.match(found)]
    assert problems == [], where
    found = story.outcome.outputs
    assert found is not None, f"{story.outcome}; {where}"
    tags: set[int] = set()
    for name, value in expected.items():
        if not blob_refs(found[name]):
            assert untagged(msgspec.json.decode(found[name]), tags) == value, f"{name}; {where}"
    assert len(tags - {0}) <= 1, f"made of the attempts {tags}; {where}"
