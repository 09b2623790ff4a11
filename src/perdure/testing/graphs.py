"""Reference workflows: small, deterministic, and between them of every shape that a run can take.

Each knows what it must come to, and which of its nodes must have had an effect, whatever happened on the way. Their bodies take
a little time, different from node to node, so that their ends are commits of their own; on a virtual loop that costs nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.dispatch.context import Context, SyncContext
from perdure.engine.engine import Engine
from perdure.engine.runs.run import Run
from perdure.errors import StoreError
from perdure.graph.declare import Backoff, Workflow, node, workflow
from perdure.graph.trace import first, stage, unless, when
from perdure.journal.states import RunState, RunStatus
from perdure.testing.ledger import effect
from perdure.testing.process import current_process

T = TypeVar("T")

TICK_SECONDS = 0.01


def never_rests(_: RunState) -> bool:
    """A run is done only when it has ended."""
    return False


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow with what its run must come to."""

    workflow: Workflow[..., Any]
    inputs: dict[str, Any]
    status: RunStatus = RunStatus.COMPLETED
    certain: frozenset[str] | None = None
    """Nodes whose bodies have certainly run at the end. None: all of them."""
    possible: frozenset[str] = frozenset()
    """Nodes whose bodies may have run, or not."""
    person: Callable[[Run[Any]], Awaitable[object]] | None = None
    """What somebody does about the run again and again while it lives, each thing under an id, so that it counts once. True if
    it was something."""
    repairs: Callable[[Run[Any]], Awaitable[bool]] | None = None
    """What somebody does about the run when it has ended, under an id, so that it counts once. True if it was something."""
    rests: Callable[[RunState], bool] = never_rests
    """Whether a run about which nobody does anything has come as far as it can."""
    records_starts: bool = True
    """Whether the log knows of every attempt that has begun: not where bodies begin before that is durable."""

    @property
    def name(self) -> str:
        return self.workflow.name

    @property
    def expected(self) -> frozenset[str]:
        everything = frozenset(str(node.id) for node in self.workflow.graph.nodes)
        return everything if self.certain is None else self.certain


# Bodies


@node
async def add(ctx: Context, x: int, y: int = 1, ticks: int = 1) -> int:
    effect(ctx)
    await asyncio.sleep(ticks * TICK_SECONDS)
    return x + y


@node
async def total(ctx: Context, parts: list[int]) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return sum(parts)


@node(retries=3, backoff=Backoff(jitter=False))
async def unsteady(ctx: Context, x: int) -> int:
    """Fail twice."""
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    if ctx.attempt <= 2:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return x + 10


