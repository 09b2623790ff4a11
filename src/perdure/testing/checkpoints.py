"""Reference workflows whose places in the log are given names: by themselves, and by people."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from perdure.engine.runs.checkpoints import Checkpoint
from perdure.engine.runs.run import Run
from perdure.errors import CheckpointPending, RunEnded
from perdure.graph.asking import ask
from perdure.graph.declare import workflow
from perdure.graph.trace import when
from perdure.journal.states import NodeStatus
from perdure.testing.graphs import TICK_SECONDS, Reference, add
from perdure.testing.waits import answering, pausing, rested, resuming, watching

acknowledged: dict[str, list[Checkpoint]] = {}
"""What people were told, by run: every checkpoint that a call has returned."""


async def naming(run: Run[Any]) -> None:
    """Name each place once, again and again, and answer what is asked."""
    done = sum(node.status is NodeStatus.COMPLETED for node in (await run.load()).nodes)
    for name in (f"after {done}", f"{done} again"):
        with suppress(CheckpointPending, RunEnded):
            saved = await run.checkpoint(name, timeout=1, command_id=name)
            acknowledged.setdefault(run.run_id, []).append(saved)
    await answering(run)


@workflow(checkpoint_every=2.5 * TICK_SECONDS)
def saved_by_itself(x: int) -> int:
    return add.named("last")(rested(add.named("long")(add.named("first")(x, ticks=2), ticks=7)), ticks=4)


@workflow(checkpoint_every=2.5 * TICK_SECONDS)
def saved_while_paused(x: int) -> int:
    return add.named("after")(pausing(add.named("before")(x)), add.named("beside")(x, ticks=8))


@workflow(checkpoint_every=60)
def named_by_people(x: int) -> int:
    one = add.named("one")(x, ticks=3)
    with when(ask.named("may")("go on?", schema=bool, show=one)):
        two = add.named("two")(one, ticks=3)
    return two


def checkpoint_references() -> list[Reference]:
    """Return the workflows that are saved, and what must come of them."""
    return [
        Reference(workflow=saved_by_itself, inputs={"x": 1}, person=watching),
        Reference(workflow=saved_while_paused, inputs={"x": 1}, person=resuming),
        Reference(workflow=named_by_people, inputs={"x": 1}, certain=frozenset(("one", "two")), person=naming),
    ]
