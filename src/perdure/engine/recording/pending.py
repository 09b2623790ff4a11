"""What was decided about a run and is not durable yet, until the committer takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.ids import CommandId, NodeId
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.states import CheckpointState, NodeState, RunState, SignalState, WaitState
from perdure.journal.steps import StepKey
from perdure.store.transitions import BlobUse, ItemDrop, ItemRow


class Portion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Decisions that are committed together, with the run and its nodes as they stood after them."""

    decided: Sequence[tuple[e.AnyEvent, int]]
    run: RunState
    nodes: tuple[NodeState, ...]
    steps: dict[StepKey, e.Encoded] | None
    """All memoised steps, where the run goes on on another branch, which keeps them."""
    past_steps: tuple[NodeId, ...] = ()
    """The nodes that have left steps behind."""
    blobs: tuple[BlobUse, ...]
    commands: tuple[CommandId, ...]
    items: tuple[ItemRow, ...] = ()
    drops: tuple[ItemDrop, ...] = ()
    waits: tuple[WaitState, ...] = ()
    signals: tuple[SignalState, ...] = ()
    checkpoints: tuple[CheckpointState, ...] = ()
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

    def cut(self, items: tuple[ItemRow, ...] = (), drops: tuple[ItemDrop, ...] = ()) -> Portion:
        """Return what has gathered since the last cut, with what it means for the entries of streams."""
        projection = self._decider.projection
        decided = self._decider.take()
        waits, signals = projection.waits.take_changes()
        touched = self._decider.take_touched()
        portion = Portion(
            decided=decided,
            run=projection.run,
            nodes=tuple(projection.nodes.values()) if touched is None else touched,
            steps=dict(projection.steps) if touched is None else None,
            past_steps=projection.steps.take_past(),
            blobs=tuple(dict.fromkeys(self.blobs)) if self.blobs else (),
            commands=tuple(self.commands) if self.commands else (),
            items=items,
            drops=drops,
            waits=waits,
            signals=signals,
            checkpoints=self._decider.take_saved(),
            acts=self.acts,
        )
        self.acts, self.blobs, self.commands = [], [], []
        return portion
