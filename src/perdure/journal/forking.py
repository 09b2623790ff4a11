"""What a run takes over from another one of which it is a fork: what nodes have given that were completed there.

Everything else begins, as in any run that is started: nodes that were at work, what they had recorded so far, questions, items of
streams. So a stream is taken over as a whole or not at all, with all who have read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from perdure.graph.model import FED, INPUT
from perdure.graph.plan import Plan
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.again import Again
from perdure.journal.projection import Given, Projection
from perdure.journal.repairing import Cone
from perdure.journal.restoring import Restoring
from perdure.journal.states import SETTLED, NodeStatus


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes over."""

    outputs: dict[NodeId, dict[str, e.Encoded]]
    """What nodes have given that do not run."""
    given: Given
    """What nodes are given that do, in the place of what edges and properties say."""


def taken_over(source: Projection, plan: Plan, changed: Collection[str], others: Iterable[NodeId] = ()) -> Taken:
    """Return what a fork takes over that follows this plan, if the inputs of these names are `changed` and these nodes are other
    ones. Of the source there are only nodes that the plan has."""
    again = Again(plan, source)
    begun: dict[NodeId, None] = {}
    for node_id in (*_fed_by(changed, plan), *others):
        begun.update(dict.fromkeys((node_id, *again.begin_with(node_id))))
    while (lost := next((name for name in source.nodes if _is_read_on(name, source, plan, begun)), None)) is not None:
        begun.update(dict.fromkeys((lost, *again.begin_with(lost))))
    outputs = {
        node.node_id: node.outputs
        for node in source.nodes.values()
        if node.status is NodeStatus.COMPLETED and node.outputs is not None and node.node_id not in begun
    }
    return Taken(outputs=outputs, given=_still_given(source.given, plan, changed, without=outputs))


class Forking(Restoring):
    """The decisions that have to do with forks."""

    def take_over(self, taken: Taken, *, reason: str, at: int) -> None:
        """Begin with what another run has done. It is the second branch of a run whose first one has nothing."""
        if taken.outputs or taken.given:
            cone, cut = Cone(dropped=tuple(taken.outputs)), self.projection.run.last_seq
            self._branch(cone, cut, reason=reason, asked_as="", given=taken.given, outputs=taken.outputs, at=at)


def _still_given(given: Given, plan: Plan, changed: Collection[str], *, without: Collection[NodeId]) -> Given:
    """Return what nodes that begin are given. An input that is another one counts more than what stood in the place of it."""
    fed = {
        (edge.target, edge.target_handle)
        for edge in plan.graph.edges
        if edge.source == INPUT and edge.source_handle in changed
    }
    kept = {
        name: {handle: value for handle, value in values.items() if (name, handle) not in fed}
        for name, values in given.items()
        if name in plan.nodes and name not in without
    }
    return {name: values for name, values in kept.items() if values}


def _fed_by(inputs: Collection[str], plan: Plan) -> set[NodeId]:
    """Return the nodes that are given one of these inputs, and those that stand for one."""
    fed = {edge.target for edge in plan.graph.edges if edge.source == INPUT and edge.source_handle in inputs}
    return {name for name, node in plan.nodes.items() if name in fed or (name in inputs and node.node.type in FED)}


def _is_read_on(name: NodeId, source: Projection, plan: Plan, begun: dict[NodeId, None]) -> bool:
    """Whether somebody who begins would read the stream of a node item by item of which only the whole is there."""
    if name in begun or not plan.nodes[name].emits or source.status(name) is not NodeStatus.COMPLETED:
        return False
    return any(reader in begun or source.status(reader) not in SETTLED for reader in plan.nodes[name].readers)
