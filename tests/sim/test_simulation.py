"""Seeded histories of several engines on one file, with deaths, lost leases, slow and failing calls.

A failing seed is a complete report: `simulate(seed, folder)` plays it again.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from perdure.testing.simulation import Trace, simulate

COUNTED = ("runs", "events", "kills", "lost_leases", "faults", "stale_writes", "quarantined")


def play(seed: int) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        return simulate(seed, Path(folder))


def play_all(seeds: Iterable[int]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for seed in seeds:
        trace = play(seed)
        assert trace.problems == [], f"seed {seed}"
        counted.update({name: getattr(trace, name) for name in COUNTED})
    return counted


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(4))
def test_chaos_changes_no_result(block: int, capsys: pytest.CaptureFixture[str]):
    counted = play_all(range(block * 60, block * 60 + 60))

    with capsys.disabled():
        print(f"\n{dict(counted)}")
    assert counted["runs"] >= 60
    assert counted["kills"] >= 60
    assert counted["lost_leases"] >= 10
    assert counted["faults"] >= 10
    assert counted["stale_writes"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 240, 12))
def test_a_seed_is_one_history(seed: int):
    first, second = play(seed), play(seed)

    assert first == second


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_seeds_of_chaos_change_no_result(block: int):
    counted = play_all(range(block * 1_000, block * 1_000 + 1_000))

    print(dict(counted))
    assert counted["runs"] >= 1_000
    assert counted["kills"] >= 1_000
    assert counted["lost_leases"] >= 150
    assert counted["faults"] >= 150
    assert counted["stale_writes"] >= 15
