"""The loop stays awake for quick answers, and for no others."""

from __future__ import annotations

import asyncio

import pytest

from perdure.engine.recording.vigil import LONGEST_SECONDS, Vigil


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
async def vigil(hands: Hands) -> Vigil:
    vigil = Vigil(hands)
    vigil.begin()
    vigil.keep()
    assert not vigil.is_kept  # nobody knows yet how long it takes
    vigil.end()
    return vigil


async def rounds(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_after_a_quick_commit_the_loop_stays_awake_until_the_next_one_has_ended(vigil: Vigil) -> None:
    vigil.begin()
    before = vigil.is_kept
    vigil.keep()
    await rounds(100)
    kept = vigil.is_kept
    vigil.end()
    await rounds(2)

    assert kept
    assert not before
    assert not vigil.is_kept


async def test_it_falls_asleep_when_a_commit_takes_too_long_and_sleeps_through_the_next(
    vigil: Vigil, hands: Hands
) -> None:
    kept: list[bool] = []

    vigil.begin()
    vigil.keep()
    await rounds(2)
    hands.seconds += 2 * LONGEST_SECONDS
    await rounds(2)
    kept.append(vigil.is_kept)
    vigil.end()
    for _ in range(2):
        vigil.begin()
        vigil.keep()
        kept.append(vigil.is_kept)
        vigil.end()

    assert kept == [False, False, True]  # the one before the last was quick


async def test_nobody_stays_awake_for_a_commit_that_has_ended(vigil: Vigil) -> None:
    vigil.begin()
    vigil.end()
    vigil.keep()

    assert not vigil.is_kept
