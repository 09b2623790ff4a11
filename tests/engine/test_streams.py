"""What streams mean: one call per item, in order, with several outputs, joined, collected and read while they arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Context,
    Engine,
    EngineSettings,
    ItemFailure,
    Outputs,
    Stream,
    SyncContext,
    collect,
    failures,
    node,
    unless,
    when,
    workflow,
)
from perdure.engine.inspect import verify_run
from perdure.errors import InvalidGraph, RunFailed
from perdure.graph.declare import NodeType, Workflow
from perdure.journal import events as e

Execute = Callable[..., Awaitable[Any]]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    async with Engine(f"sqlite:///{tmp_path}/streams.db") as opened:
        yield opened


@pytest.fixture
def execute(engine: Engine) -> Execute:
    """Run a workflow to its end, prove that what is stored of it is whole, and return its result."""

    async def run(flow: Workflow[..., Any], **inputs: Any) -> Any:
        started = await engine.start(flow, **inputs)
        try:
            async with asyncio.timeout(20):
                return await started.result()
        finally:
            assert await verify_run(engine, started.run_id) == []

    return run


async def events_of(engine: Engine, run_id: str) -> list[e.AnyEvent]:
    return [entry.event async for entry in (await engine.get(run_id)).events()]


@node
def count(n: int) -> Iterator[int]:
    yield from range(n)


@node
async def count_async(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0)
        yield number


@node(concurrency=8)
async def square(x: int) -> int:
    await asyncio.sleep(0.001 * (x % 3))
    return x * x


@node(concurrency=4)
def plain_square(x: int) -> int:
    return x * x


@node
async def add(x: int, y: int) -> int:
    return x + y


@node
async def numbers_upto(n: int) -> list[int]:
    return list(range(n))


@pytest.mark.parametrize("source", [count, count_async])
@pytest.mark.parametrize("call", [square, plain_square])
async def test_a_node_is_called_for_each_item_and_what_it_gives_stays_in_order(
    source: NodeType[..., Any], call: NodeType[..., Any], execute: Execute
) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(call.map(source(n)))

    assert await execute(flow, n=50) == [x * x for x in range(50)]


async def test_a_stream_may_be_empty(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(square.map(count(n)))

    assert await execute(flow, n=0) == []


async def test_a_list_is_mapped_like_a_stream(execute: Execute) -> None:
    @workflow
    def flow(n: int, given: list[int]) -> Any:
        return {
            "returned": collect(square.map(numbers_upto(n))),
            "input": collect(square.map(given)),
            "constant": collect(square.map([1, 2, 3])),
        }

    assert await execute(flow, n=4, given=[7, 8]) == {
        "returned": [0, 1, 4, 9],
        "input": [49, 64],
        "constant": [1, 4, 9],
    }


async def test_single_values_are_held_for_every_item(execute: Execute) -> None:
    @workflow
    def flow(n: int, y: int) -> Any:
        return collect(add.map(count(n), y=y))

    assert await execute(flow, n=3, y=10) == [10, 11, 12]


async def test_streams_of_one_source_go_together(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        numbers = count(n)
        return collect(add.map(numbers, square.map(numbers)))

    assert await execute(flow, n=30) == [x + x * x for x in range(30)]


@node
async def halves(x: int) -> AsyncIterator[int]:
    """Give each number as often as it says."""
    for _ in range(x):
        yield x


async def test_what_a_mapped_generator_yields_is_one_stream_in_order(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(square.map(halves.map(count(n))))

    assert await execute(flow, n=5) == [1, 4, 4, 9, 9, 9, 16, 16, 16, 16]


class Parts(Outputs):
    even: int
    odd: int


@node
def parts(n: int) -> Iterator[Parts]:
    for number in range(n):
        yield Parts(even=number) if number % 2 == 0 else Parts(odd=number)


async def test_a_generator_may_have_several_outputs(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = parts(n)
        return [collect(square.map(given.even)), collect(given.odd)]

    assert await execute(flow, n=7) == [[0, 4, 16, 36], [1, 3, 5]]


class Quotient(Outputs):
    whole: int
    rest: int


@node
async def divide(x: int) -> Quotient:
    return Quotient(whole=x // 3, rest=x % 3) if x % 3 else Quotient(whole=x // 3)


async def test_a_mapped_node_may_leave_an_output_empty_for_an_item(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = divide.map(count(n))
        return [collect(given.whole), collect(given.rest), collect(add.map(given.whole, given.rest))]

    assert await execute(flow, n=6) == [[0, 0, 0, 1, 1, 1], [1, 2, 1, 2], [1, 2, 2, 3]]


async def test_streams_of_different_sources_are_zipped(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(add.map(count(n), count_async(n), join="zip"))

    assert await execute(flow, n=20) == [2 * x for x in range(20)]


async def test_a_zip_of_uneven_streams_fails_and_says_which(execute: Execute) -> None:
    @workflow
    def flow(n: int, m: int) -> Any:
        return collect(add.map(count(n), count_async(m), join="zip"))

    with pytest.raises(RunFailed, match="'x' has ended after 3 items and 'y' goes on"):
        await execute(flow, n=3, m=5)


@node
async def pair(x: int, y: int) -> tuple[int, int]:
    return x, y


async def test_the_latest_of_each_meets_every_further_item(execute: Execute) -> None:
    @workflow
    def flow(n: int, m: int) -> Any:
        return collect(pair.map(count(n), count_async(m), join="latest"))

    pairs = await execute(flow, n=4, m=3)

    assert len(pairs) == 4 + 3 - 1
    assert tuple(pairs[0]) == (0, 0)
    assert tuple(pairs[-1]) == (3, 2)
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(pairs)]
    assert set(steps) <= {(0, 1), (1, 0)}


@node
async def few_of(x: int) -> AsyncIterator[int]:
    if x % 50 == 0:
        yield x


@pytest.mark.slow
async def test_a_producer_goes_on_for_a_reader_for_whom_there_was_nothing(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(add.map(few_of.map(count(n)), y=zero()))

    assert await execute(flow, n=3_000) == list(range(0, 3_000, 50))


@node
async def keyed(ctx: Context, x: int, y: int) -> str:
    return f"{x} {y} {ctx.idempotency_key.rpartition('/')[2]}"


async def test_the_key_of_a_call_with_the_latest_items_tells_which_they_are(execute: Execute) -> None:
    @workflow
    def flow(n: int, m: int) -> Any:
        return collect(keyed.map(count(n), count_async(m), join="latest"))

    for line in await execute(flow, n=4, m=3):
        x, y, key = line.split()
        assert key == f"x{x}+y{y}"


@node
async def running_sum(xs: Stream[int]) -> AsyncIterator[int]:
    total = 0
    async for x in xs:
        total += x
        yield total


@node
def largest(xs: Stream[int]) -> int:
    return max(xs)


async def test_a_stream_is_read_while_it_arrives(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        sums = running_sum(count(n))
        return [collect(sums), largest(sums)]

    assert await execute(flow, n=5) == [[0, 1, 3, 6, 10], 10]


@node
async def first_of(xs: Stream[int]) -> int:
    async for x in xs:
        return x
    return -1


async def test_a_reader_may_stop_early(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return first_of(count(n))

    assert await execute(flow, n=5_000) == 0


@node
async def is_positive(x: int) -> bool:
    return x > 0


async def test_what_is_skipped_skips_those_that_read_its_stream(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        wanted = is_positive(n)
        with when(wanted):
            some = collect(square.map(count(n)))
        with unless(wanted):
            none = collect(square.map(count(n)))
        return {"some": some, "none": none}

    assert await execute(flow, n=2) == {"some": [0, 1], "none": None}


lived: list[str] = []


@node(concurrency=2)
class Model:
    factor: int

    def initialize(self) -> None:
        lived.append("initialize")

    def pre_process(self) -> None:
        lived.append("pre_process")

    async def process(self, x: int) -> int:
        lived.append("process")
        return x * self.factor

    def finalize(self) -> None:
        lived.append("finalize")


async def test_a_class_lives_once_for_all_items(execute: Execute) -> None:
    lived.clear()

    @workflow
    def flow(n: int) -> Any:
        return collect(Model.map(count(n), factor=3))

    assert await execute(flow, n=4) == [0, 3, 6, 9]
    assert lived == ["initialize", "pre_process", *["process"] * 4, "finalize"]


at_once = {"now": 0, "most": 0}


@node(concurrency=3)
async def busy(x: int) -> int:
    at_once["now"] += 1
    at_once["most"] = max(at_once.values())
    await asyncio.sleep(0.005)
    at_once["now"] -= 1
    return x


async def test_no_more_calls_are_made_at_once_than_allowed(execute: Execute) -> None:
    at_once.update(now=0, most=0)

    @workflow
    def flow(n: int) -> Any:
        return collect(busy.map(count(n)))

    assert await execute(flow, n=20) == list(range(20))
    assert at_once["most"] == 3


@node(concurrency=4, ordered=False)
async def slow_first(x: int) -> int:
    await asyncio.sleep(0.2 if x == 0 else 0)
    return x


async def test_an_unordered_stream_is_in_the_order_in_which_items_are_done(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(square.map(slow_first.map(count(n))))

    squares = await execute(flow, n=20)
    assert sorted(squares) == [x * x for x in range(20)]
    assert squares[-1] == 0

    @workflow
    def direct(n: int) -> Any:
        return collect(slow_first.map(count(n)))

    assert (await execute(direct, n=20))[-1] == 0


# What goes wrong


tries: dict[int, int] = {}


@node(retries=2, backoff=0, concurrency=2)
async def shaky(ctx: Context, x: int) -> int:
    tries[x] = tries.get(x, 0) + 1
    if x == 3 and ctx.attempt < 3:
        raise ConnectionError("busy")
    return x


async def test_an_item_that_fails_is_tried_again_by_itself(execute: Execute) -> None:
    tries.clear()

    @workflow
    def flow(n: int) -> Any:
        return collect(shaky.map(count(n)))

    assert await execute(flow, n=6) == list(range(6))
    assert tries == {0: 1, 1: 1, 2: 1, 3: 3, 4: 1, 5: 1}


@node(concurrency=2)
async def picky(x: int) -> int:
    if x == 3:
        raise ValueError("three is wrong")
    return x


async def test_an_item_that_fails_for_good_fails_its_node(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(picky.map(count(n)))

    with pytest.raises(RunFailed, match="item 3: three is wrong"):
        await execute(flow, n=6)


@node(on_item_error="skip")
async def lenient(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is wrong")
    return x


async def test_items_that_fail_may_be_left_out(engine: Engine, execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        kept = lenient.map(count(n))
        return [collect(kept), collect(square.map(kept))]

    assert await execute(flow, n=7) == [[1, 2, 4, 5], [1, 4, 16, 25]]
    (run,) = await engine.list()
    failed = [event for event in await events_of(engine, run.run_id) if isinstance(event, e.ItemFailed)]
    assert [(event.position, event.error.message) for event in failed] == [(x, f"{x} is wrong") for x in (0, 3, 6)]


@node(on_item_error="collect", retries=1, backoff=0)
async def sorted_out(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is wrong")
    return x


@node
async def anything(x: Any) -> str:
    return type(x).__name__


async def test_failures_can_be_read_whatever_takes_them(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(anything.map(failures(sorted_out.map(count(n)))))

    assert await execute(flow, n=4) == ["ItemFailure", "ItemFailure"]


@node
async def told(failure: ItemFailure) -> str:
    return f"{failure.position}: {failure.item} {failure.error} {failure.message} {failure.attempts}"


async def test_items_that_fail_may_be_given_as_a_stream_of_their_own(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        given = sorted_out.map(count(n))
        return {"right": collect(given), "told": collect(told.map(failures(given))), "wrong": collect(failures(given))}

    result = await execute(flow, n=5)

    assert result["right"] == [1, 2, 4]
    assert result["told"] == ["0: 0 ValueError 0 is wrong 2", "3: 3 ValueError 3 is wrong 2"]
    assert [failure.position for failure in result["wrong"]] == [0, 3]


async def test_failures_of_a_node_that_does_not_collect_them_cannot_be_asked_for() -> None:
    def flow(n: int) -> Any:
        return collect(failures(square.map(count(n))))

    with pytest.raises(InvalidGraph, match="has no output 'errors'"):
        _ = workflow(flow).graph


class Mood(Enum):
    GOOD = 1
    BAD = 0

    def __bool__(self) -> bool:
        return self is Mood.GOOD


@node
async def mood_of(x: int) -> Mood:
    return Mood.GOOD if x % 2 == 0 else Mood.BAD


@node
async def is_even(x: int) -> bool:
    return x % 2 == 0


@pytest.mark.parametrize("judge", [is_even, mood_of])
async def test_a_condition_that_is_a_stream_decides_item_by_item(judge: NodeType[..., Any], execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        numbers = count(n)
        even = judge.map(numbers)
        with when(even):
            squares = square.map(numbers)
        with unless(even):
            plain = busy.map(numbers)
        return [collect(squares), collect(plain)]

    assert await execute(flow, n=7) == [[0, 4, 16, 36], [1, 3, 5]]


async def test_a_condition_of_other_items_is_refused() -> None:
    def flow(n: int) -> Any:
        with when(is_even.map(count(n))):
            squares = square.map(count(n))
        return collect(squares)

    with pytest.raises(InvalidGraph, match="do not come from one source item by item"):
        _ = workflow(flow).graph


@node(timeout=0.05)
async def patient(x: int) -> int:
    await asyncio.sleep(5 if x == 2 else 0)
    return x


async def test_time_is_counted_for_each_item(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(patient.map(count(n)))

    with pytest.raises(RunFailed, match=r"item 2: the attempt took longer than 0.05 s"):
        await execute(flow, n=4)


@node
def broken_source(n: int) -> Iterator[int]:
    yield from range(n)
    raise ValueError("the source broke")


seen: list[list[int]] = []


@node
async def see(xs: list[int]) -> int:
    seen.append(xs)
    return len(xs)


@pytest.mark.parametrize("on_failure", ["stop", "finish"])
async def test_a_stream_that_is_cut_off_is_never_taken_for_a_whole_one(engine: Engine, on_failure: Any) -> None:
    seen.clear()

    @workflow
    def flow(n: int) -> Any:
        numbers = broken_source(n)
        return [see(collect(square.map(numbers))), first_of(running_sum(numbers))]

    run = await engine.start(flow, n=5, on_failure=on_failure)
    with pytest.raises(RunFailed, match="the source broke"):
        await run.result()

    assert seen == []
    assert await verify_run(engine, run.run_id) == []
    completed = {event.node_id for event in await events_of(engine, run.run_id) if isinstance(event, e.NodeCompleted)}
    assert "square" not in completed


# How much is in memory


produced: list[int] = []


@node
def eager(n: int) -> Iterator[int]:
    for number in range(n):
        produced.append(number)
        yield number


@node(concurrency=64)
async def slow(ctx: Context, x: int) -> int:
    if x == 0:
        await asyncio.sleep(0.5)
        produced.append(-1)
    return x


async def test_a_producer_waits_for_a_slow_reader(execute: Execute) -> None:
    produced.clear()

    @workflow
    def flow(n: int) -> Any:
        slow.map(eager(n))

    await execute(flow, n=20_000)

    assert produced.index(-1) < 5_000
    assert len(produced) == 20_001


called: list[int] = []


@node(concurrency=4)
async def quick(x: int) -> int:
    called.append(x)
    return x


@node
async def slow_reader(xs: Stream[int]) -> int:
    number = 0
    async for _ in xs:
        number += 1
        if number == 1:
            await asyncio.sleep(0.5)
            called.append(-1)
    return number


@pytest.mark.slow
async def test_a_mapped_node_waits_for_a_slow_reader_too(execute: Execute) -> None:
    called.clear()

    @workflow
    def flow(n: int) -> Any:
        return slow_reader(quick.map(count_async(n)))

    assert await execute(flow, n=8_000) == 8_000
    assert called.index(-1) < 3_000


@node
async def batches(xs: Stream[int], size: int) -> AsyncIterator[list[int]]:
    batch: list[int] = []
    async for x in xs:
        batch.append(x)
        if len(batch) == size:
            yield batch
            batch = []


@node
async def in_all(whole: list[int], part: int) -> int:
    return len(whole) + part


async def test_a_diamond_does_not_deadlock_however_much_one_arm_holds_back(execute: Execute) -> None:
    @workflow
    def flow(n: int, size: int) -> Any:
        numbers = count(n)
        return collect(in_all.map(batches(numbers, size), first_ones(numbers, size), join="zip"))

    assert await execute(flow, n=6_000, size=3_000) == [3_000, 6_000]


@node
async def first_ones(xs: Stream[int], size: int) -> AsyncIterator[int]:
    async for x in xs:
        if x % size == 0:
            yield x


@node
def steps_inside(ctx: SyncContext, x: int) -> int:
    return ctx.step(abs, -x) + ctx.step(abs, 1)


async def test_steps_of_different_items_are_told_apart(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(steps_inside.map(count(n)))

    assert await execute(flow, n=3) == [1, 2, 3]


@node
async def saves(ctx: Context, x: int) -> int:
    await ctx.checkpoint(x)
    return x


async def test_a_checkpoint_inside_an_item_is_refused(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(saves.map(count(n)))

    with pytest.raises(RunFailed, match=r"called once per item.*Use ctx\.step"):
        await execute(flow, n=3)


# What nobody reads


closed: list[str] = []


@node
async def forever() -> AsyncIterator[int]:
    try:
        for number in itertools.count():
            yield number
    finally:
        closed.append("forever")


@node
def plain_forever() -> Iterator[int]:
    try:
        yield from itertools.count()
    finally:
        closed.append("plain_forever")


@node
async def take(xs: Stream[int], n: int) -> list[int]:
    return [x async for _, x in _numbered(xs, n)]


async def _numbered(xs: Stream[int], n: int) -> AsyncIterator[tuple[int, int]]:
    number = 0
    async for x in xs:
        yield number, x
        number += 1
        if number == n:
            return


@pytest.mark.parametrize("source", [forever, plain_forever])
async def test_a_generator_that_nobody_reads_any_more_is_closed(
    source: NodeType[..., Any], engine: Engine, execute: Execute
) -> None:
    closed.clear()

    @workflow
    def flow(n: int) -> Any:
        return take(busy.map(source()), n)

    assert await execute(flow, n=3) == [0, 1, 2]
    assert closed == [source.label]
    (run,) = await engine.list()
    ends = [event for event in await events_of(engine, run.run_id) if isinstance(event, e.OutboxClosed)]
    assert [(event.node_id, event.unread) for event in ends] == [("busy", True), (source.label, True)]


# What must happen once


@node(once=True)
async def pay(x: int) -> int:
    return x


@node(once=True)
async def pay_all(xs: Stream[int]) -> int:
    return sum([x async for x in xs])


@node(replay="hold")
def held(n: int) -> Iterator[int]:
    yield from range(n)


async def test_what_must_run_once_is_not_called_per_item() -> None:
    def flow(n: int) -> Any:
        return collect(pay.map(count(n)))

    with pytest.raises(InvalidGraph, match=r"once=True, which is for whole nodes.*ctx\.idempotency_key"):
        _ = workflow(flow).graph


async def test_what_must_run_once_does_not_read_a_stream_that_may_begin_again(execute: Execute) -> None:
    def fickle(n: int) -> Any:
        return pay_all(square.map(count(n)))

    @workflow
    def steady(n: int) -> Any:
        return pay_all(square.map(held(n)))

    with pytest.raises(InvalidGraph, match=r"stream of 'count' that may begin again.*replay='hold'"):
        _ = workflow(fickle).graph
    assert await execute(steady, n=3) == 5


@node(replay="hold", retries=1, backoff=0)
async def fewer(ctx: Context) -> AsyncIterator[int]:
    for number in range(10 if ctx.attempt == 1 else 4):
        await asyncio.sleep(0.002)
        yield number * ctx.attempt
    if ctx.attempt == 1:
        raise ConnectionError("lost")


async def test_what_was_held_back_and_lost_is_as_if_it_had_never_been(execute: Execute) -> None:
    @workflow
    def flow() -> Any:
        given = fewer()
        return [collect(given), collect(square.map(given))]

    assert await execute(flow) == [[0, 2, 4, 6], [0, 4, 16, 36]]


@node(replay="hold", retries=1, backoff=0)
async def saved(ctx: Context) -> AsyncIterator[str]:
    for number in range(ctx.restored or 0, 6):
        yield f"{number} of {ctx.attempt}"
        if number == 2:
            await ctx.checkpoint(3)
        if number == 4 and ctx.attempt == 1:
            raise ConnectionError("lost")


async def test_what_was_held_back_since_a_checkpoint_is_taken_back_with_its_attempt(execute: Execute) -> None:
    @workflow
    def flow() -> Any:
        return collect(shout.map(saved()))

    assert await execute(flow) == [f"{n} OF {1 if n < 3 else 2}" for n in range(6)]


@node
async def shout(text: str) -> str:
    return text.upper()


@node(retries=1, backoff=0)
async def fickle(ctx: Context, gate: str) -> AsyncIterator[str]:
    yield f"first of {ctx.attempt}"
    await asyncio.sleep(0.3)
    if ctx.attempt == 1:
        raise ConnectionError("lost")
    yield "last"


@node
async def head(texts: Stream[str]) -> str:
    async for text in texts:
        return text
    return ""


@node
async def both(x: int, text: str) -> str:
    return f"{x} {text}"


async def test_a_node_that_begins_again_on_a_branch_finds_the_items_that_it_has_read(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        told = fickle("")
        return [collect(both.map(count(n), text=head(told))), collect(told)]

    assert await execute(flow, n=3) == [[f"{x} first of 2" for x in range(3)], ["first of 2", "last"]]


@node
async def take_as_many(xs: Stream[int], text: str) -> int:
    wanted = 2 if text.endswith("1") else 6
    number = 0
    async for _ in xs:
        number += 1
        if number == wanted:
            break
    return number


async def test_a_stream_that_was_ended_unread_begins_again_with_its_reader(execute: Execute) -> None:
    @workflow
    def flow() -> Any:
        told = fickle("")
        return [take_as_many(forever(), head(told)), collect(told)]

    assert await execute(flow) == [6, ["first of 2", "last"]]


paid: list[str] = []


@node(once=True)
async def pay_for(text: str) -> str:
    paid.append(text)
    return text


async def test_what_must_run_once_is_not_begun_again_on_a_branch(execute: Execute) -> None:
    paid.clear()

    @workflow
    def flow() -> Any:
        told = fickle("")
        return [pay_for(head(told)), collect(told)]

    with pytest.raises(RunFailed, match="'pay_for', which must run at most once, has worked with that"):
        await execute(flow)
    assert paid == ["first of 1"]


@node(concurrency=4)
async def jumbled(x: int) -> int:
    await asyncio.sleep(0.001 * (x * 7 % 5))
    return x


@node
async def late_total(xs: Stream[int], start: int) -> int:
    return start + sum([x async for x in xs])


@node
async def zero() -> int:
    await asyncio.sleep(0.05)
    return 0


async def test_a_reader_that_begins_late_misses_nothing_of_what_is_recorded_out_of_order(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return late_total(jumbled.map(count(n)), zero())

    for _ in range(5):
        assert await execute(flow, n=200) == sum(range(200))


@node(timeout=0.3)
class Patient:
    async def process(self, x: int) -> int:
        await asyncio.sleep(0.1)
        return x


async def test_the_time_of_a_class_is_that_of_each_item(execute: Execute) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(Patient.map(count(n)))

    assert await execute(flow, n=5) == list(range(5))


# When the engine stops


@node(concurrency=2)
async def unhurried(x: int) -> int:
    await asyncio.sleep(0.02)
    return x


@pytest.mark.parametrize("source", [forever, plain_forever])
async def test_an_engine_that_stops_begins_with_no_further_item(source: NodeType[..., Any], tmp_path: Path) -> None:
    @workflow
    def flow(n: int) -> Any:
        return take(unhurried.map(source()), n)

    async with asyncio.timeout(5):
        async with Engine(f"sqlite:///{tmp_path}/stopped.db") as engine:
            run = await engine.start(flow, n=30)
            await asyncio.sleep(0.2)
    async with Engine(f"sqlite:///{tmp_path}/stopped.db") as engine:
        assert await (await engine.get(run.run_id)).result() == list(range(30))
        assert await verify_run(engine, run.run_id) == []


@node(retries=2, backoff=0.01)
def plain_retried(ctx: SyncContext, n: int) -> Iterator[int]:
    for number in range(n):
        if number == 3 and ctx.attempt == 1:
            raise ConnectionError("lost")
        yield number


@node
def plain_total(xs: Stream[int]) -> int:
    return sum(xs)


async def test_one_thread_is_enough_for_bodies_that_wait_for_each_other(tmp_path: Path) -> None:
    @workflow
    def flow(n: int) -> Any:
        return plain_total(plain_square.map(plain_square.map(plain_retried(n))))

    async with (
        asyncio.timeout(10),
        Engine(f"sqlite:///{tmp_path}/few.db", settings=EngineSettings(threads=1)) as engine,
    ):
        runs = [await engine.start(flow, n=10) for _ in range(3)]
        assert [await run.result() for run in runs] == [sum(x**4 for x in range(10))] * 3


async def test_a_stream_that_is_whole_is_not_made_again_after_the_engine_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.streams.outbox.MAX_KEPT_BYTES", 0)
    made: list[int] = []
    is_held = asyncio.Event()

    async def held_up(self: Any, outbox: Any) -> Any:
        is_held.set()
        await asyncio.Event().wait()

    @node
    async def source(n: int) -> AsyncIterator[int]:
        made.append(n)
        for number in range(n):
            yield number

    @workflow
    def flow(n: int) -> Any:
        return collect(source(n))

    url = f"sqlite:///{tmp_path}/whole.db"
    with monkeypatch.context() as patch:
        patch.setattr("perdure.engine.driving.actor.Actor._whole", held_up)
        async with Engine(url, settings=EngineSettings(grace_seconds=0.1)) as engine:
            run = await engine.start(flow, n=5)
            await is_held.wait()
    async with Engine(url) as engine:
        again = await engine.get(run.run_id)
        assert await again.result() == list(range(5))
        assert await verify_run(engine, run.run_id) == []
    assert made == [5]


async def test_places_of_calls_are_given_back_whatever_becomes_of_them(tmp_path: Path) -> None:
    @workflow
    def flow(n: int) -> Any:
        return collect(busy.map(count(n)))

    settings = EngineSettings(loop_bodies=2)
    async with asyncio.timeout(20), Engine(f"sqlite:///{tmp_path}/places.db", settings=settings) as engine:
        for number in range(30):
            run = await engine.start(flow, n=50)
            await asyncio.sleep(0.002 * (number % 10))
            await run.cancel()
            await run.wait()
        assert await (await engine.start(flow, n=4)).result() == [0, 1, 2, 3]


@node
def texts_of_sizes(sizes: list[int]) -> Iterator[dict[str, str]]:
    for size in sizes:
        yield {"text": "x" * size}


@node
async def sizes_while_they_arrive(texts: Stream[dict[str, str]]) -> list[int]:
    return [len(text["text"]) async for text in texts]


@node
def sizes_in_a_thread(texts: Stream[dict[str, str]]) -> list[int]:
    return [len(text["text"]) for text in texts]


@node
async def sizes_of_parts(texts: Stream[str]) -> list[int]:
    return [len(text) async for text in texts]


@workflow
def large_items(sizes: list[int]) -> Any:
    texts = texts_of_sizes(sizes)
    return {"loop": sizes_while_they_arrive(texts), "thread": sizes_in_a_thread(texts)}


@workflow
def large_parts(sizes: list[int]) -> Any:
    return sizes_of_parts(texts_of_sizes(sizes)["text"])


async def test_items_that_are_kept_as_blobs_are_read_while_they_arrive(execute: Execute) -> None:
    sizes = [1, 300_000, 2, 3, 400_000, 300_000, 4]

    assert await execute(large_items, sizes=sizes) == {"loop": sizes, "thread": sizes}
    assert await execute(large_parts, sizes=sizes) == sizes


@node(concurrency=2)
async def failing_together(x: int) -> int:
    begun_together.append(x)
    await together[0].wait()
    if x == 0:
        raise ValueError("the first one fails")
    return x


@workflow
def items_failing_together(xs: list[int]) -> Any:
    return collect(failing_together.map(xs))


begun_together: list[int] = []
together: list[asyncio.Event] = []


async def test_no_further_call_is_made_once_an_item_has_failed_the_node(store_url: str) -> None:
    begun_together.clear()
    together[:] = [asyncio.Event()]
    async with Engine(store_url) as engine:
        run = await engine.start(items_failing_together, xs=list(range(6)))
        while len(begun_together) < 2:
            await asyncio.sleep(0.01)
        together[0].set()
        with pytest.raises(RunFailed):
            await run.result()

        assert begun_together == [0, 1]


@node(concurrency=2)
async def cancels_itself(x: int, how: str) -> int:
    if x == 1:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "raises":
            raise ValueError("after it has cancelled itself")
        if how == "waits":
            await asyncio.sleep(0)
    return x


@workflow
def items_that_cancel(xs: list[int], how: str) -> Any:
    return collect(cancels_itself.map(xs, how=how))


async def test_a_call_that_cancels_its_own_task_has_come_to_what_it_returned_or_raised(execute: Execute) -> None:
    async with asyncio.timeout(60):
        assert await execute(items_that_cancel, xs=[0, 1, 2], how="returns") == [0, 1, 2]
        with pytest.raises(RunFailed, match="item 1: after it has cancelled itself"):
            await execute(items_that_cancel, xs=[0, 1, 2], how="raises")
        with pytest.raises(RunFailed, match="item 1"):
            await execute(items_that_cancel, xs=[0, 1, 2], how="waits")
