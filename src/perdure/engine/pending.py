"""What was decided about a run and is not durable yet, until the committer takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.ids import CommandId
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.states import NodeState, RunState
from perdure.store.base import BlobUse


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
