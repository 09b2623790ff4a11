"""Node types brought to life for many items: one instance, many calls, one end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from perdure.dispatch.base import Session, Task
from perdure.dispatch.context import Context, SyncContext
from perdure.dispatch.failure import failure_of
from perdure.dispatch.local import LocalDispatch
from perdure.errors import BodyRaised
from perdure.graph.declare import NodeType, node
from perdure.testing.dispatch import InlineDispatch
from tests.dispatch import bodies
from tests.dispatch.bodies import tripled
from tests.dispatch.desk import Desk, Tray, decoded, executed_by, task_for, until

gate = threading.Event()


class Parts:
    """Logs each part of its life with what its context says, and fails where it is told to."""

    fail_in: str = ""

    def __init__(self) -> None:
        self.count = 0

    def note(self, ctx: Context | SyncContext, name: str) -> None:
        ctx.log.info(name, attempt=ctx.attempt, cancelled=ctx.cancelled)
        if name in self.fail_in.split(","):
            raise RuntimeError(f"failed in {name}")


@node
class Working(Parts):
    def initialize(self, ctx: SyncContext) -> None:
        self.note(ctx, "initialize")

    def pre_process(self, ctx: SyncContext) -> None:
        self.note(ctx, "pre_process")

    def process(self, ctx: SyncContext, item: int) -> tuple[int, int]:
        self.note(ctx, f"item {item}")
        self.count += 1
        return item, self.count

    def finalize(self, ctx: SyncContext) -> None:
        self.note(ctx, "finalize")


@node
class WorkingAsync(Parts):
    async def initialize(self, ctx: Context) -> None:
        self.note(ctx, "initialize")

    async def pre_process(self, ctx: Context) -> None:
        self.note(ctx, "pre_process")

    async def process(self, ctx: Context, item: int) -> tuple[int, int]:
        self.note(ctx, f"item {item}")
        await asyncio.sleep(0)
        self.count += 1
        return item, self.count

    async def finalize(self, ctx: Context) -> None:
        self.note(ctx, "finalize")


CLASSES = {"loop": WorkingAsync, "thread": Working}


@pytest.fixture(params=CLASSES)
def working(request: pytest.FixtureRequest) -> NodeType[..., Any]:
    return CLASSES[request.param]


@pytest.fixture(params=["local", "inline"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[LocalDispatch]:
    dispatch = LocalDispatch(threads=2) if request.param == "local" else InlineDispatch()
    yield dispatch
    await dispatch.close()


async def test_an_instance_lives_for_all_items(either: LocalDispatch, desk: Desk, working: Any) -> None:
    session = await either.open(task_for(working, desk, attempt=7))
    results = [await session.call(task_for(working, desk, attempt=number, item=number)) for number in (1, 2, 3)]
    await session.close()
    await session.close()

    assert [tuple(result) for result in results] == [(1, 1), (2, 2), (3, 3)]
    assert desk.messages == ["initialize", "pre_process", "item 1", "item 2", "item 3", "finalize"]
    assert [fields["attempt"] for _, _, fields in desk.logged] == [7, 7, 1, 2, 3, 7]
    assert not any(fields["cancelled"] for _, _, fields in desk.logged)


async def test_properties_are_those_that_it_was_opened_with(either: LocalDispatch, desk: Desk) -> None:
    session = await either.open(task_for(bodies.PerItem, desk, properties={"factor": 3}))

    assert [await session.call(task_for(bodies.PerItem, desk, item=item)) for item in (1, 2)] == [3, 6]
    await session.close()


@node(executor="process")
class InChild:
    factor: int

    def initialize(self, ctx: SyncContext) -> None:
        ctx.log.info("initialize")

    def process(self, item: int) -> int:
        return self.factor * item

    def finalize(self, ctx: SyncContext) -> None:
        ctx.log.info("finalize")


async def test_an_instance_in_another_process_lives_once_per_call(dispatch: LocalDispatch, desk: Desk) -> None:
    session = await dispatch.open(task_for(InChild, desk, properties={"factor": 3}))
    results = [await session.call(task_for(InChild, desk, item=item)) for item in (1, 2)]
    await session.close()

    assert [decoded(result) for result in results] == [3, 6]
    assert desk.messages == ["initialize", "finalize"] * 2


@pytest.mark.parametrize("adds", [bodies.add, bodies.add_async, executed_by(bodies.add, "process")])
async def test_a_function_is_called_for_each_item(dispatch: LocalDispatch, desk: Desk, adds: Any) -> None:
    session = await dispatch.open(task_for(adds, desk))
    results = [decoded(await session.call(task_for(adds, desk, a=number))) for number in (1, 2, 3)]
    await session.close()

    assert results == [3, 4, 5]


async def test_calls_run_at_once(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    class Meeting:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(2)

        def process(self, item: int) -> int:
            self.barrier.wait(timeout=10)
            return item

    @node
    class MeetingAsync:
        def __init__(self) -> None:
            self.barrier = asyncio.Event()

        async def process(self, item: int) -> int:
            self.barrier.set() if item else await self.barrier.wait()
            return item

    for meeting in (Meeting, MeetingAsync):
        session = await dispatch.open(task_for(meeting, desk))
        calls = (session.call(task_for(meeting, desk, item=item)) for item in (0, 1))
        assert await asyncio.gather(*calls) == [0, 1]
        await session.close()


async def test_a_call_that_fails_leaves_the_instance_alone(either: LocalDispatch, desk: Desk, working: Any) -> None:
    session = await either.open(task_for(working, desk, properties={"fail_in": "item 1"}))

    with pytest.raises(RuntimeError, match="failed in item 1"):
        await session.call(task_for(working, desk, item=1))

    assert tuple(await session.call(task_for(working, desk, item=2))) == (2, 1)
    await session.close()
    assert desk.messages.count("finalize") == 1


@node
class Waiting:
    async def process(self, ctx: Context, item: int) -> int:
        ctx.log.info(f"begun {item}")
        if item == 0:
            await asyncio.Event().wait()
        await ctx.checkpoint(item)
        return item

    async def finalize(self, ctx: Context) -> None:
        ctx.log.info("finalize", cancelled=ctx.cancelled)


@node
class Blocking:
    def process(self, ctx: SyncContext, item: int) -> int:
        ctx.log.info(f"begun {item}")
        if item == 0:
            gate.wait()
        ctx.checkpoint(item)
        return item

    def finalize(self, ctx: SyncContext) -> None:
        ctx.log.info("finalize", cancelled=ctx.cancelled)


@pytest.mark.parametrize("waiting", [Waiting, Blocking])
async def test_a_call_that_is_cancelled_leaves_the_others_alone(
    dispatch: LocalDispatch, desk: Desk, waiting: Any
) -> None:
    gate.clear()
    session = await dispatch.open(task_for(waiting, desk))
    async with asyncio.TaskGroup() as group:
        call = group.create_task(session.call(task_for(waiting, desk, item=0)))
        await desk.heard("begun 0")
        call.cancel()
        await asyncio.wait((call,))
        assert await session.call(task_for(waiting, desk, item=1)) == 1
    gate.set()
    await until(lambda: not dispatch.lost_threads)
    await session.close()

    assert call.cancelled()
    assert [decoded(state) for state in desk.checkpoints] == [1]
    assert desk.logged[-1][1:] == ("finalize", {"cancelled": False})


@pytest.mark.parametrize("waiting", [Waiting, Blocking])
async def test_finalize_knows_that_the_session_was_cancelled(dispatch: LocalDispatch, desk: Desk, waiting: Any) -> None:
    session = await dispatch.open(task_for(waiting, desk))
    begun = asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            await session.close(error)
            raise

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        await begun.wait()
        working.cancel()

    assert desk.logged[-1][1:] == ("finalize", {"cancelled": True})


# Errors at the beginning and at the end


@pytest.mark.parametrize("part", ["initialize", "pre_process"])
async def test_what_fails_to_begin_is_finalized(either: LocalDispatch, desk: Desk, working: Any, part: str) -> None:
    with pytest.raises(RuntimeError, match=f"failed in {part}"):
        await either.open(task_for(working, desk, properties={"fail_in": part}))

    assert desk.messages[-2:] == [part, "finalize"]
    assert desk.messages.count("finalize") == 1


async def test_an_error_in_finalize_is_raised_by_close(either: LocalDispatch, desk: Desk, working: Any) -> None:
    session = await either.open(task_for(working, desk, properties={"fail_in": "finalize"}))

    with pytest.raises(RuntimeError, match="failed in finalize"):
        await session.close()

    await session.close()
    assert desk.messages.count("finalize") == 1


async def test_an_error_in_finalize_does_not_hide_the_first(either: LocalDispatch, desk: Desk, working: Any) -> None:
    session = await either.open(task_for(working, desk, properties={"fail_in": "finalize"}))
    error = ValueError("the first")

    await session.close(error)

    assert "finalize() then raised RuntimeError: failed in finalize" in failure_of(error).traceback


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
async def test_nothing_that_a_part_raises_ends_more_than_the_session(
    dispatch: LocalDispatch, desk: Desk, error: type[BaseException]
) -> None:
    @node
    class Bad:
        part: str = ""

        def initialize(self) -> None:
            if self.part == "initialize":
                raise error

        def process(self, item: int) -> int:
            raise error

        def finalize(self) -> None:
            raise error

    @node
    class BadAsync:
        part: str = ""

        async def initialize(self) -> None:
            if self.part == "initialize":
                raise error

        async def process(self, item: int) -> int:
            raise error

        async def finalize(self) -> None:
            raise error

    for bad in (Bad, BadAsync):
        with pytest.raises(BodyRaised, match=error.__name__):
            await dispatch.open(task_for(bad, desk, properties={"part": "initialize"}))
        session, other = [await _opened_by_another(dispatch, task_for(bad, desk)) for _ in range(2)]
        with pytest.raises(BodyRaised, match=error.__name__):
            await session.call(task_for(bad, desk, item=1))
        with pytest.raises(BodyRaised, match=error.__name__):
            await session.close()
        first = ValueError("the first")
        await other.close(first)
        assert error.__name__ in first.__notes__[0]


async def _opened_by_another(dispatch: LocalDispatch, task: Task) -> Session:
    """Return a session that was opened in another task than the one that closes it."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(dispatch.open(task))
    return opening.result()


