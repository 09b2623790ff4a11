"""What follows when a run goes back to what it was: at the end of an earlier branch, or at any place of its log.

The run goes on on a branch whose parent is the one on which it was then. What was done by then is kept, and so is what people
have answered. Bodies that were at work are gone, as with an engine that was lost: their next attempts follow. What was recorded
later stays in the log, and is no part of the branch.

Items of streams are removed when nobody reads them any more. Where those are gone that readers need, whoever gave them begins
again, and with it everybody who depends on it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from perdure.graph.model import FED
from perdure.graph.plan import Plan
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.again import Again, has_begun
from perdure.journal.projection import Projection
from perdure.journal.repairing import Cone, Repairing
from perdure.journal.states import MOVING, SETTLED, NodeState, NodeStatus, RunState, RunStatus

_AT_WORK = frozenset((NodeStatus.RUNNING, NodeStatus.SUSPENDED))
_KNOWN_TO_HAVE_BEGUN = frozenset((*SETTLED, NodeStatus.RUNNING, NodeStatus.IN_DOUBT))
_IN_THE_MIDST = {
    RunStatus.CREATED: "it had not started yet",
    RunStatus.FAILING: "it was failing",
    RunStatus.CANCELLING: "it was being cancelled",
}


_ABOUT_TO_BRANCH = (e.RunReopened, e.JumpRequested, e.BranchCreated)
"""What is recorded before a run goes on on another branch. Nothing in it may be able to move where one of these is the last."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A place of a run's log, and what has become of the run since, on whichever branch."""

    then: Projection
    kept: frozenset[NodeId] = frozenset()
    """Nodes of whose streams all items are still there that had been recorded by then."""
    begun: frozenset[NodeId] = frozenset()
    """Nodes of which an attempt has begun since."""
    fed: frozenset[NodeId] = frozenset()
    """Nodes of whose streams something was recorded since."""
    is_going_back: bool = False
    """Whether the run was about to go on on another branch, and was not on it yet."""

    @property
    def seq(self) -> Seq:
        """The last event of the place."""
        return self.then.run.last_seq


def is_about_to_branch(last: e.Event, following: e.Event | None) -> bool:
    """Whether a run was about to go on on another branch between two events of its log. A branch on which it never went on, and
    which therefore is not followed by that, changes nothing."""
    if isinstance(last, e.BranchCreated):
        return isinstance(following, e.BranchActivated) and following.branch_id == last.branch_id
    return isinstance(last, _ABOUT_TO_BRANCH)


def happened_since(log: Iterator[e.Recorded] | list[e.Recorded]) -> tuple[frozenset[NodeId], frozenset[NodeId]]:
    """Return the nodes of which an attempt has begun in a part of a log, and those of whose streams something was recorded."""
    begun: set[NodeId] = set()
    fed: set[NodeId] = set()
    for entry in log:
        match entry.event:
            case e.NodeStarted(node_id=node_id):
                begun.add(node_id)
            case e.OutboxEnqueued(node_id=node_id) | e.OutboxClosed(node_id=node_id):
                fed.add(node_id)
            case e.TriggerInputReceived(node_id=node_id):
                fed.add(node_id)
            case _:
                pass
    return frozenset(begun), frozenset(fed)


def cone_of_restore(past: Past, plan: Plan) -> Cone:
    """Return what begins again because items are gone, and which attempts that were at work are followed by others."""
    then = past.then
    again = Again(plan, then)
    dropped: dict[NodeId, None] = {}
    while (lost := next((name for name in then.nodes if _lacks_items(name, past, plan, dropped)), None)) is not None:
        dropped.update(dict.fromkeys((lost, *again.begin_with(lost))))
    return Cone(
        dropped=tuple(name for name in dropped if name in then.nodes),
        retried=tuple(name for name in then.nodes if name not in dropped and _is_at_work(name, then)),
    )


def needed_streams(past: Past, plan: Plan, cone: Cone) -> Iterator[NodeId]:
    """Yield the nodes whose items the branch needs, and that are there."""
    dropped = frozenset(cone.dropped)
    for name in past.then.nodes:
        if name in past.kept and name not in dropped and not _is_read_out(name, past, plan, dropped):
            yield name


