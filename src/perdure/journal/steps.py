"""The memoised steps of a run: what bodies that run again are given instead of calling a function once more.

A body that runs again goes on from its last checkpoint, a trigger from its cursor, and counts from there. So what was before is
past: the log keeps it, and nobody is given it any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.flow import is_item_of, positions_in

StepKey = tuple[NodeId, str, int]
"""A memoised step: its node, its name, and how often that name came before since the node's last checkpoint."""


def leaves_behind(event: e.AnyEvent) -> TypeGuard[e.NodeCheckpointed | e.TriggerCursorAdvanced]:
    """Whether a body that runs again goes on from here, and comes back to nothing that was recorded of its node before."""
    if isinstance(event, e.NodeCheckpointed):
        return not event.suspends
    return isinstance(event, e.TriggerCursorAdvanced)


class Steps(Mapping[StepKey, e.Encoded]):
    """The results of all steps to which bodies may come back."""

    def __init__(self, recorded: Mapping[StepKey, e.Encoded] | None = None) -> None:
        self._of_node: dict[NodeId, dict[tuple[str, int], e.Encoded]] = {}
        self._past: dict[NodeId, None] = {}
        for (node_id, name, occurrence), result in (recorded or {}).items():
            self._of_node.setdefault(node_id, {})[name, occurrence] = result

    def __getitem__(self, key: StepKey) -> e.Encoded:
        node_id, name, occurrence = key
        return self._of_node[node_id][name, occurrence]

    def __iter__(self) -> Iterator[StepKey]:
        for node_id, steps in self._of_node.items():
            for name, occurrence in steps:
                yield node_id, name, occurrence

    def __len__(self) -> int:
        return sum(map(len, self._of_node.values()))

    def completed(self, event: e.StepCompleted) -> None:
        """Note the result of a step."""
        self._of_node.setdefault(event.node_id, {})[event.name, event.occurrence] = event.result

    def left_behind(self, node_id: NodeId) -> None:
        """Note that a node goes on from here if its body runs again: all its steps are of the past."""
        if self._of_node.pop(node_id, None) is not None:
            self._past[node_id] = None

    def branch(self, event: e.BranchCreated) -> None:
        """Go on on a branch: nodes and items that begin again have taken no step."""
        for node_id in event.dropped:
            self._of_node.pop(node_id, None)
        for node_id, kept in event.items.items():
            if kept.chosen and (taken := self._of_node.get(node_id)) is not None:
                chosen = frozenset(positions_in(kept.chosen))
                self._of_node[node_id] = {key: taken[key] for key in taken if not is_item_of(key[0], chosen)}

    def restore(self, then: Steps, event: e.BranchCreated) -> None:
        """Go on with the steps that were taken at an earlier place, but for nodes that begin again."""
        dropped = frozenset(event.dropped)
        self._of_node = {node_id: dict(taken) for node_id, taken in then._of_node.items() if node_id not in dropped}

    def take_past(self) -> tuple[NodeId, ...]:
        """Return the nodes that have left steps behind since the last call."""
        if not self._past:
            return ()
        past, self._past = tuple(self._past), {}
        return past