@node
class SlowToBegin:
    def initialize(self, ctx: SyncContext) -> None:
        ctx.log.info("initialize")
        gate.wait()

    def process(self, item: int) -> int:
        return item

    def finalize(self, ctx: SyncContext) -> None:
        ctx.log.info("finalize", cancelled=ctx.cancelled)


@node
class SlowToBeginAsync:
    async def initialize(self, ctx: Context) -> None:
        ctx.log.info("initialize")
        await asyncio.Event().wait()

    async def process(self, item: int) -> int:
        return item

    async def finalize(self, ctx: Context) -> None:
        ctx.log.info("finalize", cancelled=ctx.cancelled)


@pytest.mark.parametrize("slow", [SlowToBegin, SlowToBeginAsync])
async def test_an_opening_that_is_cancelled_is_finalized(dispatch: LocalDispatch, desk: Desk, slow: Any) -> None:
    gate.clear()
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(dispatch.open(task_for(slow, desk)))
        await desk.heard("initialize")
        opening.cancel()
        await asyncio.wait((opening,))
        gate.set()
        await until(lambda: not dispatch.lost_threads)

    assert opening.cancelled()
    assert desk.logged[1:] == [("info", "finalize", {"cancelled": True})]


async def test_an_opening_that_is_cancelled_when_it_is_done_is_finalized(dispatch: LocalDispatch, desk: Desk) -> None:
    """The thread is through, and the loop has not heard of it when the caller leaves."""
    gate.clear()
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(dispatch.open(task_for(SlowToBegin, desk)))
        await desk.heard("initialize")
        gate.set()
        time.sleep(0.05)  # noqa: ASYNC251  # the loop is not to hear of it
        opening.cancel()
    await until(lambda: not dispatch.lost_threads)

    assert opening.cancelled()
    assert desk.messages == ["initialize", "finalize"]


