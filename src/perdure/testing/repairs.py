"""Reference workflows that go back: tried again where they failed, gone on with from a node, while they move or afterwards, or
from what they were at the end of an earlier branch or at a place of their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from perdure.dispatch.context import Context
from perdure.engine.runs.run import Run
from perdure.errors import CannotGoBack, CheckpointExists
from perdure.graph.asking import ask
from perdure.graph.declare import node, workflow
from perdure.graph.trace import collect, when
from perdure.journal.events import OutboxEnqueued
from perdure.journal.states import NodeStatus, RunStatus
from perdure.testing.graphs import TICK_SECONDS, Reference, add, total
from perdure.testing.ledger import effect
from perdure.testing.waits import answering, watching

PATIENCE_SECONDS = 600
mended: set[str] = set()
"""Runs whose code was mended."""


@node
async def fragile(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(3 * TICK_SECONDS)
    if ctx.run_id not in mended:
        raise ValueError("not mended yet")
    return x + 100


@node(concurrency=2)
async def fragile_item(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    if x == 3 and ctx.run_id not in mended:
        raise ValueError("not mended yet")
    return x * 10


@workflow
def tried_again(x: int) -> int:
    broken = fragile(add.named("before")(x))
    return add.named("after")(broken, add.named("beside")(x, ticks=12))


@workflow
def items_tried_again(xs: list[int]) -> Any:
    return collect(fragile_item.map(xs))


@workflow
def gone_back(x: int) -> int:
    left = add.named("left")(add.named("start")(x))
    return add.named("end")(left, add.named("right")(x, ticks=4))


@workflow
def gone_back_in_motion(x: int) -> int:
    left = add.named("slow")(add.named("first")(x), ticks=60)
    return add.named("last")(left, add.named("other")(x, ticks=90))


@workflow
def promoted(x: int) -> int:
    left = add.named("left")(add.named("start")(x))
    return add.named("end")(left, add.named("right")(x, ticks=4))


@workflow
def promoted_in_motion(x: int) -> int:
    left = add.named("slow")(add.named("first")(x), ticks=60)
    return add.named("last")(left, add.named("other")(x, ticks=90))


@workflow
def asked_then(x: int) -> int:
    one = add.named("one")(x)
    with when(ask.named("may")("go on?", schema=bool, show=one)):
        two = add.named("two")(one)
    return two


@workflow
def items_as_they_were(xs: list[int]) -> Any:
    return collect(fragile_item.map(xs))


@workflow
def items_begun_again(xs: list[int]) -> int:
    return total(collect(fragile_item.map(xs)))


@workflow
def asked_again(x: int) -> int:
    one = add.named("one")(x)
    with when(ask.named("may")("go on?", schema=bool, show=one)):
        two = add.named("two")(one)
    return two


@node
def counted_up(ctx: Context, many: int) -> Iterator[int]:
    effect(ctx)
    yield from range(many)


@node(concurrency=2)
async def twofold(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(TICK_SECONDS)
    return x * 2


@workflow
def items_chosen(many: int) -> Any:
    twos = twofold.named("first").map(counted_up(many))
    return {"total": total(collect(twofold.named("second").map(twos))), "beside": add.named("beside")(many)}


@workflow
def items_chosen_of_a_failure(xs: list[int]) -> int:
    return total(collect(twofold.map(fragile_item.map(xs))))


@node
async def sturdy(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(3 * TICK_SECONDS)
    return x + 200


@workflow
def switched(x: int) -> Any:
    broken = fragile.named("middle")(add.named("before")(x))
    left = add.named("left_out")(x)
    return {"end": add.named("after")(broken, add.named("beside")(x, ticks=12)), "left": left}


@workflow(name="switched")
def switched_to(x: int) -> Any:
    sound = sturdy.named("middle")(add.named("before")(x))
    more = add.named("added")(sound)
    return {"end": add.named("after")(sound, add.named("beside")(x, ticks=12)), "more": more}


async def switching(run: Run[Any]) -> bool:
    """Have a run that has failed go on with another version of its workflow, once."""
    saved = await run._engine.save(switched_to)  # pyright: ignore[reportPrivateUsage]
    return await _go_back_once(run, "middle", version=saved.version)


async def mending(run: Run[Any]) -> bool:
    """Mend the code of a run that has failed, and try again."""
    if await run.status() is not RunStatus.FAILED:
        return False
    mended.add(run.run_id)
    await run.retry(reason="mended", timeout=PATIENCE_SECONDS, command_id="mended")
    return True


async def going_back(run: Run[Any]) -> bool:
    """Have a run that has completed go back once."""
    return await _go_back_once(run, "left", inputs={"x": 1_000})


async def choosing_items(run: Run[Any]) -> bool:
    """Have a run that has completed go back once, to some items of a map."""
    return await _go_back_once(run, "first", items=[0, 5])


async def choosing_items_of_a_failure(run: Run[Any]) -> bool:
    """Have a run of which an item has failed go back to items that were done."""
    mended.add(run.run_id)
    return await _go_back_once(run, "fragile_item", items=[1])


async def promoting(run: Run[Any]) -> bool:
    """Have a run that has completed go back once, and then be what it was before."""
    if len(await run.branches()) == 1:
        return await _go_back_once(run, "left", inputs={"x": 1_000})
    return await promoting_the_first(run)


async def promoting_the_first(run: Run[Any]) -> bool:
    """Have a run that has gone back go on from what it was before."""
    if len(await run.branches()) != 2:
        return False
    try:
        await run.promote(1, timeout=PATIENCE_SECONDS, command_id="promoted")
    except CannotGoBack:  # it moves again, because of an earlier wish
        return False
    return True


async def saving_and_answering(run: Run[Any]) -> None:
    """Save a checkpoint when something is asked, before it is answered."""
    if await run.questions():
        with suppress(CheckpointExists):
            await run.checkpoint("asked", timeout=PATIENCE_SECONDS, command_id="asked")
        await answering(run)


async def restoring_the_question(run: Run[Any]) -> bool:
    return await _restore_once(run, "asked")


async def restoring_some_items(run: Run[Any]) -> bool:
    """Have a run that has ended go back to where a few of its items were done, with its code mended."""
    mended.add(run.run_id)
    batches = [entry.seq async for entry in run.events(follow=False) if isinstance(entry.event, OutboxEnqueued)]
    return await _restore_once(run, batches[len(batches) // 2 - 1])


async def mending_and_restoring_items(run: Run[Any]) -> bool:
    """Have a run complete, and then go back to where a few of its items were done, which are not kept any more."""
    return await mending(run) or await restoring_some_items(run)


async def asking_again(run: Run[Any]) -> bool:
    return await _go_back_once(run, "one", inputs={"x": 1_000})


async def going_back_in_motion(run: Run[Any]) -> None:
    """Have a run that moves go back once, when its first node is done."""
    await watching(run)
    statuses = {str(node.node_id): node.status for node in (await run.load()).nodes}
    if statuses.get("first") is NodeStatus.COMPLETED and "last" not in statuses:
        await _go_back_once(run, "first", inputs={"x": 1_000})


async def _restore_once(run: Run[Any], place: str | int) -> bool:
    if any(found.restored for found in await run.branches()):
        return False
    try:
        await run.restore(place, timeout=PATIENCE_SECONDS, command_id="restored")
    except CannotGoBack:  # as above
        return False
    return True


async def _go_back_once(run: Run[Any], node_id: str, **change: Any) -> bool:
    if len(await run.branches()) > 1:
        return False
    try:
        await run.jump(node_id, timeout=PATIENCE_SECONDS, command_id="back", **change)
    except CannotGoBack:
        return False
    return True


def repair_references() -> list[Reference]:
    """Return the workflows that go back, and what must come of them."""
    return [
        Reference(workflow=tried_again, inputs={"x": 1}, repairs=mending),
        Reference(workflow=items_tried_again, inputs={"xs": list(range(8))}, repairs=mending),
        Reference(workflow=gone_back, inputs={"x": 1}, repairs=going_back),
        Reference(workflow=switched, inputs={"x": 1}, possible=frozenset(("added",)), repairs=switching),
        Reference(
            workflow=asked_again,
            inputs={"x": 1},
            certain=frozenset(("one", "two")),
            person=answering,
            repairs=asking_again,
        ),
        Reference(workflow=gone_back_in_motion, inputs={"x": 1}, person=going_back_in_motion),
        Reference(workflow=promoted, inputs={"x": 1}, repairs=promoting),
        Reference(
            workflow=promoted_in_motion, inputs={"x": 1}, person=going_back_in_motion, repairs=promoting_the_first
        ),
        Reference(
            workflow=asked_then,
            inputs={"x": 1},
            certain=frozenset(("one", "two")),
            person=saving_and_answering,
            repairs=restoring_the_question,
        ),
        Reference(workflow=items_as_they_were, inputs={"xs": list(range(8))}, repairs=restoring_some_items),
        Reference(workflow=items_chosen, inputs={"many": 8}, repairs=choosing_items),
        Reference(
            workflow=items_chosen_of_a_failure, inputs={"xs": list(range(8))}, repairs=choosing_items_of_a_failure
        ),
        Reference(workflow=items_begun_again, inputs={"xs": list(range(8))}, repairs=mending_and_restoring_items),
    ]