@node
async def broken(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(2 * TICK_SECONDS)
    raise ValueError(f"{x} is wrong")


@node
async def endless(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.Event().wait()
    return x


@node
async def is_even(ctx: Context, x: int) -> bool:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return x % 2 == 0


@node
async def count(ctx: Context, upto: int) -> list[int]:
    """Count in steps, and go on where an earlier attempt has stopped."""
    seen: list[int] = ctx.restored or []
    effect(ctx)
    for number in range(len(seen), upto):
        effect(ctx, part=str(number))
        seen = [*seen, number]
        await ctx.checkpoint(seen)
    return seen


async def square(ctx: Context, x: int) -> int:
    effect(ctx, part=f"square {x}")
    await asyncio.sleep(TICK_SECONDS)
    return x * x


@node
async def squares(ctx: Context, upto: int) -> list[int]:
    """Call a function once for each number, over all attempts."""
    effect(ctx)
    return [await ctx.step(square, ctx, x) for x in range(upto)]


@node(retries=1, backoff=0)
async def squares_with_checkpoints(ctx: Context, upto: int) -> list[int]:
    """Take a step for each number and a checkpoint after every second one, and fail once in between."""
    seen: list[int] = ctx.restored or []
    effect(ctx)
    for number in range(len(seen), upto):
        squared = await ctx.step(square, ctx, number)
        assert squared == number * number, "it was given the result of another step"
        seen = [*seen, squared]
        if number % 2:
            await ctx.checkpoint(seen)
        if number == 2 and ctx.attempt == 1:
            raise ConnectionError("lost after a step that no checkpoint knows of")
    return seen


async def through_own_engine(work: Callable[[Engine], Awaitable[T]]) -> T:
    """Do something with the engine that runs a body, until the store has let it."""
    process = current_process()
    assert process is not None, "this body speaks to runs through the process that runs it"
    while True:
        try:
            return await work(process.engine)
        except StoreError:
            await asyncio.sleep(1)


async def tell_own_run(ctx: Context, tell: Callable[[Run[Any]], Awaitable[None]]) -> None:
    """Tell the run of a body something, through the process that runs it, until the store has it."""

    async def tell_it(engine: Engine) -> None:
        await tell(await engine.get(ctx.run_id))

    await through_own_engine(tell_it)


@node
async def cancelling(ctx: Context, x: int) -> int:
    """Ask for the end of the run it is part of, and wait for it."""
    effect(ctx)
    await tell_own_run(ctx, lambda run: run.cancel("the node asked for it", command_id=f"{ctx.run_id}/cancel"))
    await asyncio.Event().wait()
    return x


@node
async def large(ctx: Context, x: int) -> str:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return f"{x:08}" * 1_000


@node
async def joined(ctx: Context, parts: list[str]) -> str:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return "".join(parts)


@node
def blocking_add(ctx: SyncContext, x: int, y: int) -> int:
    effect(ctx)
    return x + y


class Multiplier:
    """A class node with every part of its lifecycle."""

    by: int = 2

    def initialize(self) -> None:
        self.steps = ["initialize"]

    async def pre_process(self, ctx: Context) -> None:
        self.steps.append("pre_process")

    async def run(self, ctx: Context, x: int) -> int:
        effect(ctx)
        await asyncio.sleep(TICK_SECONDS)
        assert self.steps == ["initialize", "pre_process"]
        return x * self.by

    def finalize(self) -> None:
        self.steps.append("finalize")


multiplier = node(Multiplier)


@node
async def mix(ctx: Context, parts: list[int], salt: int) -> int:
    effect(ctx)
    await asyncio.sleep(salt % 3 * TICK_SECONDS)
    value = salt
    for part in parts:
        value = (value * 31 + part) % 1_000_003
    return value


# Workflows


@workflow
def chain(x: int) -> int:
    for _ in range(4):
        x = add(x)
    return x


@workflow
def diamond(x: int) -> int:
    top = add.named("top")(x)
    left, right = add.named("left")(top, 1, ticks=1), add.named("right")(top, 2, ticks=2)
    return total.named("bottom")([left, right])


@workflow
def fan(x: int) -> int:
    root = add.named("root")(x)
    return total.named("join")([add.named(f"part_{index}")(root, index, ticks=index // 2) for index in range(8)])


@workflow
def retry(x: int) -> int:
    return add.named("after")(unsteady.named("unsteady")(x))


@workflow
def failure(x: int) -> int:
    """One node fails while another one runs: that one is stopped, and the run fails."""
    start = add.named("start")(x)
    parts = [broken.named("broken")(start), endless.named("endless")(start)]
    return total.named("never")(parts)


@workflow(on_failure="finish")
def failure_finish(x: int) -> int:
    """One node fails, and what does not depend on it ends first."""
    start = add.named("start")(x)
    aside = add.named("aside_2")(add.named("aside_1")(start, ticks=3))
    return total.named("never")([broken.named("broken")(start), aside])


@workflow
def conditions(x: int) -> int:
    even = is_even.named("even")(x)
    with when(even):
        halved = add.named("if_even")(x, 100)
    with unless(even):
        tripled = add.named("if_odd")(x, 200)
        add.named("after_odd")(tripled)
    return add.named("either")(first(halved, tripled))


@workflow
def checkpoints(x: int) -> list[int]:
    return count.named("count")(x)


@workflow
def steps(x: int) -> list[int]:
    return squares.named("squares")(x)


@workflow
def steps_and_checkpoints(x: int) -> list[int]:
    return squares_with_checkpoints.named("squares")(x)


@workflow
def cancelled(x: int) -> int:
    start = add.named("start")(x)
    asks, waits = cancelling.named("asks")(start), endless.named("waits")(start)
    return total.named("never")([asks, waits])


@workflow
def blobs(x: int) -> str:
    start = add.named("start")(x)
    return joined.named("joined")([large.named("large_1")(start), large.named("large_2")(x)])


@workflow
def blocking(x: int) -> int:
    left, right = blocking_add.named("left")(x, 1), blocking_add.named("right")(x, 2)
    return blocking_add.named("sum")(left, right)


@workflow
def lifecycle(x: int) -> int:
    return multiplier.named("second")(multiplier.named("first")(x), by=5)


@workflow
def stages(x: int) -> int:
    with stage("prepare"):
        prepared = [add.named(f"prepare_{index}")(x, index, ticks=index) for index in range(3)]
    with stage("finish"):
        return total.named("finish")(prepared)


def random_dag(name: str, *, nodes: int, seed: int, most_parents: int = 3) -> Workflow[..., Any]:
    """Return a workflow of so many nodes, joined at random: the same for the same seed."""
    draw = random.Random(seed)
    parents = random_parents(draw, nodes, most=most_parents)

    @workflow(name=name)
    def dag(x: int) -> int:
        values: list[int] = []
        for index, chosen in enumerate(parents):
            given = [values[parent] for parent in chosen] if chosen else [x]
            values.append(mix.named(f"n{index}")(given, index))
        used = {parent for chosen in parents for parent in chosen}
        ends = [value for index, value in enumerate(values) if index not in used]
        return mix.named("end")(ends, nodes)

    return dag


def reference_graphs() -> Sequence[Reference]:
    """Return every reference workflow but the large one."""
    return (
        Reference(workflow=chain, inputs={"x": 1}),
        Reference(workflow=diamond, inputs={"x": 1}),
        Reference(workflow=fan, inputs={"x": 1}),
        Reference(workflow=retry, inputs={"x": 1}),
        Reference(
            workflow=failure,
            inputs={"x": 1},
            status=RunStatus.FAILED,
            certain=frozenset(("start", "broken")),
            possible=frozenset(("endless",)),
        ),
        Reference(
            workflow=failure_finish,
            inputs={"x": 1},
            status=RunStatus.FAILED,
            certain=frozenset(("start", "broken", "aside_1", "aside_2")),
        ),
        Reference(workflow=conditions, inputs={"x": 1}, certain=frozenset(("even", "if_odd", "after_odd", "either"))),
        Reference(workflow=checkpoints, inputs={"x": 4}),
        Reference(workflow=steps, inputs={"x": 3}),
        Reference(workflow=steps_and_checkpoints, inputs={"x": 6}),
        Reference(
            workflow=cancelled,
            inputs={"x": 1},
            status=RunStatus.CANCELLED,
            certain=frozenset(("start", "asks")),
            possible=frozenset(("waits",)),
        ),
        Reference(workflow=blobs, inputs={"x": 7}),
        Reference(workflow=blocking, inputs={"x": 1}),
        Reference(workflow=lifecycle, inputs={"x": 3}),
        Reference(workflow=stages, inputs={"x": 1}),
    )


def large_reference() -> Reference:
    """Return the large one: 200 nodes joined at random."""
    return Reference(workflow=random_dag("dag_200", nodes=199, seed=200), inputs={"x": 1})


def random_parents(draw: random.Random, nodes: int, *, most: int) -> list[list[int]]:
    """Draw a graph: for each node those that it depends on, all of them before it."""
    parents: list[list[int]] = []
    for index in range(nodes):
        nearby = range(max(0, index - 40), index)
        count = draw.randint(0 if index < 10 else 1, most)
        parents.append(sorted(draw.sample(nearby, min(len(nearby), count))))
    return parents
