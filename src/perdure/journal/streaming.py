"""What follows from what happens to streams: entries that are recorded, streams that end, are cut off or begin again."""

from __future__ import annotations

from collections import deque

from perdure.graph.plan import Flow, NodePlan
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.again import has_begun
from perdure.journal.readiness import is_read_out
from perdure.journal.standing import Standing
from perdure.journal.states import (
    NodeStatus,
)


class Streaming(Standing):
    """The decisions that have to do with streams."""

    def begins_anew(self, node_id: NodeId) -> bool:
        """Whether what earlier attempts gave after their last checkpoint is of no use: nobody has seen it."""
        stream, plan = self.projection.node(node_id).stream, self.plan.nodes[node_id]
        if stream is None or plan.flow is None:
            return False
        is_held = plan.policy.replay == "hold" and not plan.flow.mapped
        return is_held and stream.entries > stream.checkpointed

    def attempt_cancelled(self, node_id: NodeId, attempt: int, *, reason: str, at: int) -> None:
        """The body was told to stop, and did."""
        if self.is_current(node_id, attempt):
            self._record(e.NodeCancelled(node_id=node_id, attempt=attempt, reason=reason), at)
            self._cut_off_readers(node_id, at)
            self._look_for_unread(node_id)

    def entries_recorded(
        self,
        node_id: NodeId,
        attempt: int,
        ranges: tuple[tuple[int, int], ...],
        digest: str,
        *,
        at: int,
        consumed: dict[str, int] | None = None,
    ) -> None:
        """A batch of entries of the node's stream goes to the store with this decision."""
        self._record(
            e.OutboxEnqueued(node_id=node_id, attempt=attempt, ranges=ranges, digest=digest, consumed=consumed or {}),
            at,
        )

    def item_failed(
        self,
        node_id: NodeId,
        attempt: int,
        position: int,
        item_attempt: int,
        error: e.ErrorRecord,
        *,
        final: bool,
        at: int,
        fails_node: bool = False,
    ) -> None:
        """An attempt at one item has failed, and its node perhaps with it."""
        self._record(
            e.ItemFailed(
                node_id=node_id,
                attempt=attempt,
                position=position,
                item_attempt=item_attempt,
                error=error,
                final=final,
                fails_node=fails_node,
            ),
            at,
        )

    def must_not_begin_again(self, node_id: NodeId) -> NodeId | None:
        """Return a node that would begin again with this one, must run at most once and has been started, if there is one."""
        for other in self._again.begin_with(node_id):
            if self.plan.nodes[other].policy.once and has_begun(self.projection.node(other)):
                return other
        return None

    def replay_differs(self, node_id: NodeId, *, reason: str, at: int) -> tuple[NodeId, ...]:
        """A node that is run again gives something else than before: the run goes on on a branch on which nobody has seen
        what it gave. Return the nodes that begin again there."""
        run = self.projection.run
        dropped = tuple(other for other in self._again.begin_with(node_id) if other in self.projection.nodes)
        branch_id = self.projection.next_branch
        created = e.BranchCreated(
            branch_id=branch_id,
            parent=run.branch_id,
            cut=run.last_seq,
            dropped=dropped,
            replayed=node_id,
            given={other: dict(values) for other, values in self.projection.given.items()},
            reason=reason,
        )
        self._record(created, at)
        self._record(e.BranchActivated(branch_id=branch_id), at)
        self._dropped.difference_update(dropped)
        self.ready = deque(other for other in self.ready if other not in dropped)
        self._survey_again()
        return dropped

    def input_received(self, node_id: NodeId, input_id: str, cursor: e.Encoded | None, *, at: int) -> None:
        """Something has come from outside for a trigger, whose cursor moves with it."""
        self._record(e.TriggerInputReceived(node_id=node_id, input_id=input_id), at)
        if cursor is not None:
            self._record(e.TriggerCursorAdvanced(node_id=node_id, cursor=cursor), at)

    def stream_closed(self, node_id: NodeId, attempt: int, *, at: int, unread: bool = False) -> None:
        """The node's stream has ended well, and all of it is recorded: no attempt at the node follows."""
        stream = self.projection.node(node_id).stream
        assert stream is not None, "only streams are closed"
        self._record(e.OutboxClosed(node_id=node_id, attempt=attempt, entries=stream.entries, unread=unread), at)

    def _opened(self, node_id: NodeId) -> None:
        """The node's stream flows, or there will be none: those that read it are to be looked at."""
        for reader in self.plan.nodes[node_id].readers:
            if node_id in self.plan.nodes[reader].opened_by:
                self._heard(reader)

    def _drop_read_out(self, node_id: NodeId, flow: Flow) -> None:
        """A node that has to do with streams is settled: some of them may not be needed any more, item by item."""
        # While a generator may give something else than before, nodes that depend on it may begin again with what they read.
        sources = self.plan.nodes if flow.is_generator else (node_id, *(edge.source for edge in flow.live))
        done = [
            source
            for source in dict.fromkeys(sources)
            if source not in self._dropped and self._has_stream(source) and self._is_read_out(source)
        ]
        if not done:
            return
        again = self._again.may_begin()
        for source in done:
            if again.isdisjoint(self.plan.nodes[source].readers):
                self._dropped.add(source)
                self._drops.append((self.projection.node(source), 0))

    def _has_stream(self, node_id: NodeId) -> bool:
        """Whether a node has given something item by item: not if a fork has taken it over, or somebody has said what it gave."""
        return self.projection.node(node_id).stream is not None

    def _is_read_out(self, node_id: NodeId) -> bool:
        return is_read_out(node_id, self.plan, self.projection)

    def is_unread(self, node_id: NodeId) -> bool:
        """Whether a node gives a stream that nobody reads any more, and of which nobody wants the whole."""
        return self._again.is_unread(node_id)

    def _look_for_unread(self, node_id: NodeId) -> None:
        """A node has ended, well or not: streams that it has read may have no reader any more."""
        flow = self.plan.nodes[node_id].flow
        if flow is not None:
            # When a generator is done, fewer may begin again, and inputs may be left by all.
            inputs = self.plan.fed if flow.is_generator else ()
            self.unread.extend(filter(self.is_unread, (node_id, *(edge.source for edge in flow.live), *inputs)))

    def _cut_off_readers(self, node_id: NodeId, at: int) -> None:
        """The node's stream will never be whole, so that nothing can come of those that read it."""
        for reader in self.plan.nodes[node_id].readers:
            node = self.projection.node(reader)
            if node.status is NodeStatus.SCHEDULED:
                reason = f"the stream of {node_id} was cut off"
                self._record(e.NodeCancelled(node_id=reader, attempt=node.attempt, reason=reason), at)
                self._cut_off_readers(reader, at)
                self._look_for_unread(reader)
            elif node.status is NodeStatus.RUNNING:
                self.cut_off.append(reader)


def is_generator(plan: NodePlan) -> bool:
    return plan.flow is not None and plan.flow.is_generator
