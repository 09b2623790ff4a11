"""Reference workflows with streams, as those of `graphs` are without: of every way in which items can flow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from perdure.dispatch.context import Context, SyncContext
from perdure.graph.declare import Backoff, Outputs, Stream, node, workflow
from perdure.graph.trace import collect
from perdure.journal.states import RunStatus
from perdure.testing.graphs import TICK_SECONDS, Reference
from perdure.testing.ledger import effect

# Bodies


@node
async def numbers(ctx: Context, upto: int, ticks: int = 1) -> AsyncIterator[int]:
    effect(ctx)
    for number in range(upto):
        await asyncio.sleep(ticks * TICK_SECONDS)
        yield number


@node
def plain_numbers(ctx: SyncContext, upto: int) -> Iterator[int]:
    effect(ctx)
    yield from range(upto)


@node(concurrency=2)
async def square(ctx: Context, x: int) -> int:
    """Take longer for some than for others, so that they overtake each other."""
    effect(ctx)
    await asyncio.sleep((x * 7 % 3 + 1) * TICK_SECONDS)
    return x * x


@node
def plain_square(ctx: SyncContext, x: int) -> int:
    effect(ctx)
    return x * x


@node(concurrency=3, ordered=False)
async def unordered_square(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep((x * 5 % 4 + 1) * TICK_SECONDS)
    return x * x


@node(concurrency=2)
async def upto_it(ctx: Context, x: int) -> AsyncIterator[int]:
    effect(ctx)
    for number in range(x):
        await asyncio.sleep(TICK_SECONDS)
        yield number


@node
async def add(ctx: Context, x: int, y: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return x + y


@node
async def total(ctx: Context, xs: list[int]) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return sum((position + 1) * x for position, x in enumerate(xs))


@node
async def total_of_any_order(ctx: Context, xs: list[int]) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return sum(xs)


@node
async def length(ctx: Context, xs: list[int]) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return len(xs)


@node
async def sums(ctx: Context, xs: Stream[int]) -> AsyncIterator[int]:
    effect(ctx)
    so_far = 0
    async for x in xs:
        so_far += x
        await asyncio.sleep(TICK_SECONDS)
        yield so_far


@node
async def careful_sums(ctx: Context, xs: Stream[int]) -> AsyncIterator[int]:
    """Go on from the last sum that was saved."""
    so_far: int = ctx.restored or 0
    effect(ctx)
    async for x in xs:
        effect(ctx, part=str(x))
        so_far += x
        yield so_far
        await ctx.checkpoint(so_far)


@node
async def first_two(ctx: Context, xs: Stream[int]) -> int:
    effect(ctx)
    found: list[int] = []
    async for x in xs:
        found.append(x)
        if len(found) == 2:
            break
    return sum(found)


@node
async def largest(ctx: Context, xs: Stream[int]) -> int:
    effect(ctx)
    return max([x async for x in xs])


@node(concurrency=2, retries=3, backoff=Backoff(jitter=False))
async def unsteady(ctx: Context, x: int) -> int:
    """Fail twice for one item."""
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    if x == 2 and ctx.attempt <= 2:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return x + 10


@node(concurrency=2, on_item_error="skip")
async def lenient(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    if x % 3 == 1:
        raise ValueError(f"{x} is wrong")
    return x


@node
async def counted(ctx: Context, upto: int) -> AsyncIterator[int]:
    """Go on from the last number that was saved."""
    start: int = ctx.restored or 0
    effect(ctx)
    for number in range(start, upto):
        effect(ctx, part=str(number))
        yield number
        await ctx.checkpoint(number + 1)


@node
async def counted_by_threes(ctx: Context, upto: int) -> AsyncIterator[int]:
    """Save only every third number, so that a later attempt gives some numbers again that are recorded."""
    start: int = ctx.restored or 0
    effect(ctx)
    for number in range(start, upto):
        await asyncio.sleep(TICK_SECONDS)
        yield number
        if number % 3 == 2:
            await ctx.checkpoint(number + 1)


@node(replay="hold")
async def held_numbers(ctx: Context, upto: int) -> AsyncIterator[int]:
    """Hold everything back until all of it is there."""
    effect(ctx)
    for number in range(upto):
        await asyncio.sleep(TICK_SECONDS)
        yield number


@node
async def breaking(ctx: Context, upto: int) -> AsyncIterator[int]:
    effect(ctx)
    for number in range(upto):
        await asyncio.sleep(TICK_SECONDS)
        yield number
    raise ValueError("the source broke")


@node
async def large(ctx: Context, x: int) -> str:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return f"{x:08}" * 1_000


@node
async def lengths(ctx: Context, texts: list[str]) -> int:
    effect(ctx)
    return sum(map(len, texts))


class Parts(Outputs):
    even: int
    odd: int


@node
async def parted(ctx: Context, upto: int) -> AsyncIterator[Parts]:
    effect(ctx)
    for number in range(upto):
        await asyncio.sleep(TICK_SECONDS)
        yield Parts(even=number) if number % 2 == 0 else Parts(odd=number)


# Workflows


@workflow
def mapped(n: int) -> int:
    return total(collect(square.map(numbers(n))))


@workflow
def mapped_plain(n: int) -> int:
    return total(collect(plain_square.map(plain_numbers(n))))


@workflow
def mapped_list(xs: list[int]) -> list[int]:
    return collect(square.map(xs))


@workflow
def unordered(n: int) -> int:
    return total_of_any_order(collect(square.map(unordered_square.map(numbers(n)))))


@workflow
def nested(n: int) -> int:
    return total(collect(square.map(upto_it.map(numbers(n)))))


@workflow
def zipped(n: int) -> int:
    left, right = numbers.named("left")(n, ticks=1), numbers.named("right")(n, ticks=2)
    return total(collect(add.map(left, right, join="zip")))


@workflow
def latest(n: int) -> int:
    left, right = numbers.named("left")(n, ticks=1), numbers.named("right")(n, ticks=2)
    return length(collect(add.map(left, right, join="latest")))


@workflow
def stream_diamond(n: int) -> int:
    source = numbers(n)
    return total(collect(add.map(source, square.map(source))))


@workflow
def read_whole(n: int) -> int:
    return largest(sums(numbers(n)))


@workflow
def read_partly(n: int) -> int:
    return first_two(square.map(numbers(n, ticks=2)))


@workflow
def read_carefully(n: int) -> int:
    return total(collect(square.map(careful_sums(numbers(n)))))


@workflow
def item_retries(n: int) -> int:
    return total(collect(unsteady.map(numbers(n))))


@workflow
def item_skips(n: int) -> int:
    return total(collect(square.map(lenient.map(numbers(n)))))


@workflow
def checkpointing(n: int) -> int:
    return total(collect(square.map(counted(n))))


@workflow
def checkpointing_rarely(n: int) -> int:
    return total(collect(square.map(counted_by_threes(n))))


@workflow
def held(n: int) -> int:
    return total(collect(square.map(held_numbers(n))))


@workflow
def cut_off(n: int) -> int:
    return total(collect(square.map(breaking(n))))


@workflow
def large_items(n: int) -> int:
    return lengths(collect(large.map(numbers(n))))


@workflow
def several_outputs(n: int) -> int:
    parts = parted(n)
    return add.named("both")(
        total.named("evens")(collect(square.map(parts.even))), total.named("odds")(collect(parts.odd))
    )


def stream_references() -> Sequence[Reference]:
    """Return every reference workflow with streams."""
    return (
        Reference(workflow=mapped, inputs={"n": 5}),
        Reference(workflow=mapped_plain, inputs={"n": 4}),
        Reference(workflow=mapped_list, inputs={"xs": [1, 2, 3, 4]}),
        Reference(workflow=unordered, inputs={"n": 5}),
        Reference(workflow=nested, inputs={"n": 4}),
        Reference(workflow=zipped, inputs={"n": 3}),
        Reference(workflow=latest, inputs={"n": 3}),
        Reference(workflow=stream_diamond, inputs={"n": 4}),
        Reference(workflow=read_whole, inputs={"n": 4}),
        Reference(workflow=read_partly, inputs={"n": 6}),
        Reference(workflow=read_carefully, inputs={"n": 3}),
        Reference(workflow=item_retries, inputs={"n": 4}),
        Reference(workflow=item_skips, inputs={"n": 5}),
        Reference(workflow=checkpointing, inputs={"n": 3}),
        Reference(workflow=checkpointing_rarely, inputs={"n": 7}),
        Reference(workflow=held, inputs={"n": 3}),
        Reference(
            workflow=cut_off,
            inputs={"n": 3},
            status=RunStatus.FAILED,
            certain=frozenset(("breaking",)),
            possible=frozenset(("square",)),
        ),
        Reference(workflow=large_items, inputs={"n": 3}),
        Reference(workflow=several_outputs, inputs={"n": 4}),
    )
