"""Threads: what happens to functions whose callers leave, how many threads there are, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.dispatch.inlet import Inlet
from perdure.dispatch.local import LocalDispatch
from perdure.dispatch.threads import ThreadPool
from perdure.errors import EngineStopped
from tests.dispatch import bodies
from tests.dispatch.desk import Desk, task_for, until


class Gate:
    """A function that tells when it has begun and returns when it is let go."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self._go = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        self._go.wait()
        self.ended.set()
        return "through"

    def open(self) -> None:
        self._go.set()


@contextlib.asynccontextmanager
async def pool_of(size: int, close_seconds: float = 5.0) -> AsyncIterator[ThreadPool]:
    pool = ThreadPool(size, Inlet(asyncio.get_running_loop()), close_seconds=close_seconds)
    try:
        yield pool
    finally:
        await pool.close()


async def _lose(pool: ThreadPool, group: asyncio.TaskGroup) -> Gate:
    """Have a caller leave while its function is inside a thread."""
    gate = Gate()
    call = group.create_task(pool.run(gate))
    await gate.begun.wait()
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()
    return gate


async def test_a_cancelled_call_returns_at_once_and_its_thread_is_replaced() -> None:
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        gate = await _lose(pool, group)

        assert pool.lost == 1
        assert await pool.run(lambda: "not held up") == "not held up"
        gate.open()


async def test_a_lost_thread_is_used_again_when_it_returns() -> None:
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        gate = await _lose(pool, group)
        gate.open()
        gate.ended.wait()
        await until(lambda: not pool.lost)

        threads = {await pool.run(threading.get_ident) for _ in range(20)}

        assert len(threads) == 1


async def test_no_more_than_twice_the_threads_are_started() -> None:
    async with pool_of(2) as pool, asyncio.TaskGroup() as group:
        gates = [await _lose(pool, group) for _ in range(4)]
        waiting = group.create_task(pool.run(lambda: "at last"))
        await asyncio.sleep(0)

        assert pool.lost == 4
        assert not waiting.done()
        gates[0].open()
        assert await waiting == "at last"
        for gate in gates:
            gate.open()


async def test_a_function_that_has_not_begun_never_begins() -> None:
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        gate = Gate()
        first = group.create_task(pool.run(gate))
        await gate.begun.wait()
        called: list[int] = []
        second = group.create_task(pool.run(lambda: called.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        gate.open()

        assert await first == "through"
        assert await pool.run(lambda: "next") == "next"
        assert called == []
        assert pool.lost == 0


async def test_on_abandon_is_called_once_and_only_when_the_caller_leaves() -> None:
    abandoned: list[str] = []
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        await pool.run(lambda: None, on_abandon=lambda: abandoned.append("first"))
        gate = Gate()
        call = group.create_task(pool.run(gate, on_abandon=lambda: abandoned.append("second")))
        await gate.begun.wait()
        call.cancel()
        await asyncio.wait((call,))
        gate.open()

    assert abandoned == ["second"]


async def test_a_call_to_its_end_outlasts_one_cancellation_but_not_two() -> None:
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        gate = Gate()
        call = group.create_task(pool.run_to_end(gate))
        await gate.begun.wait()
        call.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not call.done()

        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        assert pool.lost == 1
        gate.open()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
async def test_nothing_a_function_raises_ends_its_thread(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    async with pool_of(1) as pool:
        with pytest.raises(Exception, match=error.__name__):
            await pool.run(fail)

        assert await pool.run(lambda: "still here") == "still here"


async def test_an_error_does_not_keep_itself_alive() -> None:
    class Held(Exception):
        """One that can be watched."""

    def fail() -> None:
        raise Held

    async with pool_of(1) as pool:
        gc.disable()
        try:
            watched: Any = None
            try:
                await pool.run(fail)
            except Held as error:
                watched = weakref.ref(error)
            await pool.run(lambda: None)
            assert watched() is None
        finally:
            gc.enable()


async def test_closing_ends_the_threads_and_those_who_wait() -> None:
    before = threading.active_count()
    pool = ThreadPool(2, Inlet(asyncio.get_running_loop()))
    gate = Gate()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_refusal_of(pool.run(gate)))
        await gate.begun.wait()
        gate.open()
        gate.ended.wait()
        await pool.close()

    assert isinstance(call.result(), EngineStopped)
    assert isinstance(await _refusal_of(pool.run(lambda: None)), EngineStopped)
    await until(lambda: threading.active_count() <= before)


async def _refusal_of(awaitable: Any) -> EngineStopped | None:
    try:
        await awaitable
    except EngineStopped as error:
        return error
    return None


async def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.TaskGroup() as group, pool_of(1, close_seconds=0.01) as pool:
        gate = await _lose(pool, group)

    assert "threads_left_behind" in caplog.messages
    gate.open()


async def test_the_loop_is_woken_once_for_all_that_has_gathered() -> None:
    loop = asyncio.get_running_loop()
    wakes: list[Any] = []
    inlet = Inlet(loop)
    wake = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *args, **kwargs: (wakes.append(args), wake(*args, **kwargs))[1]  # type: ignore[method-assign]
    try:
        taken: list[int] = []
        thread = threading.Thread(target=lambda: [inlet.call(taken.append, number) for number in range(1_000)])
        thread.start()
        thread.join()  # blocks the loop, so that everything gathers
        await until(lambda: len(taken) == 1_000)
    finally:
        loop.call_soon_threadsafe = wake  # type: ignore[method-assign]

    assert taken == list(range(1_000))
    assert len(wakes) == 1


async def test_a_call_that_fails_does_not_disturb_the_others() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, problem: reported.append(problem))
    inlet = Inlet(loop)
    done = asyncio.Event()

    inlet.call(lambda: 1 / 0)
    inlet.call(done.set)
    await done.wait()

    assert isinstance(reported[0]["exception"], ZeroDivisionError)


def test_a_call_into_a_closed_loop_says_that_the_engine_has_stopped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(EngineStopped):
        Inlet(loop).call(print)


async def test_a_body_that_listens_learns_that_its_attempt_is_over(dispatch: LocalDispatch, desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(bodies.listens, desk)))
        await desk.heard("begun")
        call.cancel()
        await asyncio.wait((call,))
        await until(lambda: not dispatch.lost_threads)

    assert call.cancelled()
    assert "Attempt 1 at node 'node-1' is over" in bodies.released["listens"]
    assert desk.checkpoints == []


