"""What a branch makes of a run and its nodes: which are kept, which begin again, and which are tried again."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from perdure.ids import NodeId, Seq
from perdure.journal import events as e
from perdure.journal.flow import chained, opened_stream
from perdure.journal.states import (
    SETTLED,
    WAITING,
    BranchState,
    NodeState,
    NodeStatus,
    RunState,
    RunStatus,
    StreamState,
)


def branched(
    nodes: Mapping[NodeId, NodeState], event: e.BranchCreated, *, seq: Seq, at: int
) -> dict[NodeId, NodeState]:
    """Return the nodes as they stand on a branch that was created."""
    dropped, retried, in_doubt = frozenset(event.dropped), frozenset(event.retried), frozenset(event.in_doubt)
    after: dict[NodeId, NodeState] = {}
    for node_id, node in nodes.items():
        if node_id in dropped:
            after[node_id] = _begun_again(node, event, seq, at)
        elif node_id in in_doubt:
            after[node_id] = _doubted(node, event, seq)
        elif (kept := event.items.get(node_id)) is not None:
            after[node_id] = _with_items(node, kept, event, seq)
        elif node_id in retried:
            after[node_id] = _tried_again(node, event, seq)
        elif node_id == event.replayed:
            stream = opened_stream(event.branch_id)
            after[node_id] = replace(node, branch_id=event.branch_id, stream=stream, checkpoint=None, last_seq=seq)
        else:
            after[node_id] = replace(node, branch_id=event.branch_id)
    for node_id in event.dropped:
        if node_id not in nodes:
            untouched = NodeState(node_id=node_id, branch_id=event.branch_id, generation=0)
            after[node_id] = _begun_again(untouched, event, seq, at)
    return after


def restored_nodes(
    then: Mapping[NodeId, NodeState], now: Mapping[NodeId, NodeState], event: e.BranchCreated, *, seq: Seq, at: int
) -> dict[NodeId, NodeState]:
    """Return the nodes as they stood at an earlier place, to go on from there.

    What has happened to them since, on whichever branch, is not undone by that. A node that goes on where something else has
    come of it meanwhile is another piece of work, and its keys are other ones.
    """
    dropped, retried, in_doubt = frozenset(event.dropped), frozenset(event.retried), frozenset(event.in_doubt)
    after: dict[NodeId, NodeState] = {}
    for node_id in (*then, *(node_id for node_id in now if node_id not in then)):
        latest = now.get(node_id) or NodeState(node_id=node_id, branch_id=event.branch_id)
        node = then.get(node_id)
        if node is None or node_id in dropped:
            after[node_id] = _begun_again(latest, event, seq, at)
            continue
        is_left = node.status not in SETTLED and latest.last_seq != node.last_seq
        stood = _as_it_stood(node, max(node.generation, latest.generation + is_left), event)
        if node_id in in_doubt:
            stood = _doubted(stood, event, seq)
        elif node_id in retried:
            stood = _followed(stood, seq, at)
        after[node_id] = stood
    return after


def restored_run(then: RunState, now: RunState, event: e.BranchCreated) -> RunState:
    """Return a run as it was at an earlier place. If it waited there, it moves, and comes to wait again; if it was just being
    taken over, that is done."""
    goes_on = then.status in (*WAITING, RunStatus.QUARANTINED, RunStatus.RECOVERING)
    pinned = replace(then, version=now.version, graph_hash=now.graph_hash)  # the one from then may be gone
    back = replace(pinned, branch_id=now.branch_id, epoch=now.epoch, recoveries=0, wake_at=None, last_seq=now.last_seq)
    return replace(back, status=RunStatus.RUNNING, failed_node=None, reason=event.reason) if goes_on else back


def branch_state(created: e.BranchCreated, *, seq: Seq, at: int) -> BranchState:
    """Return the line of history that an event has created."""
    return BranchState(
        branch_id=created.branch_id,
        parent=created.parent,
        cut=created.cut,
        dropped=created.dropped,
        retried=created.retried,
        given=created.given,
        reason=created.reason,
        asked_as=created.asked_as,
        created_at=at,
        restored=created.restored,
        seq=seq,
    )


def _begun_again(node: NodeState, event: e.BranchCreated, seq: Seq, at: int) -> NodeState:
    """Return a node of which nothing is kept but how often it has begun, which makes its keys other ones."""
    begun = NodeState(node_id=node.node_id, branch_id=event.branch_id, generation=node.generation + 1, last_seq=seq)
    outputs = event.outputs.get(node.node_id)
    if outputs is None:
        return begun
    return replace(begun, status=NodeStatus.COMPLETED, outputs=outputs, ended_at=at)


def _with_items(node: NodeState, kept: e.KeptItems, event: e.BranchCreated, seq: Seq) -> NodeState:
    """Return a node of whose stream the branch has rows of its own. If items of it begin again, their keys are other ones."""
    before = node.stream or StreamState(branch_id=event.branch_id, is_closed=node.status is NodeStatus.COMPLETED)
    entries = sum(count for _, count in kept.ranges)
    digest = chained("", kept.digest) if kept.ranges else ""
    if not kept.chosen:
        stream = replace(before, branch_id=event.branch_id, entries=entries, digest=digest)
        return replace(node, branch_id=event.branch_id, stream=stream)
    generation = node.generation + 1
    undone = () if before.is_closed else before.chosen
    stream = StreamState(
        branch_id=event.branch_id,
        entries=entries,
        digest=digest,
        failed=kept.failed,
        chosen=(*undone, *((first, count, generation) for first, count in kept.renewed or kept.chosen)),
        base=before.base if undone else node.generation,
    )
    return replace(_tried_again(replace(node, stream=stream), event, seq), generation=generation, outputs=None)


def _as_it_stood(node: NodeState, generation: int, event: e.BranchCreated) -> NodeState:
    """Return a node with its stream, whose items are copied to the branch as far as they are needed."""
    stream = None if node.stream is None else replace(node.stream, branch_id=event.branch_id)
    if stream is not None and stream.chosen and generation != node.generation:
        stream = replace(stream, chosen=(), base=0)  # none of its items is the same piece of work
    return replace(node, branch_id=event.branch_id, generation=generation, stream=stream)


def _followed(node: NodeState, seq: Seq, at: int) -> NodeState:
    """Return a node whose attempt was at work, and is followed by the next one."""
    return replace(
        node,
        status=NodeStatus.SCHEDULED,
        attempt=node.attempt + 1,
        attempt_ended=False,
        reason="",
        due=None,
        scheduled_at=at,
        started_at=None,
        ended_at=None,
        duration_ms=None,
        stream=None if node.stream is None else replace(node.stream, wants_items=False),
        last_seq=seq,
    )


def _doubted(node: NodeState, event: e.BranchCreated, seq: Seq) -> NodeState:
    """Return a node of which nobody knows what became of its attempt."""
    return replace(
        node,
        branch_id=event.branch_id,
        status=NodeStatus.IN_DOUBT,
        attempt_ended=True,
        reason="",
        ended_at=None,
        last_seq=seq,
    )


def _tried_again(node: NodeState, event: e.BranchCreated, seq: Seq) -> NodeState:
    """Return a node that goes on with what it has recorded, and with its budgets whole. One whose stream is whole has nothing
    left to do but to be completed."""
    stream = node.stream
    if stream is not None and stream.is_closed:
        return replace(
            node, branch_id=event.branch_id, status=NodeStatus.RUNNING, reason="", ended_at=None, last_seq=seq
        )
    if stream is not None:
        stream = replace(stream, attempts={}, wants_items=False)
    return replace(
        node,
        branch_id=event.branch_id,
        status=NodeStatus.IDLE,
        attempt_ended=False,
        failures=0,
        lost=0,
        error=None,
        reason="",
        due=None,
        scheduled_at=None,
        started_at=None,
        ended_at=None,
        duration_ms=None,
        stream=stream,
        last_seq=seq,
    )
