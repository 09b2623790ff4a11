"""The workflows of the torture tests. Their results can be told in advance, so that nothing has to be run twice to compare."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure import Context, SyncContext, Workflow, node, workflow
from tests.torture.programs import effects, pausing

MODULUS = 1_000_003


class Wobble(Exception):
    """What a first attempt fails with."""


def blended(parts: Sequence[int], bias: int) -> int:
    """Return what every node here computes: depends on each part and on their order."""
    total = bias
    for part in parts:
        total = (total * 31 + part) % MODULUS
    return total


@node
async def blend(ctx: Context, parts: list[int], bias: int, millis: int) -> int:
    effects.record(ctx)
    await asyncio.sleep(millis / 1_000)
    return blended(parts, bias)


@node
def blend_in_thread(ctx: SyncContext, parts: list[int], bias: int, millis: int) -> int:
    effects.record(ctx)
    time.sleep(millis / 1_000)
    return blended(parts, bias)


@node(retries=2, backoff=0.02)
async def blend_at_second_try(ctx: Context, parts: list[int], bias: int, millis: int) -> int:
    effects.record(ctx)
    await asyncio.sleep(millis / 1_000)
    if ctx.attempt == 1:
        raise Wobble
    return blended(parts, bias)


class Knot(NamedTuple):
    """A node of a web: what it runs, which earlier nodes it takes from, and what it adds."""

    kind: int
    parents: tuple[int, ...]
    bias: int
    millis: int


class Web:
    """A random graph with fan-out and fan-in, of bodies on the loop and in threads, some of which fail at first.

    Each node takes from a few of the `width` nodes before it; the last one takes from all that nobody else takes from.
    """

    def __init__(self, seed: int, *, size: int = 300, width: int = 10, millis: tuple[int, int] = (10, 60)) -> None:
        chance = random.Random(seed)
        self.knots = [_knot(chance, index, width, millis) for index in range(size - 1)]
        taken = {parent for knot in self.knots for parent in knot.parents}
        leaves = tuple(index for index in range(size - 1) if index not in taken)
        self.knots.append(Knot(kind=0, parents=leaves, bias=seed % 1_000, millis=0))
        self.workflow = self._declare(f"web-{seed}-{size}")

    def result(self) -> int:
        values: list[int] = []
        for knot in self.knots:
            values.append(blended([values[parent] for parent in knot.parents], knot.bias))
        return values[-1]

    def _declare(self, name: str) -> Workflow[[], int]:
        @workflow(name=name)
        def web() -> int:
            values: list[int] = []
            for index, knot in enumerate(self.knots):
                parts = [values[parent] for parent in knot.parents]
                kind = _KINDS[knot.kind].named(f"n{index}")
                values.append(kind(parts, bias=knot.bias, millis=knot.millis))
            return values[-1]

        return web


_KINDS = (blend, blend_in_thread, blend_at_second_try)


def _knot(chance: random.Random, index: int, width: int, millis: tuple[int, int]) -> Knot:
    nearby = range(max(0, index - width), index)
    count = min(len(nearby), chance.choice((1, 1, 1, 2, 2, 3, 5)))
    return Knot(
        kind=chance.choices((0, 1, 2), weights=(10, 8, 1))[0],
        parents=tuple(sorted(chance.sample(nearby, count))),
        bias=chance.randrange(1_000),
        millis=chance.randint(*millis),
    )


@workflow
def diamond(number: int, millis: int) -> int:
    """A small run: one node, two beside each other, one that takes from both."""
    top = blend.named("top")([number], bias=1, millis=millis)
    left = blend.named("left")([top], bias=2, millis=millis)
    right = blend_in_thread.named("right")([top], bias=3, millis=millis)
    return blend.named("bottom")([left, right], bias=4, millis=millis)


def diamond_result(number: int) -> int:
    top = blended([number], 1)
    return blended([blended([top], 2), blended([top], 3)], 4)


@node(retries=2, backoff=2.0)
async def falter(ctx: Context, number: int, falters: bool) -> int:
    """Fails at its first attempt if told to, so that the run waits for the next one with nothing to do."""
    effects.record(ctx)
    if falters and ctx.attempt == 1:
        raise Wobble
    return number


@node
def halt(ctx: SyncContext, number: int) -> int:
    """The body in which a process is stopped, if it was told to stop there."""
    effects.record(ctx)
    pausing.met("body", ctx.run_id)
    return number + 1


@workflow
def halting(number: int, falters: bool) -> int:
    """A run with places to stop at: `halt` runs in a thread, `falter` may fail once."""
    return blend.named("last")([halt(falter(number, falters))], bias=0, millis=1)


def halting_result(number: int) -> int:
    return blended([number + 1], 0)


def perish(how: str) -> None:
    """End this process, as code does that is no Python, or as the machine does when it runs out of memory."""
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case unknown:
            raise AssertionError(unknown)


@node
def poison(ctx: SyncContext, how: str, times: int) -> int:
    effects.record(ctx)
    if ctx.attempt <= times:
        perish(how)
    return ctx.attempt


@node(executor="process")
def poison_apart(ctx: SyncContext, how: str, times: int) -> int:
    effects.record(ctx, engine=os.getppid())
    if ctx.attempt <= times:
        perish(how)
    return ctx.attempt


@node(executor="process", retries=1, backoff=0.01)
def poison_apart_retried(ctx: SyncContext, how: str, times: int) -> int:
    effects.record(ctx, engine=os.getppid())
    if ctx.attempt <= times:
        perish(how)
    return ctx.attempt


@node(executor="process")
def linger_apart(ctx: SyncContext, seconds: int) -> int:
    effects.record(ctx, engine=os.getppid())
    time.sleep(seconds)
    return ctx.attempt


@workflow
def poisoned(how: str, times: int) -> int:
    return poison(how, times)


@workflow
def poisoned_apart(how: str, times: int) -> int:
    return poison_apart(how, times)


@workflow
def poisoned_apart_retried(how: str, times: int) -> int:
    return poison_apart_retried(how, times)


@workflow
def lingering(seconds: int) -> int:
    return linger_apart(seconds)


WORKFLOWS: dict[str, Workflow[..., Any]] = {
    found.name: found for found in (diamond, halting, lingering, poisoned, poisoned_apart, poisoned_apart_retried)
}