async def test_a_body_that_waits_for_a_service_is_released_when_cancelled(dispatch: LocalDispatch, desk: Desk) -> None:
    bodies.release["checkpoint"].clear()
    desk.hold.clear()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(bodies.waits_for_a_checkpoint, desk)))
        await desk.heard("checkpoint")
        call.cancel()
    await until(lambda: not dispatch.lost_threads)

    assert bodies.released["checkpoint"] == "AttemptOver"


async def test_a_body_that_waits_for_a_service_is_released_when_the_dispatch_closes(desk: Desk) -> None:
    desk.hold.clear()
    dispatch = LocalDispatch(threads=1)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_refusal_of(dispatch.execute(task_for(bodies.waits_for_a_checkpoint, desk))))
        await desk.heard("checkpoint")
        await dispatch.close()

    assert isinstance(call.result(), EngineStopped)
    assert bodies.released["checkpoint"] == "AttemptOver"


@pytest.mark.parametrize("ending", ["cancels", "vanishes"])
def test_a_body_that_waits_for_a_service_is_released_when_the_loop_ends(ending: str) -> None:
    bodies.release["checkpoint"].clear()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def begin() -> None:
        desk = Desk()
        desk.hold.clear()
        call = loop.create_task(LocalDispatch(threads=1).execute(task_for(bodies.waits_for_a_checkpoint, desk)))
        calls.put(call)
        await desk.heard("checkpoint")

    loop.run_until_complete(begin())
    if ending == "cancels":
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    else:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    assert bodies.release["checkpoint"].wait(timeout=10)
    assert bodies.released["checkpoint"] in ("AttemptOver", "EngineStopped")


async def test_bodies_in_threads_are_cheap() -> None:
    """Ten times slower than measured on a quiet machine: a safeguard against a hop per body, not a benchmark."""
    dispatch = LocalDispatch(threads=8)
    task = task_for(bodies.add, Desk(), a=1)

    async def run_many() -> None:
        for _ in range(100):
            await dispatch.execute(task)

    began = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(run_many())
    await dispatch.close()

    assert 10_000 / (time.process_time() - began) > 5_000