# What else a session is made of


async def test_async_parts_of_a_blocking_class_share_a_loop_from_beginning_to_end(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    @node
    class Mixed:
        async def initialize(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.thread = threading.get_ident()

        def process(self, ctx: SyncContext, item: int) -> int:
            return ctx.step(tripled, item)

        async def finalize(self, ctx: Context) -> None:
            ctx.log.info("finalize", same=asyncio.get_running_loop() is self.loop)

    session = await dispatch.open(task_for(Mixed, desk))
    assert [await session.call(task_for(Mixed, Desk(), item=item)) for item in (1, 2)] == [3, 6]
    await session.close()

    assert desk.logged == [("info", "finalize", {"same": True})]


async def test_no_loop_is_left_in_a_thread_for_other_bodies(desk: Desk) -> None:
    @node
    class Mixed:
        async def initialize(self) -> None:
            self.thread = threading.get_ident()

        def process(self) -> None: ...

    @node
    def looks_for_a_loop() -> bool:
        try:
            return bool(asyncio.get_event_loop())
        except RuntimeError:
            return False

    dispatch = LocalDispatch(threads=1)
    session = await dispatch.open(task_for(Mixed, desk))
    assert await dispatch.execute(task_for(looks_for_a_loop, desk)) is False
    await session.close()
    await dispatch.close()


async def test_blocking_parts_of_an_async_class_stay_off_the_loop(dispatch: LocalDispatch, desk: Desk) -> None:
    @node
    class Mixed:
        def initialize(self) -> None:
            self.threads = [threading.get_ident()]

        async def process(self) -> int:
            return threading.get_ident()

        def finalize(self, ctx: SyncContext) -> None:
            ctx.log.info("finalize", threads=[*self.threads, threading.get_ident()])

    session = await dispatch.open(task_for(Mixed, desk))
    on_loop = await session.call(task_for(Mixed, desk))
    await session.close()

    assert on_loop == threading.get_ident()
    assert on_loop not in desk.logged[0][2]["threads"]


@node
class Splitting:
    def process(self, words: str) -> Iterator[str]:
        yield from words.split()


@node
class SplittingAsync:
    async def process(self, words: str) -> AsyncIterator[str]:
        for word in words.split():
            yield word


@node
def splits(words: str) -> Iterator[str]:
    yield from words.split()


@pytest.mark.parametrize("splitting", [Splitting, SplittingAsync, splits])
async def test_each_call_of_a_generator_has_an_outlet_of_its_own(
    either: LocalDispatch, desk: Desk, splitting: Any
) -> None:
    session = await either.open(task_for(splitting, desk))
    trays = [Tray(), Tray()]
    tasks = [
        task_for(splitting, desk, outlet=tray, words=words) for tray, words in zip(trays, ("a b", "c d"), strict=True)
    ]

    await asyncio.gather(*map(session.call, tasks))
    await session.close()

    assert [tray.values for tray in trays] == [["a", "b"], ["c", "d"]]


async def test_what_a_call_returns_is_finished_in_its_thread(dispatch: LocalDispatch, desk: Desk) -> None:
    session = await dispatch.open(task_for(Working, desk))
    task = msgspec.structs.replace(
        task_for(Working, desk, item=1), finish=lambda result: (result, threading.get_ident())
    )

    result, thread = await session.call(task)
    await session.close()

    assert result == (1, 1)
    assert thread != threading.get_ident()


@pytest.mark.parametrize("adds", [bodies.add_async, WorkingAsync])
async def test_calls_on_the_loop_are_cheap(dispatch: LocalDispatch, desk: Desk, adds: Any) -> None:
    """Many times slower than measured on a quiet machine: a safeguard, not a benchmark."""
    session: Session = await dispatch.open(task_for(adds, desk))
    task = task_for(adds, desk, item=1) if adds.class_shape is not None else task_for(adds, desk, a=1)

    spent: list[float] = []
    for _ in range(5):  # of which the best counts, because the machine may have other things to do
        began = time.process_time()
        for _ in range(400):
            await session.call(task)
        spent.append(time.process_time() - began)
    await session.close()

    assert min(spent) / 400 < 150e-6
