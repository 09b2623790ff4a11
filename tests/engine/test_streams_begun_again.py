"""Streams that nobody reads any more, and readers of them that begin again: nothing is cut off, lost or made twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Stream, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunFailed
from perdure.graph.declare import Workflow
from perdure.journal import events as e
from perdure.store.base import Store
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store, opened_world
from tests.engine.engines import assert_whole, engine_on, in_another_process, killed_after, log_of

paid: list[str] = []


@node
async def count(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@node
async def over_and_over(xs: Stream[int]) -> AsyncIterator[int]:
    given = [x async for x in xs]
    while True:
        for x in given:
            await asyncio.sleep(0.01)
            yield x


@node
async def in_two_parts(first: int, rest: int) -> AsyncIterator[int]:
    for number in range(first):
        yield number
    await asyncio.sleep(5)
    for number in range(first, first + rest):
        yield number


@node(retries=1, backoff=0.5)
async def wanted(ctx: Context, first: int, then: int) -> AsyncIterator[int]:
    """How many items to take: after a second it fails, and wants another number."""
    yield first if ctx.attempt == 1 else then
    await asyncio.sleep(1)
    if ctx.attempt == 1:
        raise ConnectionError("lost")


@node
async def take(xs: Stream[int], numbers: Stream[int]) -> list[int]:
    async for number in numbers:
        taken: list[int] = []
        async for x in xs:
            taken.append(x)
            if len(taken) == number:
                break
        return taken
    return []


@node
async def head(xs: Stream[int]) -> int:
    async for x in xs:
        return x
    return -1


@node(once=True)
async def pay(ctx: Context, x: int) -> int:
    paid.append(ctx.idempotency_key)
    return x


class SlowStarts(StoreProxy):
    """Takes its time to store that an attempt has started."""

    def __init__(self, inner: Store, node_id: str, attempt: int) -> None:
        super().__init__(inner)
        self._slow = (node_id, attempt)

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            stored = [recorded.event for transition in args[0] for recorded in transition.events]
            if any(
                isinstance(event, e.NodeStarted) and (event.node_id, event.attempt) == self._slow for event in stored
            ):
                await asyncio.sleep(1)
        return await call()


def outcome_of(
    flow: Workflow[..., Any], tmp_path: Path, *, behind: Callable[[Store], StoreProxy] = StoreProxy, **options: Any
) -> Any:
    """Run a workflow to its end in virtual time, prove that what is stored of it is whole, and return its result."""

    async def main() -> Any:
        async with (
            opened_store(f"sqlite:///{tmp_path}/again.db") as store,
            engine_on(behind(store).as_store, blobs=f"file://{tmp_path}/blobs") as engine,
        ):
            run = await engine.start(flow, run_id="r", **options)
            try:
                async with asyncio.timeout(60):
                    return await run.result()
            finally:
                assert await verify_run(engine, run.run_id) == []

    return run_virtual(main())


def test_what_a_stream_was_made_of_is_there_when_it_begins_again_with_its_reader(tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        numbers = wanted(3, 8)
        return [take(over_and_over(count(5)), numbers), collect(numbers)]

    assert outcome_of(flow, tmp_path) == [[0, 1, 2, 3, 4, 0, 1, 2], [8]]


def test_a_stream_that_is_about_to_be_ended_unread_is_not_cut_off_for_a_reader_that_begins_again(
    tmp_path: Path,
) -> None:
    @workflow
    def flow() -> Any:
        numbers = wanted(3, 8)
        return [take(in_two_parts(3, 10), numbers), collect(numbers)]

    assert outcome_of(flow, tmp_path) == [list(range(8)), [8]]


def test_what_must_run_once_is_not_begun_again_with_a_stream_that_was_ended_unread(tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        endless = over_and_over(count(5))
        numbers = wanted(3, 8)
        return [take(endless, numbers), pay(head(endless)), collect(numbers)]

    paid.clear()
    with pytest.raises(RunFailed, match="'pay', which must run at most once"):
        outcome_of(flow, tmp_path)

    assert paid == ["r/pay/1"]


def test_what_was_sent_is_kept_for_a_reader_that_begins_again(tmp_path: Path) -> None:
    @workflow
    def flow(xs: Stream[int]) -> Any:
        numbers = wanted(2, 4)
        return [take(xs, numbers), collect(numbers)]

    async def main() -> Any:
        async with (
            opened_store(f"sqlite:///{tmp_path}/again.db") as store,
            engine_on(store, blobs=f"file://{tmp_path}/blobs") as engine,
        ):
            run = await engine.start(flow)
            for number in range(3):
                await run.send("xs", number)
            await asyncio.sleep(0.5)
            for number in range(3, 6):  # nobody reads it at the moment
                await run.send("xs", number)
            async with asyncio.timeout(60):
                result = await run.result()  # it is closed when nobody can begin to read it again
            assert await verify_run(engine, run.run_id) == []
            return result

    assert run_virtual(main()) == [[0, 1, 2, 3], [4]]


@node
async def refuse(xs: Stream[int]) -> int:
    async for x in xs:
        if x == 3:
            raise ValueError("I do not like it")
    return 0


def test_a_generator_whose_readers_have_failed_is_ended(tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        return refuse(over_and_over(count(5)))

    with pytest.raises(RunFailed, match="I do not like it"):
        outcome_of(flow, tmp_path, on_failure="finish")


@node(retries=1, backoff=0.1)
async def endless_at_last(ctx: Context) -> AsyncIterator[int]:
    number = 0
    while ctx.attempt == 2 or number < 5:
        yield number
        number += 1
        await asyncio.sleep(0.01)
    raise ConnectionError("lost")


@node
async def five(xs: Stream[int]) -> int:
    async for x in xs:
        if x == 4:
            break
    await asyncio.sleep(0.5)
    return 5


def test_a_generator_hears_that_nobody_reads_it_also_while_its_start_is_being_stored(tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        return five(endless_at_last())

    assert outcome_of(flow, tmp_path, behind=lambda store: SlowStarts(store, "endless_at_last", 2)) == 5


class SlowCommits(StoreProxy):
    """Takes its time for everything."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            await asyncio.sleep(1)
        return await call()


