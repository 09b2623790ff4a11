"""The loop stays awake for a commit only if what follows is done on it, at once and by nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence

import pytest

from perdure import Engine, node, workflow
from perdure.engine.recording import vigil
from perdure.store.base import Store
from perdure.store.transitions import Committed
from perdure.testing.proxy import StoreProxy
from tests.engine.test_committer import Decided, committing, heard, postgres
from tests.store.builders import Draft, started

__all__ = ["postgres"]  # a fixture


class Beside(StoreProxy):
    """A store that works beside this process."""

    works_beside = True


class Rounds:
    """Counts how often the loop went round instead of sleeping."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> None:
        self.number += 1


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """The rounds of a loop that takes every commit for a quick one."""
    counted = Rounds()
    monkeypatch.setattr(os, "sched_yield", counted)
    monkeypatch.setattr(vigil, "LONGEST_SECONDS", 60.0)
    return counted


def poised(draft: Draft, step: int, *, is_poised: bool = True) -> Decided:
    source = Decided(draft.next_node(step).transition())
    source.is_poised = is_poised
    return source


async def rounds_of(store: Store, rounds: Rounds, sources: Callable[[list[Draft]], Sequence[Decided]]) -> int:
    """Return how often the loop goes round while the sources commit, after a first commit that was quick."""
    drafts = [started("one"), started("two")]
    async with committing(store) as committer:
        begun = [Decided(draft.transition()) for draft in drafts]
        for source in begun:
            committer.submit(source)
        assert await heard(*begun) == [Committed(), Committed()]
        assert not rounds.number
        going_on = sources(drafts)
        for source in going_on:
            committer.submit(source)
        assert await heard(*going_on) == [Committed()] * len(going_on)
        return rounds.number


async def test_it_does_for_a_lone_one(postgres: Store, rounds: Rounds) -> None:
    beside = Beside(postgres).as_store

    assert await rounds_of(beside, rounds, lambda drafts: [poised(drafts[0], 0)]) > 0
    number = rounds.number
    await asyncio.sleep(0.02)
    assert rounds.number == number


async def test_it_does_not_for_several(postgres: Store, rounds: Rounds) -> None:
    beside = Beside(postgres).as_store

    assert await rounds_of(beside, rounds, lambda drafts: [poised(draft, 0) for draft in drafts]) == 0


async def test_it_does_not_if_nothing_follows_at_once(postgres: Store, rounds: Rounds) -> None:
    beside = Beside(postgres).as_store

    assert await rounds_of(beside, rounds, lambda drafts: [poised(drafts[0], 0, is_poised=False)]) == 0


async def test_it_does_not_if_the_loop_itself_is_at_work(postgres: Store, rounds: Rounds) -> None:
    within = StoreProxy(postgres).as_store
    within.works_beside = False

    assert await rounds_of(within, rounds, lambda drafts: [poised(drafts[0], 0)]) == 0


MAY_END = threading.Event()


@node
async def on_the_loop(n: int) -> int:
    return n + 1


@node
async def last_on_the_loop(n: int) -> int:
    MAY_END.set()
    return n + 1


@node
def in_a_thread(n: int) -> int:
    return n + 1


@node
def long_in_a_thread(n: int) -> int:
    assert MAY_END.wait(timeout=30)
    return n


@workflow
def long_alone(n: int) -> int:
    return long_in_a_thread(n)


@workflow
def on_the_loop_again(n: int) -> int:
    return last_on_the_loop(on_the_loop(on_the_loop(n)))


@workflow
def in_threads_again(n: int) -> int:
    return in_a_thread(in_a_thread(in_a_thread(n)))


@workflow
def beside_another(n: int) -> list[int]:
    return [last_on_the_loop(on_the_loop(on_the_loop(n))), long_in_a_thread(n)]


async def test_a_body_that_is_at_work_meanwhile_has_the_processor_to_itself(postgres_url: str, rounds: Rounds) -> None:
    async with Engine(postgres_url) as engine:
        MAY_END.clear()
        same = await engine.start(beside_another, n=0)
        assert await same.result() == [3, 0]
        MAY_END.clear()
        long = await engine.start(long_alone, n=0)
        other = await engine.start(on_the_loop_again, n=0)
        assert await other.result() == 3
        assert await long.result() == 0
        assert rounds.number == 0


async def test_bodies_in_threads_keep_nobody_awake_and_those_on_the_loop_do(postgres_url: str, rounds: Rounds) -> None:
    async with Engine(postgres_url) as engine:
        threaded = await engine.start(in_threads_again, n=0)
        assert await threaded.result() == 3
        in_threads = rounds.number
        looped = await engine.start(on_the_loop_again, n=0)
        assert await looped.result() == 3

    assert in_threads == 0
    assert rounds.number > 0
