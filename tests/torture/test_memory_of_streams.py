"""A fast producer and a slow consumer: however many items pass, no more memory is taken than for the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.processes import Children
from tests.torture.programs.long_stream import POINTS, WORKFLOWS

GROWTH_MEBIBYTES = 24
"""How much more may be resident at any later point than after a tenth of the items. What a stream may hold is bounded: 4 MiB and
1,024 entries on their way to the store, 4 MiB and 512 items for each reader, and 4 MiB while one value is made of it in the end;
the rest is what the allocator and the database keep for themselves."""
PEAK_MEBIBYTES = 128


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORKFLOWS))
async def test_memory_is_flat_over_100_000_items(name: str, sqlite_url: str, tmp_path: Path):
    await flow(name, sqlite_url, tmp_path, items=100_000)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", sorted(WORKFLOWS))
async def test_memory_is_flat_over_1_000_000_items(name: str, store_url: str, tmp_path: Path):
    await flow(name, store_url, tmp_path, items=1_000_000)


async def flow(name: str, url: str, folder: Path, *, items: int) -> None:
    async with Children(folder, {}) as children:
        child = await children.start("long_stream", url, name, str(items))
        said = [await child.heard("memory", seconds=items / 500) for _ in range(POINTS + 1)]
        await child.heard("done", seconds=60)
        assert await child.ended() == 0

    resident = [point["resident"] for point in said]
    print(f"{name}: {resident} MiB resident, {said[-1]['peak']} MiB at most")
    assert max(resident[2:]) - resident[1] < GROWTH_MEBIBYTES, resident
    assert said[-1]["peak"] < PEAK_MEBIBYTES, said
