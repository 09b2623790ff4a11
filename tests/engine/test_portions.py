"""Decisions about many nodes at once: committed in portions, and nothing is lost between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Engine, EngineSettings, first, node, when, workflow
from perdure.engine.inspect import verify_run
from perdure.ids import RunId
from perdure.journal.events import NodeCompleted
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy

PORTION = 3
WIDTH = 40

ran: Counter[int] = Counter()


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.driving.driver.PORTION_NODES", PORTION)
    ran.clear()


@node
async def one() -> int:
    return 1


@node
async def no() -> bool:
    await asyncio.sleep(0.05)
    return False


@node
async def leaf(x: int, number: int = 0) -> int:
    return x


@node
async def counted(x: int, number: int) -> int:
    ran[number] += 1
    await asyncio.sleep(0.003)
    return x


@workflow
def fan() -> None:
    start = one()
    for number in range(WIDTH):
        counted(start, number)


@workflow
def skipped() -> None:
    with when(no()):
        for number in range(WIDTH):
            leaf(number)


@workflow
def undecided() -> None:
    start = one()
    preferred = leaf(leaf(start))
    for number in range(WIDTH):
        leaf(first(preferred, start), number)


@node
async def total(xs: list[int]) -> int:
    return sum(xs)


@workflow
def gathering() -> int:
    start = one()
    return total([leaf(start, number) for number in range(WIDTH)])


async def begun() -> None:
    while not ran:
        await asyncio.sleep(0.001)


async def events_of(engine: Engine, run_id: str) -> Counter[str]:
    run = await engine.get(RunId(run_id))
    return Counter([type(entry.event).__name__ async for entry in run.events(follow=False)])


async def test_a_run_ends_with_the_last_portion_and_not_before(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(skipped, run_id="r")
        driver = engine.driver_of(RunId("r"))
        assert driver is not None

        rested = await asyncio.shield(driver.rested)

        assert rested.status is RunStatus.COMPLETED
        assert (await run.state()).status is RunStatus.COMPLETED
        recorded = await events_of(engine, "r")
        assert recorded["NodeSkipped"] == WIDTH
        assert recorded["RunClaimed"] == 1


async def test_what_was_done_while_portions_were_committed_is_not_done_again(store_url: str):
    async with Engine(store_url, settings=EngineSettings(loop_bodies=1)) as engine:
        await engine.start(fan, run_id="r")
        await begun()

    async with Engine(store_url) as engine:
        run = await engine.get(RunId("r"))
        assert (await run.wait()).status is RunStatus.COMPLETED
        recorded = await events_of(engine, "r")

    assert ran == dict.fromkeys(range(WIDTH), 1)
    assert recorded["AttemptLost"] == 0


@pytest.mark.timeout(30)
async def test_looking_at_nodes_without_deciding_anything_holds_up_nothing(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(undecided, run_id="r")
        assert (await run.wait()).status is RunStatus.COMPLETED


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_portions_of_a_run_that_is_written_late(store_url: str, durability: str):
    async with Engine(store_url) as engine:
        run = await engine.start(fan, run_id="r", durability=durability)  # pyright: ignore[reportArgumentType]
        assert (await run.wait()).status is RunStatus.COMPLETED
        assert (await events_of(engine, "r"))["NodeCompleted"] == WIDTH + 1
    assert ran == dict.fromkeys(range(WIDTH), 1)


async def test_a_run_is_cancelled_between_portions(store_url: str):
    async with Engine(store_url, settings=EngineSettings(loop_bodies=2)) as engine:
        run = await engine.start(fan, run_id="r")
        await begun()
        await run.cancel("enough")
        assert (await run.wait()).status is RunStatus.CANCELLED


class Held(StoreProxy):
    """A store whose commits wait while they are held, and take their time afterwards."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.goes_on = asyncio.Event()
        self.waiting = asyncio.Event()

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit" and any(isinstance(e.event, NodeCompleted) for move in args[0] for e in move.events):
            self.waiting.set()
            await self.goes_on.wait()
        if name == "commit":
            await asyncio.sleep(0.01)
        return await call()


async def test_no_body_begins_once_the_run_is_being_cancelled(sqlite_url: str):
    """The first portions are on their way when the run is cancelled; that is written after them."""
    inner = await open_store(sqlite_url)
    held = Held(inner)
    async with Engine(held.as_store) as engine:
        run = await engine.start(fan, run_id="r")
        await held.waiting.wait()
        driver = engine.driver_of(RunId("r"))
        assert driver is not None
        await run.cancel("enough")
        assert driver.projection.run.status is RunStatus.CANCELLING

        held.goes_on.set()

        assert (await run.wait()).status is RunStatus.CANCELLED
        assert await verify_run(engine, run.run_id) == []
        assert (await events_of(engine, "r"))["NodeStarted"] > PORTION
    await inner.close()
    assert not ran


class Counting(StoreProxy):
    """A store that notes what each commit holds."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.commits: list[Counter[str]] = []

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            self.commits += [Counter(type(entry.event).__name__ for entry in move.events) for move in args[0]]
        return await call()


async def test_what_waits_for_many_begins_with_the_record_of_their_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first portion is small because nothing runs; what has just ended is not counted against that."""
    monkeypatch.setattr("perdure.engine.driving.driver.PORTION_NODES", 10 * WIDTH)
    monkeypatch.setattr("perdure.engine.driving.driver.FIRST_PORTION_NODES", WIDTH // 2)
    inner = await open_store(sqlite_url)
    counting = Counting(inner)
    async with Engine(counting.as_store) as engine:
        assert await (await engine.start(gathering)).result() == WIDTH
    await inner.close()

    last = max(number for number, held in enumerate(counting.commits) if held["NodeCompleted"] > 1)
    assert counting.commits[last]["NodeCompleted"] > WIDTH // 4
    assert counting.commits[last]["NodeStarted"] == 1
