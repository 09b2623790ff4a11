"""Waking threads: as few as possible for short functions, all of them soon for functions that block, and none forgotten."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure.dispatch.inlet import Inlet
from perdure.dispatch.threads import ThreadPool


@asynccontextmanager
async def pool_of(size: int) -> AsyncGenerator[ThreadPool]:
    pool = ThreadPool(size, Inlet(asyncio.get_running_loop()))
    try:
        yield pool
    finally:
        await pool.close()


async def test_functions_that_block_soon_have_all_threads() -> None:
    async with pool_of(32) as pool:
        began = time.monotonic()
        await asyncio.gather(*(pool.run(lambda: time.sleep(0.05)) for _ in range(32)))

        assert time.monotonic() - began < 0.8  # one after the other: 1.6


async def test_short_functions_share_a_thread() -> None:
    async with pool_of(32) as pool:
        used = await asyncio.gather(*(pool.run(threading.get_ident) for _ in range(2_000)))

        assert len(set(used)) <= 4  # one, unless the machine is busy


async def test_a_result_is_heard_of_though_its_thread_goes_on_with_something_long() -> None:
    door = threading.Event()
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        first = group.create_task(pool.run(lambda: "first"))
        second = group.create_task(pool.run(door.wait))
        async with asyncio.timeout(5):
            assert await first == "first"
        assert not second.done()
        door.set()


@pytest.mark.parametrize("size", [1, 4])
async def test_nothing_that_is_submitted_is_forgotten(size: int) -> None:
    """Bursts of all sizes, with pauses in which threads fall asleep, functions of all lengths, and callers that leave."""
    chance = random.Random(4)
    returned = 0

    async def call(pool: ThreadPool, number: int, pause: float, patience: float | None) -> None:
        nonlocal returned
        try:
            async with asyncio.timeout(patience):
                assert await pool.run(lambda: (time.sleep(pause) if pause else None, number)[1]) == number
        except TimeoutError:
            assert patience is not None
        returned += 1

    async with asyncio.timeout(20), pool_of(size) as pool:
        expected = 0
        while expected < 5_000:
            async with asyncio.TaskGroup() as burst:
                for _ in range(chance.choice((1, 1, 2, 3, 50, 200))):
                    pause = 0.001 if chance.random() < 0.02 else 0.0
                    patience = chance.random() * 0.002 if chance.random() < 0.05 else None
                    burst.create_task(call(pool, expected, pause, patience))
                    expected += 1
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.002)
        while pool.lost:
            await asyncio.sleep(0.001)

        assert returned == expected
        assert await pool.run(lambda: "still here") == "still here"


async def test_a_place_is_given_back_only_while_a_thread_can_be_had() -> None:
    door = threading.Event()
    released: list[int] = []
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        for number in range(3):
            begun = asyncio.Event()
            call = group.create_task(pool.run(door.wait, on_begin=begun.set))
            if number < 2:
                await begun.wait()
            call.cancel()
            await asyncio.wait((call,))
            pool.vacate(lambda number=number: released.append(number))

        # The first thread was replaced, the second not, and for the third there was none to begin with.
        assert (pool.lost, released) == (2, [0, 1])
        door.set()
        while pool.lost:
            await asyncio.sleep(0.001)
        assert released == [0, 1, 2]


async def test_the_end_of_a_function_that_nobody_waits_for_is_told() -> None:
    door = threading.Event()
    late: list[Exception | None] = []
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        begun = asyncio.Event()
        call = group.create_task(pool.run(door.wait, on_begin=begun.set, on_late=late.append))
        await begun.wait()
        call.cancel()
        await asyncio.wait((call,))
        assert late == []
        door.set()
        while pool.lost:
            await asyncio.sleep(0.001)

    assert late == [None]


async def test_a_thread_that_the_system_refuses_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    refusals = [RuntimeError("can't start new thread") for _ in range(3)]

    def reluctant(thread: threading.Thread) -> None:
        if refusals:
            raise refusals.pop()
        start(thread)

    async with pool_of(2) as pool:
        monkeypatch.setattr(threading.Thread, "start", reluctant)
        async with asyncio.timeout(5):
            assert await pool.run(lambda: "at last") == "at last"

    assert caplog.messages == ["thread_refused"]
