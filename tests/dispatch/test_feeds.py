"""Bodies that read a stream while it arrives: with `async for` on the loop, with `for` in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import pytest

from perdure.dispatch.context import Context, SyncContext
from perdure.dispatch.local import LocalDispatch
from perdure.errors import ArgumentNotReadable
from perdure.graph.declare import NodeType, node
from perdure.graph.handles import Stream
from perdure.testing.dispatch import InlineDispatch
from tests.dispatch.bodies import Point
from tests.dispatch.desk import Desk, Pipe, Tray, executed_by, task_for, until


@node
def reads(ctx: SyncContext, points: Stream[Point], scale: int = 1) -> list[int]:
    seen: list[int] = []
    for point in points:
        ctx.log.info("read", x=point.x)
        seen.append(scale * point.x)
    assert next(iter(points), None) is None
    return seen


@node
async def reads_async(ctx: Context, points: Stream[Point], scale: int = 1) -> list[int]:
    seen: list[int] = []
    async for point in points:
        ctx.log.info("read", x=point.x)
        seen.append(scale * point.x)
    assert [point async for point in points] == []
    return seen


@node
class Reads:
    scale: int = 1

    def run(self, ctx: SyncContext, points: Stream[Point]) -> list[int]:
        return reads.fn(ctx, points, self.scale)


READING = {
    "loop": reads_async,
    "thread": reads,
    "async in a thread": executed_by(reads_async, "thread"),
    "class": Reads,
}


@pytest.fixture(params=READING)
def reading(request: pytest.FixtureRequest) -> NodeType[..., Any]:
    return READING[request.param]


async def test_a_stream_is_read_to_its_end(dispatch: LocalDispatch, desk: Desk, reading: Any) -> None:
    pipe = Pipe([Point(1, 0)], [Point(2, 0), Point(3, 0)])
    task = task_for(reading, desk, feeds={"points": pipe}, scale=2)

    assert await dispatch.execute(task) == [2, 4, 6]

    assert pipe.taken == 3  # once per batch, and once for the end: nobody asks beyond that


async def test_an_empty_stream_is_at_its_end(dispatch: LocalDispatch, desk: Desk, reading: Any) -> None:
    assert await dispatch.execute(task_for(reading, desk, feeds={"points": Pipe()})) == []


async def test_items_are_read_while_they_arrive(dispatch: LocalDispatch, desk: Desk, reading: Any) -> None:
    pipe = Pipe(is_open=True)
    async with asyncio.TaskGroup() as group, asyncio.timeout(5):
        call = group.create_task(dispatch.execute(task_for(reading, desk, feeds={"points": pipe})))
        for number in range(1, 4):
            pipe.put(Point(number, 0))
            await until(lambda number=number: len(desk.messages) == number)
        assert not call.done()
        pipe.end()

    assert call.result() == [1, 2, 3]


async def test_a_stream_that_is_cut_off_is_an_error_after_what_came_before(
    dispatch: LocalDispatch, desk: Desk, reading: Any
) -> None:
    pipe = Pipe([Point(1, 0), Point(2, 0)], error=ConnectionError("cut off"))

    with pytest.raises(ConnectionError, match="cut off"):
        await dispatch.execute(task_for(reading, desk, feeds={"points": pipe}))

    assert desk.messages == ["read", "read"]


async def test_an_item_that_cannot_be_decoded_is_named(dispatch: LocalDispatch, desk: Desk, reading: Any) -> None:
    pipe = Pipe([Point(1, 0), Unknown(1)])

    with pytest.raises(ArgumentNotReadable, match=r"What node 'node-1' is to be given as 'points' .* does not know"):
        await dispatch.execute(task_for(reading, desk, feeds={"points": pipe}))

    assert desk.messages == ["read"]


@dataclass
class Unknown:
    """One to which the annotation `Point` does not lead."""

    x: int


async def test_a_codec_that_fails_is_told_what_for(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def first(numbers: Stream[int]) -> int:
        return await anext(aiter(numbers))

    def fail(value: Any, annotation: Any) -> Any:
        raise ZeroDivisionError(annotation)

    task = task_for(first, desk, feeds={"numbers": Pipe([1])})

    with pytest.raises(ZeroDivisionError, match="int") as caught:
        await dispatch.execute(msgspec.structs.replace(task, decode=fail))

    assert caught.value.__notes__ == ["It is the value of 'numbers' for node 'node-1'."]


async def test_a_body_may_stop_reading(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def two(numbers: Stream[int]) -> list[int]:
        return [number for number, _ in zip(numbers, range(2), strict=False)]

    @node
    async def two_async(numbers: Stream[int]) -> list[int]:
        seen: list[int] = []
        async for number in numbers:
            seen.append(number)
            if len(seen) == 2:
                break
        return seen

    for reading in (two, two_async):
        pipe = Pipe([1, 2, 3], [4], is_open=True)
        assert await dispatch.execute(task_for(reading, desk, feeds={"numbers": pipe})) == [1, 2]
        assert pipe.taken == 1


async def test_a_stream_can_be_left_out(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def optional(numbers: Stream[int] | None = None) -> str:
        return "none" if numbers is None else "some"

    assert await dispatch.execute(task_for(optional, desk)) == "none"
    assert await dispatch.execute(task_for(optional, desk, feeds={"numbers": Pipe()})) == "some"


async def test_a_generator_may_read_a_stream(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def doubles(numbers: Stream[int]) -> Iterator[int]:
        for number in numbers:
            yield 2 * number

    @node
    async def doubles_async(numbers: Stream[int]) -> AsyncIterator[int]:
        async for number in numbers:
            yield 2 * number

    for doubling in (doubles, doubles_async):
        tray = Tray()
        await dispatch.execute(task_for(doubling, desk, outlet=tray, feeds={"numbers": Pipe([1, 2], [3])}))
        assert tray.values == [2, 4, 6]


async def test_two_streams_are_read_in_turn(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def pairs(lefts: Stream[int], rights: Stream[str]) -> list[str]:
        return [f"{left}{right}" for left, right in zip(lefts, rights, strict=True)]

    feeds = {"lefts": Pipe([1], [2, 3]), "rights": Pipe(["a", "b"], ["c"])}

    assert await dispatch.execute(task_for(pairs, desk, feeds=feeds)) == ["1a", "2b", "3c"]


async def test_several_tasks_may_share_a_stream(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def shares(numbers: Stream[int]) -> list[int]:
        seen: list[int] = []

        async def read() -> None:
            async for number in numbers:
                seen.append(number)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(read())
        return seen

    pipe = OneAtATime(*([number] for number in range(50)))

    assert sorted(await dispatch.execute(task_for(shares, desk, feeds={"numbers": pipe}))) == list(range(50))


async def test_several_threads_may_share_a_stream(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def shares(numbers: Stream[int]) -> list[int]:
        with ThreadPoolExecutor(3) as threads:
            return sorted(chain.from_iterable(threads.map(list, [numbers] * 3)))

    pipe = OneAtATime(*([number] for number in range(50)))

    assert await dispatch.execute(task_for(shares, desk, feeds={"numbers": pipe})) == list(range(50))


class OneAtATime(Pipe):
    """A feed that makes sure that nobody asks again before it has answered."""

    is_asked = False

    async def take(self) -> Any:
        assert not self.is_asked
        self.is_asked = True
        await asyncio.sleep(0)
        self.is_asked = False
        return await super().take()


async def test_a_blocking_read_on_the_loop_is_refused_with_the_remedy(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def blocks(numbers: Stream[int]) -> list[int]:
        return list(numbers)

    with pytest.raises(TypeError, match="`async for`"):
        await dispatch.execute(task_for(blocks, desk, feeds={"numbers": Pipe([1])}))


async def test_an_async_body_may_have_a_thread_read_for_it(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def delegates(numbers: Stream[int]) -> list[int]:
        return await asyncio.to_thread(list, numbers)

    assert await dispatch.execute(task_for(delegates, desk, feeds={"numbers": Pipe([1], [2])})) == [1, 2]


async def test_a_body_that_waits_for_an_item_is_released_when_cancelled(
    dispatch: LocalDispatch, desk: Desk, reading: Any
) -> None:
    pipe = Pipe([Point(1, 0)], is_open=True)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(reading, desk, feeds={"points": pipe})))
        await until(lambda: pipe.taken == 2)
        call.cancel()
    await until(lambda: not dispatch.lost_threads)

    assert call.cancelled()
    assert desk.messages == ["read"]


async def test_what_outlives_a_body_reads_no_more(dispatch: LocalDispatch, desk: Desk) -> None:
    outcome: list[str] = []
    gate = threading.Event()
    readers: list[threading.Thread] = []

    @node
    def leaves(numbers: Stream[int]) -> None:
        def outlive() -> None:
            gate.wait()
            try:
                next(iter(numbers))
            except Exception as error:
                outcome.append(type(error).__name__)

        readers.append(threading.Thread(target=outlive))
        readers[0].start()

    await dispatch.execute(task_for(leaves, desk, feeds={"numbers": Pipe([1])}))
    gate.set()
    await asyncio.to_thread(readers[0].join)

    assert outcome == ["AttemptOver"]


@pytest.mark.parametrize("reading", [reads, reads_async, Reads])
async def test_bodies_that_run_inline_wait_for_their_streams(desk: Desk, reading: Any) -> None:
    dispatch = InlineDispatch()
    pipe = Pipe(is_open=True)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(reading, desk, feeds={"points": pipe})))
        await until(lambda: pipe.taken == 1)
        pipe.put(Point(1, 0))
        await until(lambda: pipe.taken == 2)
        pipe.end()
    await dispatch.close()

    assert call.result() == [1]


async def test_blocking_bodies_read_inline_what_has_arrived_before(desk: Desk) -> None:
    dispatch = InlineDispatch()
    for reading in (reads, reads_async, Reads):
        pipe = Pipe([Point(1, 0)], [Point(2, 0)])
        assert await dispatch.execute(task_for(reading, desk, feeds={"points": pipe})) == [1, 2]

        cut_off = Pipe([Point(1, 0)], error=ConnectionError("cut off"))
        desk.logged.clear()
        with pytest.raises(ConnectionError, match="cut off"):
            await dispatch.execute(task_for(reading, desk, feeds={"points": cut_off}))
        assert desk.messages == ["read"]
    await dispatch.close()
