"""What was decided about a run and is not durable yet, until the committer takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.ids import CommandId, Epoch, EventId, Seq
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.states import NodeState, RunState
from perdure.store.base import BlobUse, StepRow


class Portion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Decisions that are committed together, with the run and its nodes as they stood after them."""

    decided: Sequence[tuple[e.AnyEvent, int]]
    run: RunState
    nodes: tuple[NodeState, ...]
    blobs: tuple[BlobUse, ...]
    commands: tuple[CommandId, ...]
    acts: list[Callable[[], None]]
    """What is to be done when they are durable."""


class Pending:
    """Gathers what goes with the next decisions."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.acts: list[Callable[[], None]] = []
        """What is to be done when everything that was decided so far is durable."""
        self.blobs: list[BlobUse] = []
        self.commands: list[CommandId] = []

    @property
    def is_waited_for(self) -> bool:
        """Whether something is to be done when it is durable."""
        return bool(self.acts or self.commands)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be committed, or to be done when it is."""
        return not (self.is_waited_for or self._decider.decided)

    def cut(self) -> Portion:
        """Return what has gathered since the last cut."""
        projection = self._decider.projection
        decided = self._decider.take()
        changed = {event.node_id: None for event, _ in decided if isinstance(event, e.NodeEvent)}
        portion = Portion(
            decided=decided,
            run=projection.run,
            nodes=tuple(projection.nodes[node_id] for node_id in changed),
            blobs=tuple(dict.fromkeys(self.blobs)) if self.blobs else (),
            commands=tuple(self.commands) if self.commands else (),
            acts=self.acts,
        )
        self.acts, self.blobs, self.commands = [], [], []
        return portion


def numbered(portion: Portion, base_seq: Seq, epoch: Epoch, new_id: Callable[[], str]) -> tuple[e.Recorded, ...]:
    """Give the events their places. What comes before a claim belongs to the epoch before it."""
    recorded: list[e.Recorded] = []
    branch_id = portion.run.branch_id
    for seq, (event, at) in enumerate(portion.decided, start=base_seq + 1):
        if isinstance(event, e.RunClaimed):
            epoch = event.epoch
        recorded.append(
            e.Recorded(seq=Seq(seq), id=EventId(new_id()), branch_id=branch_id, epoch=epoch, at=at, event=event)
        )
    return tuple(recorded)


def step_rows(recorded: Sequence[e.Recorded]) -> tuple[StepRow, ...]:
    """Return the rows of memoised steps that were taken."""
    return tuple(
        StepRow(
            node_id=step.node_id,
            branch_id=entry.branch_id,
            name=step.name,
            occurrence=step.occurrence,
            result=step.result,
            seq=entry.seq,
        )
        for entry in recorded
        if isinstance(step := entry.event, e.StepCompleted)
    )


def only_steps(before: RunState | None, after: RunState) -> bool:
    """Whether nothing about the run itself has changed but how far its log goes."""
    return before is not None and msgspec.structs.replace(before, last_seq=after.last_seq) == after
