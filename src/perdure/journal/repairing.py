"""What follows when somebody has a run go back: to what has failed, or to a node from which it is to go on otherwise.

Nothing is taken from the log. The run goes on on a branch that keeps what is not to be done again: whatever does not depend on
the node that was chosen, with attempts that run and questions that are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from perdure.graph.model import FED
from perdure.ids import NodeId, Seq
from perdure.journal import events as e
from perdure.journal.again import has_begun
from perdure.journal.choosing import spread, why_not_chosen
from perdure.journal.flow import Range, ranges_of
from perdure.journal.resting import Resting
from perdure.journal.states import TERMINAL, NodeStatus, RunStatus

_STOPPED = frozenset((NodeStatus.FAILED, NodeStatus.CANCELLED))
_REST = frozenset((RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT, RunStatus.QUARANTINED))


class Cone(msgspec.Struct, frozen=True, kw_only=True):
    """What a step back means, node by node. All other nodes stay as they are."""

    dropped: tuple[NodeId, ...] = ()
    """Nodes that begin again."""
    retried: tuple[NodeId, ...] = ()
    """Nodes that had failed or were stopped, and are tried again; and those of which only some items begin again."""
    items: Mapping[NodeId, tuple[Range, ...]] = {}
    """Of those: the positions of the items, as ranges."""
    sources: tuple[NodeId, ...] = ()
    """Nodes that stay as they are, and whose items are read again, of which only the whole is left."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be otherwise at a node to which a run goes back."""

    node_id: NodeId
    given: Mapping[str, e.Encoded] = {}
    outputs: Mapping[str, e.Encoded] | None = None
    items: tuple[int, ...] = ()
    """The items that begin again; none if the whole node does."""

    @property
    def is_none(self) -> bool:
        return not self.given and self.outputs is None


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """Another version that a run is to follow from now on."""

    version: int
    graph_hash: str


