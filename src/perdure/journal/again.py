"""Who begins again where a generator that is run again gives something else, and which streams nobody reads any more.

The two belong together. A stream that was ended because nobody read it is not whole: if one of those who read it begins again,
it has to begin again, too, and with it everybody else who has worked with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.graph.model import FED
from perdure.graph.plan import Plan
from perdure.ids import NodeId
from perdure.journal.projection import Projection
from perdure.journal.states import ENDED, NodeState, NodeStatus


class Again:
    """Answers for one run, by its plan and where it stands."""

    def __init__(self, plan: Plan, projection: Projection) -> None:
        self._plan = plan
        self._projection = projection

    def begin_with(self, *nodes: NodeId) -> list[NodeId]:
        """Return the nodes that begin again if some give something else than before, without those themselves."""
        found = self._found(nodes)
        for node_id in nodes:
            found.pop(node_id, None)
        return list(found)

    def may_begin(self) -> frozenset[NodeId]:
        """Return the nodes that begin again if any generator that is not done gives something else than before."""
        return frozenset(self._found(self._unfinished()))

    def unread_sources(self, node_id: NodeId) -> Iterator[NodeId]:
        """Yield whose streams a node has read that were ended because nobody read them any more, or are about to be."""
        flow = self._plan.nodes[node_id].flow
        for edge in () if flow is None else flow.live:
            stream = self._projection.node(edge.source).stream
            is_left = self._is_left(edge.source) and not self._is_input(edge.source)
            if stream is not None and (stream.is_unread or is_left):
                yield edge.source

    def is_unread(self, node_id: NodeId) -> bool:
        """Whether a node gives a stream that nobody reads any more, and of which nobody wants the whole.

        What was sent to an input cannot be had again: as long as somebody may begin to read it again, it stays open.
        """
        if not self._is_left(node_id):
            return False
        return not self._is_input(node_id) or self.may_begin().isdisjoint(self._plan.nodes[node_id].readers)

    def _is_left(self, node_id: NodeId) -> bool:
        plan, status = self._plan.nodes[node_id], self._projection.status
        if not plan.readers or plan.downstream or node_id in self._plan.returned:
            return False
        return status(node_id) is NodeStatus.RUNNING and all(status(reader) in ENDED for reader in plan.readers)

    def _is_input(self, node_id: NodeId) -> bool:
        return self._plan.nodes[node_id].node.type in FED

    def _unfinished(self) -> Iterator[NodeId]:
        return (node_id for node_id in self._plan.generators if self._projection.status(node_id) not in ENDED)

    def _found(self, generators: Iterable[NodeId]) -> dict[NodeId, None]:
        found: dict[NodeId, None] = {}
        pending = list(generators)
        while pending:
            node_id = pending.pop()
            plan = self._plan.nodes[node_id]
            unread = self.unread_sources(node_id) if node_id in found else ()
            for other in (*plan.downstream, *plan.readers, *unread):
                if other not in found:
                    found[other] = None
                    pending.append(other)
        return found


def has_begun(node: NodeState) -> bool:
    """Whether a body of the node has begun, in this attempt or in one before, or somebody has said what it has given."""
    is_said = node.status is NodeStatus.COMPLETED and not node.attempt
    return node.started_at is not None or node.attempt > 1 or is_said
