"""Whose turn it is: nodes are scheduled or skipped in the order in which that became possible.

Decisions about many nodes are committed in portions, so a log may end while some nodes wait for theirs. None is passed over.
"""

from __future__ import annotations

from collections import OrderedDict

from perdure.graph.plan import Plan
from perdure.ids import NodeId, Seq
from perdure.journal.projection import Projection
from perdure.journal.readiness import is_open, readiness
from perdure.journal.states import SETTLED, NodeStatus


class Turns:
    """Follows a log, event by event, and knows which nodes wait to be decided about, oldest first."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting = {node_id: len(node.upstream) + len(node.opened_by) for node_id, node in plan.nodes.items()}
        self._opened: set[NodeId] = set()
        self._since: OrderedDict[NodeId, Seq] = OrderedDict()  # the oldest of a dict is not found at once

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be decided."""
        return not self._since

    def branched(self, projection: Projection, seq: Seq) -> None:
        """The run goes on on another branch: some nodes have begun again."""
        nodes = self._plan.nodes
        self._opened = {node_id for node_id in nodes if is_open(node_id, projection)}
        for node_id, node in nodes.items():
            unsettled = sum(projection.status(source) not in SETTLED for source in node.upstream)
            unopened = sum(
                projection.status(source) not in SETTLED and source not in self._opened for source in node.opened_by
            )
            self._waiting[node_id] = unsettled + unopened
        self.begin(projection, seq)

    def begin(self, projection: Projection, seq: Seq) -> None:
        """Somebody starts, takes up or resumes the run, and looks at every node."""
        due = (node_id for node_id in self._plan.nodes if self._is_due(node_id, projection))
        self._since = OrderedDict.fromkeys(due, seq)

    def settled(self, node_id: NodeId, projection: Projection, seq: Seq) -> None:
        """A node is completed or skipped: others may have waited for that."""
        plan = self._plan.nodes.get(node_id)
        for dependent in () if plan is None else plan.downstream:
            self._heard(dependent, projection, seq)

    def opened(self, node_id: NodeId, projection: Projection, seq: Seq) -> None:
        """A node's stream flows, or there will be none: others may have waited for that."""
        plan = self._plan.nodes.get(node_id)
        if plan is None or node_id in self._opened:
            return
        self._opened.add(node_id)
        for reader in plan.readers:
            if node_id in self._plan.nodes[reader].opened_by:
                self._heard(reader, projection, seq)

    def _heard(self, node_id: NodeId, projection: Projection, seq: Seq) -> None:
        self._waiting[node_id] -= 1
        if node_id not in self._since and self._is_due(node_id, projection):
            self._since[node_id] = seq

    def decided(self, node_id: NodeId) -> NodeId | None:
        """A node is scheduled or skipped. Return another one that should have been before it, if there is one."""
        since = self._since.pop(node_id, None)
        oldest = next(iter(self._since), None)
        # One that waits for the first of several is looked at again and again, so it may come early.
        if since is None or oldest is None or self._plan.nodes[node_id].waits_for_first:
            return None
        return oldest if self._since[oldest] < since else None

    def _is_due(self, node_id: NodeId, projection: Projection) -> bool:
        plan = self._plan.nodes[node_id]
        if projection.status(node_id) is not NodeStatus.IDLE or (self._waiting[node_id] and not plan.waits_for_first):
            return False
        return readiness(plan, projection) is not None
