"""Starts or continues one run of a workflow with streams, as a user's script would, and says its result.

Each call for an item writes a line to a ledger outside the database before it does anything else. A line that was written
survives the end of the process; nothing here survives the end of the machine, so that it is not synced.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from perdure import Context, Stream, SyncContext, Workflow, collect, node, workflow
from tests.torture.programs import effects, reporting

CONCURRENCY = 8
MILLIS = 4


class Called(NamedTuple):
    """A body was called for an item."""

    node_id: str
    item: int
    attempt: int
    key: str


def record(context: Any) -> None:
    """Write down that a body is called for an item."""
    line = f"{context.node_id} {context.item} {context.attempt} {context.idempotency_key}\n"
    file = os.open(os.environ[effects.VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def calls_in(text: str) -> list[Called]:
    """Return what a ledger says."""
    lines = [line.split(" ") for line in text.splitlines()]
    return [Called(node_id, int(item), int(attempt), key) for node_id, item, attempt, key in lines]


# Bodies


@node
async def numbers(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@node
def plain_numbers(n: int) -> Iterator[int]:
    yield from range(n)


@node(concurrency=CONCURRENCY)
async def cube(ctx: Context, x: int) -> int:
    """Take longer for some than for others, so that they overtake each other."""
    record(ctx)
    await asyncio.sleep((x * 7 % 5 + 1) * MILLIS / 3_000)
    return x**3


@node(concurrency=CONCURRENCY)
def plain_cube(ctx: SyncContext, x: int) -> int:
    record(ctx)
    time.sleep((x * 7 % 5 + 1) * MILLIS / 3_000)
    return x**3


@node(concurrency=4)
async def parts_of(ctx: Context, x: int) -> AsyncIterator[int]:
    record(ctx)
    await asyncio.sleep(MILLIS / 1_000)
    for part in range(x % 3):
        yield x * 10 + part


@node(concurrency=4, ordered=False)
async def hasty(ctx: Context, x: int) -> int:
    record(ctx)
    await asyncio.sleep((x * 5 % 7) * MILLIS / 3_000)
    return x


@node(concurrency=2)
def added(ctx: SyncContext, x: int, y: int) -> int:
    record(ctx)
    time.sleep(MILLIS / 2_000)
    return x + y


@node
async def sums(xs: Stream[int]) -> AsyncIterator[int]:
    so_far = 0
    async for x in xs:
        so_far = (so_far * 3 + x) % 1_000_003
        yield so_far


@node
async def saved_sums(ctx: Context, xs: Stream[int]) -> AsyncIterator[int]:
    """Go on from the last sum that was saved."""
    so_far, count = ctx.restored or (0, 0)
    async for x in xs:
        so_far = (so_far * 5 + x) % 1_000_003
        count += 1
        yield so_far
        if count % 20 == 0:
            await ctx.checkpoint([so_far, count])


@node
async def total(xs: list[int]) -> int:
    return sum(xs)


# Workflows


@workflow
def async_map(n: int) -> list[int]:
    return collect(cube.map(numbers(n)))


@workflow
def thread_map(n: int) -> list[int]:
    return collect(plain_cube.map(numbers(n)))


@workflow
def thread_generator(n: int) -> list[int]:
    return collect(cube.map(plain_numbers(n)))


@workflow
def tangle(n: int) -> list[Any]:
    """A nested map, a zip of what comes of two sources, and readers, one of which saves how far it is."""
    source = numbers(n)
    nested = parts_of.map(source)
    zipped = added.map(cube.map(source), plain_cube.map(plain_numbers(n)), join="zip")
    return [
        collect(nested),
        collect(cube.named("cube_of_parts").map(nested)),
        collect(saved_sums(zipped)),
        collect(sums(source)),
        total(collect(hasty.map(source))),
    ]


WORKFLOWS: dict[str, Workflow[..., Any]] = {
    flow.name: flow for flow in (async_map, thread_map, thread_generator, tangle)
}


def result_of(name: str, n: int) -> list[Any]:
    """Return what a run comes to that nobody has disturbed."""
    cubes = [x**3 for x in range(n)]
    if name != "tangle":
        return cubes
    nested = [x * 10 + part for x in range(n) for part in range(x % 3)]
    return [
        nested,
        [x**3 for x in nested],
        list(_folded([2 * x for x in cubes], 5)),
        list(_folded(range(n), 3)),
        sum(range(n)),
    ]


def _folded(xs: Any, factor: int) -> Iterator[int]:
    so_far = 0
    for x in xs:
        so_far = (so_far * factor + x) % 1_000_003
        yield so_far


def main() -> None:
    store, run_id, name, n = sys.argv[1:]
    reporting.prepare()
    reporting.say(said="result", result=WORKFLOWS[name].options(store=store, run_id=run_id).run(n=int(n)))


if __name__ == "__main__":
    main()