def why_not_back(past: Past, plan: Plan, now: RunState) -> str | None:
    """Return why a run cannot go back to a place; None if it can."""
    then = past.then.run
    if now.status in MOVING:
        return f"it is {now.status.value}: pause or cancel it first"
    if then.graph_hash != now.graph_hash:
        followed = f"it followed version {then.version} at that place, and follows version {now.version}"
        return (
            f"{followed}: go back to a node of the other version, with `version={then.version}`, or fork it from there"
        )
    if (problem := _IN_THE_MIDST.get(past.then.run.status)) is not None:
        return f"{problem} at that place: choose another one"
    if _has_to_fail(past.then):
        return f"{_IN_THE_MIDST[RunStatus.FAILING]} at that place: choose another one"
    if past.is_going_back:
        return "it was just going back at that place: choose another one"
    dropped = frozenset(cone_of_restore(past, plan).dropped)
    for name, node_plan in plan.nodes.items():
        is_dropped, node = name in dropped, past.then.node(name)
        if node_plan.policy.once:
            if is_dropped and has_begun(node):
                return f"{name!r} must run at most once, has begun, and would begin again: items that it had to do with are gone"
            if name in past.begun and node.status not in _KNOWN_TO_HAVE_BEGUN:
                return f"{name!r} must run at most once, and has begun since"
        if node_plan.node.type in FED and name not in past.then.run.inputs:  # else its items are known from the start
            if name in past.fed and node.status not in SETTLED:
                return f"{name!r} is fed from outside, and what has come for it since cannot be had again"
            if is_dropped and node.started_at is not None:
                return f"{name!r} is fed from outside, and what had come for it is gone"
    return None


class Restoring(Repairing):
    """The decisions that have to do with going back to what a run was."""

    def restore(self, past: Past, *, reason: str, asked_as: str, at: int) -> BranchId:
        """Go back to a place, and go on from there. Return the branch."""
        cone, then = cone_of_restore(past, self.plan), past.then
        dropped = frozenset(cone.dropped)
        self.projection.pasts[past.seq] = then
        branch_id = self.projection.next_branch
        created = e.BranchCreated(
            branch_id=branch_id,
            parent=then.run.branch_id,
            cut=past.seq,
            dropped=cone.dropped,
            retried=cone.retried,
            in_doubt=tuple(name for name in cone.retried if self.plan.nodes[name].policy.once),
            given={name: dict(values) for name, values in then.given.items() if name not in dropped},
            restored=True,
            reason=reason,
            asked_as=asked_as,
        )
        self._record(created, at)
        self._record(e.BranchActivated(branch_id=branch_id), at)
        self.projection.pasts.clear()
        self.falls_asleep = False
        self.ready.clear()
        self._dropped.clear()
        self._looks.clear()
        self._stages_open.clear()
        self._survey()
        self._look_at_all()
        return branch_id


def _has_to_fail(then: Projection) -> bool:
    """Whether a node has failed, and what follows from that for the run was not recorded yet."""
    ends = then.run.status is RunStatus.RUNNING and then.run.settings.on_failure == "stop"
    return ends and any(node.status is NodeStatus.FAILED for node in then.nodes.values())


def _is_at_work(name: NodeId, then: Projection) -> bool:
    """Whether the attempt at a node is lost. Of a stream that was closed, all that was to come is recorded."""
    node = then.node(name)
    is_done = node.status is NodeStatus.RUNNING and node.stream is not None and node.stream.is_closed
    return node.status in _AT_WORK and not is_done


def _lacks_items(name: NodeId, past: Past, plan: Plan, dropped: dict[NodeId, None]) -> bool:
    if name in dropped or name in past.kept or not _has_given_items(past.then.node(name), plan):
        return False
    return not _is_read_out(name, past, plan, dropped)


def _has_given_items(node: NodeState, plan: Plan) -> bool:
    """Whether others may read something item by item. Of a node that a fork has taken over there is only the whole."""
    if node.stream is None:
        return node.status is NodeStatus.COMPLETED and plan.nodes[node.node_id].emits
    return bool(node.stream.entries)


def _is_read_out(name: NodeId, past: Past, plan: Plan, dropped: Container[NodeId]) -> bool:
    """Whether a node has given its whole stream as one value, and nobody on the branch reads it item by item any more."""
    node, status = plan.nodes[name], past.then.status
    is_whole = node.emits and status(name) is NodeStatus.COMPLETED
    return is_whole and all(status(reader) in SETTLED and reader not in dropped for reader in node.readers)
