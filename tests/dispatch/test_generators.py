"""Bodies that yield: order, backpressure, and how they end, on the loop and in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from perdure.dispatch.base import MAX_AHEAD
from perdure.dispatch.context import Context, SyncContext
from perdure.dispatch.failure import failure_of
from perdure.dispatch.local import LocalDispatch
from perdure.errors import StreamsNotSupported, ValueNotStorable
from perdure.graph.declare import NodeType, node
from perdure.graph.handles import Outputs
from perdure.testing.dispatch import InlineDispatch
from perdure.testing.loop import run_virtual
from tests.dispatch.bodies import EndOfWorld
from tests.dispatch.desk import Desk, Tray, decoded, task_for, until

yielded: list[int] = []
"""How far the generator of a test has come."""
gate = threading.Event()
at_gate = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yielded.clear()
    gate.clear()
    at_gate.clear()
    yield
    gate.set()


@node
def counts(ctx: SyncContext, upto: int, fail_at: int = -1) -> Iterator[int]:
    try:
        for number in range(upto):
            if number == fail_at:
                raise RuntimeError(f"failed at {number}")
            yielded.append(number)
            yield number
    except GeneratorExit:
        ctx.log.info("closed")
        raise
    finally:
        ctx.log.info("ended", thread=threading.get_ident())


@node
async def counts_async(ctx: Context, upto: int, fail_at: int = -1) -> AsyncIterator[int]:
    try:
        for number in range(upto):
            if number == fail_at:
                raise RuntimeError(f"failed at {number}")
            yielded.append(number)
            yield number
    except GeneratorExit:
        ctx.log.info("closed")
        raise
    finally:
        await asyncio.sleep(0)
        ctx.log.info("ended")


@node
class Counting:
    step: int = 1

    def initialize(self, ctx: SyncContext) -> None:
        ctx.log.info("initialize")

    def run(self, ctx: SyncContext, upto: int, fail_at: int = -1) -> Iterator[int]:
        yield from counts.fn(ctx, upto, fail_at)

    def finalize(self, ctx: SyncContext) -> None:
        ctx.log.info("finalize")


@node
class CountingAsync:
    step: int = 1

    async def initialize(self, ctx: Context) -> None:
        ctx.log.info("initialize")

    async def run(self, ctx: Context, upto: int, fail_at: int = -1) -> AsyncIterator[int]:
        async with aclosing(counts_async.fn(ctx, upto, fail_at)) as numbers:
            async for number in numbers:
                yield number

    def finalize(self, ctx: SyncContext) -> None:
        ctx.log.info("finalize")


FUNCTIONS = {"loop": counts_async, "thread": counts}
COUNTING = {**FUNCTIONS, "class on the loop": CountingAsync, "class in a thread": Counting}


@pytest.fixture(params=COUNTING)
def counting(request: pytest.FixtureRequest) -> NodeType[..., Any]:
    return COUNTING[request.param]


@pytest.fixture(params=FUNCTIONS)
def counter(request: pytest.FixtureRequest) -> NodeType[..., Any]:
    return FUNCTIONS[request.param]


async def test_every_item_is_offered_in_order(dispatch: LocalDispatch, desk: Desk, counting: Any) -> None:
    tray = Tray()

    assert await dispatch.execute(task_for(counting, desk, outlet=tray, upto=1_000)) is None

    assert tray.values == list(range(1_000))


async def test_items_name_their_handles(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def deals() -> Iterator[Outputs]:
        yield Outputs(left=1)
        yield Outputs(right=2)

    tray = Tray()
    await dispatch.execute(task_for(deals, desk, outlet=tray))

    assert [{name: decoded(part) for name, part in item.items()} for item in tray.items] == [{"left": 1}, {"right": 2}]


async def test_no_item_is_no_offer(dispatch: LocalDispatch, desk: Desk, counting: Any) -> None:
    tray = Tray()

    await dispatch.execute(task_for(counting, desk, outlet=tray, upto=0))

    assert tray.batches == []


async def test_what_a_generator_returns_is_ignored(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def returns() -> Any:
        yield 1
        return "ignored"

    task = task_for(returns, desk, outlet=Tray())

    assert await dispatch.execute(task) is None


async def test_an_iterator_that_is_returned_is_a_stream(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def returned() -> Iterator[int]:
        return map(abs, [-1, -2])

    @node
    def returned_async() -> AsyncIterator[int]:
        assert threading.current_thread() is not threading.main_thread()
        return counts_async.fn(Silent(), 2)

    for returning, expected in ((returned, [1, 2]), (returned_async, [0, 1])):
        tray = Tray()
        await dispatch.execute(task_for(returning, desk, outlet=tray))
        assert tray.values == expected


class Silent(Any):  # type: ignore[misc]
    """A context for generators that are called by hand."""

    class log:  # noqa: N801
        @staticmethod
        def info(message: str, **fields: Any) -> None: ...


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_stream_of_the_other_colour_is_refused(dispatch: LocalDispatch, desk: Desk, is_async: bool) -> None:
    @node
    def wrong() -> Iterator[int]:
        return counts_async.fn(Silent(), 2)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    @node
    def wrong_async() -> AsyncIterator[int]:
        return iter([1])  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    with pytest.raises(StreamsNotSupported, match=r"AsyncIterator\[T\]"):
        await dispatch.execute(task_for(wrong_async if is_async else wrong, desk, outlet=Tray()))


async def test_items_without_an_outlet_are_a_mistake_of_the_engine(
    dispatch: LocalDispatch, desk: Desk, counting: Any
) -> None:
    with pytest.raises(RuntimeError, match="nowhere to go"):
        await dispatch.execute(task_for(counting, desk, upto=1))


# Backpressure


async def test_a_generator_on_the_loop_is_not_resumed_before_there_is_room(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray(room=3)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counts_async, desk, outlet=tray, upto=10)))
        await until(lambda: tray.waits == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert yielded == [0, 1, 2]

        tray.make_room(5)
        await until(lambda: tray.waits == 2)
        assert yielded == [0, 1, 2, 3, 4]
        assert not call.done()
        tray.make_room(100)

    assert tray.values == list(range(10))


async def test_a_generator_in_a_thread_is_at_most_so_many_items_ahead(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray(room=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatch.execute(task_for(counts, desk, outlet=tray, upto=10 * MAX_AHEAD)))
        await until(lambda: tray.waits == 1)
        ahead = len(yielded)
        await asyncio.sleep(0.01)  # in which a generator that was not held would go on
        assert ahead == len(yielded) == len(tray.items) <= 2 * MAX_AHEAD

        tray.make_room(100 * MAX_AHEAD)

    assert tray.values == list(range(10 * MAX_AHEAD))


@node
def counts_at_the_gate(upto: int) -> Iterator[int]:
    for number in range(upto):
        if number == 1:
            at_gate.set()
            gate.wait()
        yielded.append(number)
        yield number


async def test_a_generator_in_a_thread_is_held_at_its_next_item(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray(room=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatch.execute(task_for(counts_at_the_gate, desk, outlet=tray, upto=10)))
        await asyncio.sleep(0)
        at_gate.wait()  # the loop does not look before the generator has been resumed
        await tray.until(lambda: tray.values == [0])
        gate.set()
        await until(lambda: tray.waits == 1)
        await asyncio.sleep(0.01)  # in which a generator that was not held would go on
        assert yielded == tray.values == [0, 1]

        tray.make_room(100)

    assert tray.values == list(range(10))


async def test_a_generator_in_a_thread_waits_for_a_loop_that_does_not_look(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray()
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatch.execute(task_for(counts, desk, outlet=tray, upto=10 * MAX_AHEAD)))
        await until(lambda: bool(yielded))
        began = len(tray.items)
        time.sleep(0.05)  # noqa: ASYNC251  # the loop is not to look
        assert len(yielded) - began <= MAX_AHEAD

    assert len(tray.items) == 10 * MAX_AHEAD
    assert max(tray.batches) <= MAX_AHEAD


async def test_an_item_is_offered_though_its_generator_goes_on_with_something_long(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    @node
    def blocks() -> Iterator[int]:
        yield 1
        gate.wait()
        yield 2

    tray = Tray()
    async with asyncio.TaskGroup() as group, asyncio.timeout(5):
        group.create_task(dispatch.execute(task_for(blocks, desk, outlet=tray)))
        await tray.until(lambda: tray.values == [1])
        gate.set()

    assert tray.values == [1, 2]


async def test_a_generator_that_never_waits_leaves_the_loop_to_others(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray()
    turns: list[int] = []
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counts_async, desk, outlet=tray, upto=10_000)))
        while not call.done():
            turns.append(len(tray.items))
            await asyncio.sleep(0)

    assert len(turns) > 50
    assert max(after - before for before, after in pairwise(turns)) <= 64


# Errors


async def test_an_error_is_raised_when_all_that_was_yielded_has_been_offered(
    dispatch: LocalDispatch, desk: Desk, counting: Any
) -> None:
    tray = Tray()

    with pytest.raises(RuntimeError, match="failed at 100") as caught:
        await dispatch.execute(task_for(counting, desk, outlet=tray, upto=1_000, fail_at=100))

    assert tray.values == list(range(100))
    shown = failure_of(caught.value).traceback
    assert "raise RuntimeError" in shown
    assert "places.py" not in shown
    assert "outlets.py" not in shown


async def test_an_item_that_cannot_be_stored_ends_the_generator(
    dispatch: LocalDispatch, desk: Desk, counter: Any
) -> None:
    class Picky(Tray):
        def pack(self, value: Any) -> Any:
            return super().pack(threading.Lock() if value == 3 else value)

    tray = Picky()

    with pytest.raises(ValueNotStorable):
        await dispatch.execute(task_for(counter, desk, outlet=tray, upto=10))

    assert tray.values == [0, 1, 2]
    assert desk.messages == ["closed", "ended"]


@pytest.mark.parametrize("upto", [10, 10 * MAX_AHEAD])
async def test_items_that_are_refused_end_the_generator(
    dispatch: LocalDispatch, desk: Desk, counter: Any, upto: int
) -> None:
    tray = Tray(refuse_after=5)

    with pytest.raises(ValueError, match="not these items"):
        await dispatch.execute(task_for(counter, desk, outlet=tray, upto=upto))

    assert len(tray.items) <= 5
    assert desk.messages[-1] == "ended"
    assert len(yielded) <= 2 * MAX_AHEAD


async def test_nothing_is_offered_after_items_were_refused(dispatch: LocalDispatch, desk: Desk) -> None:
    offers: list[int] = []
    is_refused = asyncio.Event()

    class RefusesOnce(Tray):
        def offer(self, packed: Sequence[Any]) -> bool:
            offers.append(len(packed))
            if not is_refused.is_set():
                is_refused.set()
                raise ValueError("not these items")
            return True

    outcome: list[str] = []

    async def execute() -> None:
        task = task_for(counts_at_the_gate, desk, outlet=RefusesOnce(), upto=10)
        try:
            await dispatch.execute(task)
        except ValueError as error:
            outcome.append(str(error))

    async with asyncio.TaskGroup() as group:
        group.create_task(execute())
        await asyncio.sleep(0)
        at_gate.wait()  # the loop does not look before the generator has been resumed
        await is_refused.wait()
        gate.set()

    assert outcome == ["not these items"]
    assert offers == [1]
    assert yielded == [0, 1]


async def test_what_a_generator_raises_when_it_is_closed_does_not_hide_why(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    def fails_at_last() -> Iterator[Any]:
        try:
            yield threading.Lock()
        finally:
            raise EndOfWorld("in finally")

    @node
    async def fails_at_last_async() -> AsyncIterator[Any]:
        try:
            yield threading.Lock()
        finally:
            raise KeyError("in finally")

    for failing, second in ((fails_at_last, "EndOfWorld: in finally"), (fails_at_last_async, "KeyError: 'in finally'")):
        with pytest.raises(ValueNotStorable) as caught:
            await dispatch.execute(task_for(failing, desk, outlet=Tray()))
        assert caught.value.__notes__ == [f"The generator was closed, and then raised {second}"]


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, EndOfWorld, asyncio.CancelledError, StopIteration]
)
async def test_nothing_a_generator_raises_ends_more_than_its_attempt(
    dispatch: LocalDispatch, desk: Desk, error: type[BaseException]
) -> None:
    @node
    def fails() -> Iterator[int]:
        yield 1
        raise error

    @node
    async def fails_async() -> AsyncIterator[int]:
        yield 1
        raise error

    for failing in (fails, fails_async):
        tray = Tray()
        with pytest.raises(Exception, match=error.__name__):
            await dispatch.execute(task_for(failing, desk, outlet=tray))
        assert tray.values == [1]


# Cancellation


async def test_cancelling_closes_a_generator_on_the_loop(dispatch: LocalDispatch, desk: Desk) -> None:
    tray = Tray(room=3)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counts_async, desk, outlet=tray, upto=10)))
        await until(lambda: tray.waits == 1)
        call.cancel()

    assert call.cancelled()
    assert desk.messages == ["closed", "ended"]
    assert tray.values == [0, 1, 2]


@pytest.mark.parametrize("room", [3.0, float("inf")])
async def test_cancelling_closes_a_generator_in_its_thread(dispatch: LocalDispatch, desk: Desk, room: float) -> None:
    tray = Tray(room=room)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counts, desk, outlet=tray, upto=10_000_000)))
        await until(lambda: len(tray.items) >= 3)
        call.cancel()
        await asyncio.wait((call,))
        offered = len(tray.items)
        await until(lambda: not dispatch.lost_threads)

    assert call.cancelled()
    assert desk.messages == ["closed", "ended"]
    assert desk.logged[-1][2]["thread"] != threading.get_ident()
    assert len(tray.items) == offered


@pytest.mark.parametrize("counting", [CountingAsync, Counting])
async def test_a_class_is_finalized_after_its_generator_was_closed(
    dispatch: LocalDispatch, desk: Desk, counting: Any
) -> None:
    tray = Tray(room=3)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counting, desk, outlet=tray, upto=1_000_000)))
        await until(lambda: tray.waits == 1)
        call.cancel()
    await until(lambda: not dispatch.lost_threads)

    assert call.cancelled()
    assert desk.messages == ["initialize", "closed", "ended", "finalize"]


async def test_a_generator_that_blocks_is_left_behind_and_closed_at_its_next_item(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    @node
    def blocks(ctx: SyncContext) -> Iterator[int]:
        try:
            yield 1
            gate.wait()
            yield 2
            ctx.log.info("resumed")
            yield 3
        finally:
            ctx.log.info("ended")

    tray = Tray()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(blocks, desk, outlet=tray)))
        await tray.until(lambda: tray.values == [1])
        call.cancel()
        await asyncio.wait((call,))
        assert dispatch.lost_threads == 1
        gate.set()
        await until(lambda: not dispatch.lost_threads)

    assert call.cancelled()
    assert desk.messages == ["ended"]
    assert tray.values == [1]


async def test_a_generator_that_waits_is_cancelled_where_it_waits(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def waits(ctx: Context) -> AsyncIterator[int]:
        yield 1
        try:
            ctx.log.info("begun")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ctx.log.info("cancelled")
            raise

    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(waits, desk, outlet=Tray())))
        await desk.heard("begun")
        call.cancel()

    assert call.cancelled()
    assert desk.messages == ["begun", "cancelled"]


async def test_a_generator_that_ignores_its_cancellation_yields_in_vain(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    async def ignores(ctx: Context) -> AsyncIterator[int]:
        yield 1
        ctx.log.info("begun")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            yield 2
            yield 3
        finally:
            ctx.log.info("ended")

    tray = Tray()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(ignores, desk, outlet=tray)))
        await desk.heard("begun")
        call.cancel()

    assert call.cancelled()
    assert tray.values == [1]
    assert desk.messages == ["begun", "ended"]


class Stubborn:
    """Generators that do not end when they are told to. They are kept, so that nobody tells them again."""

    kept: ClassVar[list[Any]] = []

    @staticmethod
    def endless() -> Iterator[int]:
        while True:
            with suppress(GeneratorExit):
                yield 1

    @staticmethod
    async def endless_async() -> AsyncIterator[int]:
        while True:
            with suppress(GeneratorExit):
                yield 1

    @staticmethod
    def last_word(ctx: SyncContext) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            yield 2
            ctx.log.info("unreached")

    @staticmethod
    def fails_at_last() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise EndOfWorld("in finally")

    @staticmethod
    async def fails_at_last_async() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise KeyError("in finally")


@pytest.mark.parametrize("name", ["endless", "endless_async", "last_word", "fails_at_last", "fails_at_last_async"])
async def test_a_generator_that_does_not_end_properly_is_contained(
    dispatch: LocalDispatch, desk: Desk, name: str
) -> None:
    function = getattr(Stubborn, name)

    def kept(*args: Any) -> Any:
        Stubborn.kept.append(function(*args))
        return Stubborn.kept[-1]

    kept.__annotations__ = function.__annotations__
    kept.__wrapped__ = function  # type: ignore[attr-defined]
    tray = Tray(room=2)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(node(name=f"stubborn {name}")(kept), desk, outlet=tray)))
        await until(lambda: tray.waits == 1)
        call.cancel()
    await until(lambda: not dispatch.lost_threads)
    offered = len(tray.items)

    assert call.cancelled()
    assert set(tray.values) == {1}
    again = Tray()
    await dispatch.execute(task_for(counts, desk, outlet=again, upto=3))
    assert again.values == [0, 1, 2]
    assert len(tray.items) == offered
    assert "unreached" not in desk.messages
    has_ended = getattr(Stubborn.kept[-1], "gi_frame", None) is None
    assert has_ended == (name != "endless")


async def test_a_closed_dispatch_releases_a_generator_that_waits_for_room(desk: Desk) -> None:
    dispatch = LocalDispatch(threads=1)
    tray = Tray(room=1)
    outcome: list[str] = []

    async def execute() -> None:
        try:
            await dispatch.execute(task_for(counts, desk, outlet=tray, upto=1_000_000))
        except Exception as error:
            outcome.append(type(error).__name__)

    async with asyncio.TaskGroup() as group:
        group.create_task(execute())
        await until(lambda: tray.waits == 1)
        await dispatch.close()

    assert outcome == ["EngineStopped"]
    assert desk.messages == ["closed", "ended"]


# On one loop, for tests whose interleavings repeat


@pytest.mark.parametrize("seed", range(3))
def test_generators_run_inline_in_the_same_way_each_time(counting: Any, seed: int) -> None:
    first, second = (run_virtual(_turns_of(counting), seed=seed) for _ in range(2))

    assert first == second


async def _turns_of(counting: NodeType[..., Any]) -> list[int]:
    """Return how many items had been offered at each turn of somebody else."""
    dispatch, tray, turns = InlineDispatch(), Tray(room=150), list[int]()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counting, Desk(), outlet=tray, upto=200)))
        while not call.done():
            turns.append(len(tray.items))
            if tray.waits:
                tray.make_room(1_000)
            await asyncio.sleep(0)
    await dispatch.close()
    assert tray.values == list(range(200))
    return turns


async def test_a_generator_that_runs_inline_is_closed_when_cancelled(desk: Desk, counting: Any) -> None:
    dispatch = InlineDispatch()
    tray = Tray(room=3)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(counting, desk, outlet=tray, upto=10)))
        await until(lambda: tray.waits == 1)
        call.cancel()
    await dispatch.close()

    assert call.cancelled()
    assert "closed" in desk.messages
    assert tray.values == [0, 1, 2]


# How fast


class Void(Tray):
    """An outlet that costs nothing."""

    def pack(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(("place", "least"), [("thread", 30_000), ("loop", 50_000)])
async def test_items_are_cheap(dispatch: LocalDispatch, desk: Desk, place: str, least: int) -> None:
    """Several times slower than measured on a quiet machine: a safeguard against a hop per item, not a benchmark."""

    @node
    def flood(count: int) -> Iterator[int]:
        yield from range(count)

    @node
    async def flood_async(count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    tray = Void()
    task = task_for(flood if place == "thread" else flood_async, desk, outlet=tray, count=100_000)

    began = time.process_time()
    await dispatch.execute(task)

    assert len(tray.items) / (time.process_time() - began) > least
