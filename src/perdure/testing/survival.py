"""A crash at every commit of a user's workflow, and what became of the run each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from perdure.graph.declare import Workflow
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.graphs import Reference
from perdure.testing.script import Actor
from perdure.testing.stage import Stage, needs_somebody
from perdure.testing.watched import WatchedRun, look
from perdure.testing.world import Outcome, Story

R = TypeVar("R")

KINDS = (CrashKind.BEFORE, CrashKind.AFTER, CrashKind.REPLY_LOST)
_WORDS = {
    CrashKind.BEFORE: "the engine died before commit {}",
    CrashKind.AFTER: "the engine died after commit {}",
    CrashKind.REPLY_LOST: "the answer to commit {} was lost",
}
SHOWN = 3
"""How many of the crashes that changed something are shown."""


class Crash(Generic[R]):
    """A crash, and the run that went through it."""

    def __init__(self, plan: CrashPlan, run: WatchedRun[R], problems: list[str]) -> None:
        self.commit = plan.at
        self.kind = plan.kind
        self.run = run
        self.problems = problems
        """How the run differs from one without a crash, and whatever is wrong with what is stored of it."""

    def __repr__(self) -> str:
        return f"<{_WORDS[self.kind].format(self.commit)}>"

    def __str__(self) -> str:
        return "\n".join((f"{_WORDS[self.kind].format(self.commit)}:", *self.problems, str(self.run)))


def crash_everywhere(
    stage: Stage, flow: Workflow[..., R], inputs: dict[str, Any], actor: Actor, undisturbed: WatchedRun[R]
) -> Iterator[Crash[R]]:
    """Yield what becomes of a run with each crash. `undisturbed` is how it went without one."""

    async def tell(*plans: CrashPlan) -> Story:
        return await stage.world.tell(reference, *plans)

    async def watched(story: Story) -> WatchedRun[R]:
        run = await stage.engine.get(story.run_id)
        return WatchedRun(await look(run, stage.world.store, stage.world.ledger))

    every_node = frozenset(str(node.id) for node in flow.graph.nodes)
    reference = Reference(
        workflow=flow,
        inputs=inputs,
        status=undisturbed.status,
        certain=frozenset(),
        possible=every_node,
        person=actor,
        rests=needs_somebody,
        records_starts=flow.settings.durability in (None, "sync"),
    )
    expected = stage.call(tell())
    for at in range(1, expected.boundaries[0] + 1):
        for kind in KINDS:
            plan = CrashPlan(at=at, kind=kind)
            story = stage.call(tell(plan))
            problems = [*story.problems, *_differences(story.outcome, expected.outcome)]
            yield Crash(plan, stage.call(watched(story)), problems)


def require_survival(crashes: Iterable[Crash[Any]]) -> None:
    """Go through crashes. Raises AssertionError with those that have changed something."""
    __tracebackhide__ = True
    count, harmful = 0, list[Crash[Any]]()
    for crash in crashes:
        count += 1
        if crash.problems:
            harmful.append(crash)
    if harmful:
        shown = "\n\n".join(map(str, harmful[:SHOWN]))
        raise AssertionError(f"{len(harmful)} of {count} crashes changed something\n\n{shown}")


def _differences(found: Outcome, expected: Outcome) -> Iterator[str]:
    if found != expected:
        yield f"without a crash it came to {_said(expected)}, and with it to {_said(found)}"


def _said(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{outcome.status.value} with {': '.join(outcome.error)}"
    if outcome.outputs is None:
        return f"{outcome.status.value} ({outcome.reason})"
    outputs = {name: bytes(value).decode() for name, value in outcome.outputs.items()}
    return f"{outcome.status.value} with {', '.join(outputs.values()) or 'nothing'}"
