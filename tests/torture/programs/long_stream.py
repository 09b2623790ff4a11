"""Runs a fast producer and a slower consumer over many items, and says how much memory it takes on the way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from perdure import Engine, Stream, Workflow, node, workflow
from tests.torture.programs import reporting

POINTS = 10
PAUSE_EVERY = 512


@node
async def numbers(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@node
def plain_numbers(n: int) -> Iterator[int]:
    yield from range(n)


@node(concurrency=64)
async def slow(x: int, n: int) -> int:
    if x % PAUSE_EVERY == 0:
        await asyncio.sleep(0.005)
    if x % (n // POINTS) == 0:
        _say_memory()
    return x + 1


@node
async def counted(xs: Stream[int]) -> int:
    count = 0
    async for _ in xs:
        count += 1
    return count


@workflow
def from_loop(n: int) -> None:
    slow.map(numbers(n), n=n)


@workflow
def from_thread(n: int) -> None:
    slow.map(plain_numbers(n), n=n)


@workflow
def fast_and_slow(n: int) -> int:
    """Of two readers one is fast, so that the producer does not wait for the other, which reads what it missed back."""
    source = numbers(n)
    slow.map(source, n=n)
    return counted(source)


WORKFLOWS: dict[str, Workflow[..., Any]] = {flow.name: flow for flow in (from_loop, from_thread, fast_and_slow)}


def _say_memory() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, peak = (int(status[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))
    reporting.say(said="memory", resident=resident, peak=peak)


async def main() -> None:
    store, name, n = sys.argv[1:]
    reporting.prepare()
    async with Engine(store) as engine:
        run = await engine.start(WORKFLOWS[name], run_id=name, n=int(n))
        await run.result()
        _say_memory()
        reporting.say(said="done")


if __name__ == "__main__":
    asyncio.run(main())