class _ReadOut(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody would read a stream again, item by item, of which only the whole is left."""

    reader: NodeId
    source: NodeId


class Repairing(Resting):
    """The decisions that have to do with going back."""

    def cone_of_retry(self) -> Cone:
        """Return what is tried again: whatever has failed, or was stopped because of it."""
        return Cone(retried=self._stopped())

    @property
    def may_retry(self) -> bool:
        """Whether there is something left to do in a run that has ended."""
        return self.projection.run.status in (RunStatus.FAILED, RunStatus.CANCELLED)

    def cone_of_jump(self, change: Change) -> Cone:
        """Return what begins again if a run goes back to a node: that one, unless somebody says what it has given, and whatever
        depends on it. Of a run that has ended, all else that was stopped is tried again."""
        chosen = change.node_id
        if change.items:
            return self._cone_of_items(change)
        after = self._again.begin_with(chosen)
        is_retried = change.is_none and self.projection.status(chosen) in _STOPPED
        has_row = self.projection.nodes.keys()
        dropped = tuple(node_id for node_id in after if node_id in has_row)
        if not is_retried:
            dropped = (chosen, *dropped)
        cone = frozenset((chosen, *after))
        retried: tuple[NodeId, ...] = (chosen,) if is_retried else ()
        if self.projection.run.status in TERMINAL:
            retried += tuple(node_id for node_id in self._stopped() if node_id not in cone)
        return Cone(dropped=dropped, retried=retried)

    def _cone_of_items(self, change: Change) -> Cone:
        found = spread(change.node_id, change.items, self.plan, self.projection, self._again)
        has_row = self.projection.nodes.keys()
        cone = {*found.items, *found.whole}
        retried = tuple(found.items)
        if self.projection.run.status in TERMINAL:
            retried += tuple(node_id for node_id in self._stopped() if node_id not in cone)
        return Cone(
            dropped=tuple(node_id for node_id in found.whole if node_id in has_row),
            retried=retried,
            items=found.items,
            sources=found.sources,
        )

    def in_doubt_after(self, cone: Cone) -> tuple[NodeId, ...]:
        """Return which of the nodes that are tried again must run at most once, and were stopped when they had begun: nobody
        knows what became of them."""
        return tuple(
            node_id
            for node_id in cone.retried
            if self.plan.nodes[node_id].policy.once
            and self.projection.status(node_id) is NodeStatus.CANCELLED
            and has_begun(self.projection.node(node_id))
        )

    def retry(self, *, reason: str, asked_as: str, at: int) -> Cone:
        """Go on with a run that has ended, and try again what has failed."""
        cone, cut = self.cone_of_retry(), self.projection.run.last_seq
        self._reopen(reason, at)
        self._branch(cone, cut, reason=reason, asked_as=asked_as, given=self.projection.given, at=at)
        return cone

    def jump(
        self,
        change: Change,
        *,
        reason: str,
        by: str,
        asked_as: str,
        at: int,
        items: Mapping[NodeId, e.KeptItems] | None = None,
    ) -> Cone:
        """Go back to just before a node, and go on from there, perhaps with something else. `items` is what is kept of streams,
        if only some items begin again."""
        cone, cut = self.cone_of_jump(change), self.projection.run.last_seq
        self._reopen(reason, at)
        chosen = tuple(ranges_of(change.items))
        self._record(e.JumpRequested(node_id=change.node_id, reason=reason, by=by, items=chosen), at)
        dropped = frozenset(cone.dropped)
        given = {node_id: values for node_id, values in self.projection.given.items() if node_id not in dropped}
        if change.given:
            given[change.node_id] = change.given
        outputs = {} if change.outputs is None else {change.node_id: dict(change.outputs)}
        self._branch(cone, cut, reason=reason, asked_as=asked_as, given=given, outputs=outputs, items=items, at=at)
        return cone

    def _stopped(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id, node in self.projection.nodes.items() if node.status in _STOPPED)

    def _reopen(self, reason: str, at: int) -> None:
        """Have the run move again, unless it was paused: then it goes on where it is told to when it is resumed."""
        status = self.projection.run.status
        if status in TERMINAL:
            self._record(e.RunReopened(reason=reason), at)
        elif status in _REST:
            self._record(e.RunResumed(reason=reason), at)
        self.falls_asleep = False

    def _branch(
        self,
        cone: Cone,
        cut: Seq,
        *,
        reason: str,
        asked_as: str,
        given: Mapping[NodeId, Mapping[str, e.Encoded]],
        outputs: Mapping[NodeId, dict[str, e.Encoded]] | None = None,
        items: Mapping[NodeId, e.KeptItems] | None = None,
        switch: Switch | None = None,
        at: int,
    ) -> None:
        run = self.projection.run
        branch_id = self.projection.next_branch
        created = e.BranchCreated(
            branch_id=branch_id,
            parent=run.branch_id,
            cut=cut,
            dropped=cone.dropped,
            retried=cone.retried,
            in_doubt=self.in_doubt_after(cone),
            given={node_id: dict(values) for node_id, values in given.items()},
            outputs=dict(outputs or {}),
            items=dict(items or {}),
            reason=reason,
            asked_as=asked_as,
        )
        self._record(created, at)
        version, graph_hash = (None, "") if switch is None else (switch.version, switch.graph_hash)
        self._record(e.BranchActivated(branch_id=branch_id, version=version, graph_hash=graph_hash), at)
        self._dropped.difference_update(cone.dropped, created.items)
        gone = frozenset(cone.dropped)
        self.ready = deque(node_id for node_id in self.ready if node_id not in gone)
        self._survey_again()

    def why_not(self, change: Change) -> str | None:
        """Return why a run cannot go back to a node, and what can be done instead; None if it can."""
        problem = self._problem(change)
        return self._told(problem, change) if isinstance(problem, _ReadOut) else problem

    def _problem(self, change: Change) -> str | _ReadOut | None:
        chosen = change.node_id
        if chosen not in self.plan.nodes:
            return f"there is no node {chosen!r} in its graph"
        if change.outputs is not None and self.plan.nodes[chosen].readers:
            return f"what {chosen!r} gives is read item by item, and cannot be said as a whole: go back to it with other inputs"
        if change.items and (problem := self._why_not_items(change)) is not None:
            return problem
        cone = self.cone_of_jump(change)
        dropped = frozenset(cone.dropped)
        replaced = () if change.outputs is None else (chosen,)
        for node_id in (*cone.dropped, *cone.items):
            plan, node = self.plan.nodes[node_id], self.projection.node(node_id)
            if node_id in replaced:
                continue
            if plan.policy.once and has_begun(node):
                return f"{node_id!r} must run at most once, and has begun: say what it has given instead"
            if plan.node.type in FED and node.started_at is not None:
                return f"{node_id!r} is fed from outside, and what has come for it cannot be had again"
            if not change.items and (source := self._read_out_for(node_id, dropped)) is not None:
                return _ReadOut(reader=node_id, source=source)
        return None

    def _told(self, problem: _ReadOut, change: Change) -> str:
        reader, begins = problem.reader, problem.source
        while (before := self._read_out_for(begins, self._dropped_with(begins))) is not None:
            begins = before
        ways: list[str] = []
        if self._problem(Change(node_id=begins)) is None:
            ways.append(f"go back to {begins!r}")
        if reader == change.node_id and self._problem(Change(node_id=reader, items=(0,))) is None:
            ways.append(f"choose items of {reader!r}, as many as you like (`items=`, `--items`)")
        instead = ", or ".join(ways) or "go back to a node on which all depends that it reads, or start another run"
        return f"{reader!r} reads {problem.source!r} item by item, and its items are not kept: {instead}"

    def _dropped_with(self, node_id: NodeId) -> frozenset[NodeId]:
        """Return what begins again if a run goes back to a node."""
        return frozenset(self.cone_of_jump(Change(node_id=node_id)).dropped)

    def _why_not_items(self, change: Change) -> str | None:
        chosen = change.node_id
        if change.outputs is not None:
            return f"what single items of {chosen!r} give cannot be said, only what it gives as a whole"
        if (problem := why_not_chosen(chosen, self.plan, self.projection)) is not None:
            return problem
        if chosen not in self.cone_of_jump(change).items:
            return f"what {chosen!r} reads was ended before its time, and begins again as a whole: go back to it so"
        return None

    def _read_out_for(self, node_id: NodeId, dropped: frozenset[NodeId]) -> NodeId | None:
        """Return a source whose stream a node would read again, and of which only the whole is left."""
        flow = self.plan.nodes[node_id].flow
        for edge in () if flow is None else flow.live:
            if edge.source not in dropped and self._is_read_out(edge.source):
                return edge.source
        return None