@node
async def chatter() -> AsyncIterator[int]:
    for number in range(200):
        await asyncio.sleep(0.1)
        yield number


@node
async def five_after(xs: Stream[int], seconds: float) -> int:
    async for x in xs:
        if x == 4:
            break
    await asyncio.sleep(seconds)
    return 5


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [number / 4 for number in range(20)])
def test_a_generator_hears_that_nobody_reads_it_whenever_that_is(seconds: float, tmp_path: Path) -> None:
    @workflow
    def flow(seconds: float) -> Any:
        return [five_after(endless_at_last(), seconds), collect(chatter())]

    assert outcome_of(flow, tmp_path, behind=SlowCommits, seconds=seconds)[0] == 5


@node
async def begin() -> int:
    return 1


@node(pure=True)
async def fail_at_once(n: int) -> AsyncIterator[int]:
    raise ValueError("there is nothing")
    yield n


@node
async def total(xs: Stream[int]) -> int:
    return sum([x async for x in xs])


def test_a_reader_that_is_stopped_before_it_has_begun_holds_up_nothing(tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        return total(fail_at_once(begin()))

    with pytest.raises(RunFailed, match="there is nothing"):
        outcome_of(flow, tmp_path, behind=lambda store: SlowStarts(store, "total", 1), on_failure="finish")


@node(replay="hold", retries=1, backoff=0)
async def saved(ctx: Context) -> AsyncIterator[str]:
    for number in range(ctx.restored or 0, 6):
        yield f"{number} of {ctx.attempt}"
        if number == 2:
            await ctx.checkpoint(3)
        if number == 4 and ctx.attempt == 1:
            raise ConnectionError("lost")


@node
async def same(text: str) -> str:
    return text


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_was_given_before_a_checkpoint_stays_however_late_it_is_stored(durability: str, tmp_path: Path) -> None:
    @workflow
    def flow() -> Any:
        return collect(same.map(saved()))

    given = outcome_of(flow, tmp_path, durability=durability)

    assert given == [f"{number} of {1 if number < 3 else 2}" for number in range(6)]


tried: list[int] = []
endings: list[asyncio.Event] = []
"""Set when the node is being ended; each loop needs its own."""


@node(retries=2, backoff=0)
class Stubborn:
    async def process(self, ctx: Context, x: int) -> int:
        tried.append(ctx.attempt)
        raise ConnectionError("lost")

    async def finalize(self) -> None:
        endings[-1].set()
        await asyncio.sleep(1)


def test_an_item_that_was_given_up_gets_no_more_attempts_after_a_kill_before_its_node_has_failed(
    tmp_path: Path,
) -> None:
    @workflow
    def flow() -> Any:
        return collect(Stubborn.map([1]))

    async def begin(engine: Engine) -> None:
        await engine.start(flow, run_id="r")
        await endings[-1].wait()
        await asyncio.sleep(0.5)

    async def go_on(engine: Engine) -> list[tuple[int, bool]]:
        run = await engine.get("r")
        with pytest.raises(RunFailed, match="item 0: lost"):
            await run.result()
        failures = [entry.event for entry in await log_of(run) if isinstance(entry.event, e.ItemFailed)]
        return [(failure.item_attempt, failure.final) for failure in failures]

    async def main() -> list[tuple[int, bool]]:
        async with opened_world(f"sqlite:///{tmp_path}/again.db", tmp_path) as world:
            await killed_after(world, begin)
            return await in_another_process(world, go_on)

    tried.clear()
    endings.append(asyncio.Event())
    assert run_virtual(main()) == [(1, False), (2, False), (3, True)]
    assert tried == [1, 2, 3, 3]


def test_an_item_that_was_given_up_gets_no_more_attempts_after_its_engine_has_stopped_before_its_node_has_failed(
    sqlite_url: str,
) -> None:
    @workflow
    def flow() -> Any:
        return collect(Stubborn.map([1]))

    async def main() -> list[tuple[int, bool]]:
        async with engine_on(sqlite_url) as engine:
            await engine.start(flow, run_id="r")
            await endings[-1].wait()
            engine.drain()  # as after a signal: the failure of the node says nothing then
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("r")
            with pytest.raises(RunFailed, match="item 0: lost"):
                await run.result()
            log = [entry.event for entry in await log_of(run)]
            assert [type(event) for event in log].count(e.AttemptLost) == 1
            await assert_whole(engine, run)
            return [(event.item_attempt, event.final) for event in log if isinstance(event, e.ItemFailed)]

    tried.clear()
    endings.append(asyncio.Event())
    assert run_virtual(main()) == [(1, False), (2, False), (3, True)]
    assert tried == [1, 2, 3, 3]


@node
async def patient(xs: Stream[int], after: int) -> int:
    return len([x async for x in xs])


@node
async def hour() -> int:
    await asyncio.sleep(3_600)
    return 1


@pytest.mark.slow
def test_what_is_left_of_a_damaged_stream_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "again.db"

    @workflow
    def flow() -> Any:
        return patient(count(5), hour())

    async def begin(engine: Engine) -> None:
        await engine.start(flow, run_id="r")
        await asyncio.sleep(1)

    async def go_on(engine: Engine) -> None:
        with pytest.raises(RunFailed, match=r"of the 5 entries of the stream of 'count', 0 are kept"):
            await (await engine.get("r")).result()

    async def main() -> None:
        async with opened_world(f"sqlite:///{path}", tmp_path) as world:
            await killed_after(world, begin)
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("DELETE FROM run_inbox_messages WHERE node_id = 'count'")
            await in_another_process(world, go_on)

    run_virtual(main())
