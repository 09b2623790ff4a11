"""What becomes of a node by each event: one small function for each, and the table that knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from perdure.errors import IllegalTransition
from perdure.ids import Seq
from perdure.journal import events as e
from perdure.journal.flow import checkpointed, cut_back, evolve_stream, opened_stream
from perdure.journal.states import NODE_LAW, NodeState, NodeStatus


def _scheduled(node: NodeState, event: e.NodeScheduled, seq: Seq, at: int) -> NodeState:
    follows = node.status is NodeStatus.IDLE or node.attempt_ended
    if not follows or event.attempt != node.attempt + 1:
        raise IllegalTransition(node, event)
    return replace(
        node,
        status=_lawful(node, event, NodeStatus.SCHEDULED),
        attempt=event.attempt,
        attempt_ended=False,
        due=event.due,
        scheduled_at=at,
        started_at=None,
        ended_at=None,
        duration_ms=None,
        last_seq=seq,
    )


def _started(node: NodeState, event: e.NodeStarted, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.RUNNING)
    stream = opened_stream(node.branch_id) if event.streams and node.stream is None else node.stream
    if event.anew and stream is not None:
        stream = cut_back(stream)
    return replace(node, status=status, started_at=at, due=None, stream=stream, last_seq=seq)


def _completed(node: NodeState, event: e.NodeCompleted, seq: Seq, at: int) -> NodeState:
    return replace(
        node,
        status=_of_attempt(node, event, NodeStatus.COMPLETED),
        outputs=event.outputs,
        error=None,
        ended_at=at,
        duration_ms=event.duration_ms,
        last_seq=seq,
    )


def _failed(node: NodeState, event: e.NodeFailed, seq: Seq, at: int) -> NodeState:
    return replace(
        node,
        status=_of_attempt(node, event, NodeStatus.FAILED if event.final else NodeStatus.RUNNING),
        attempt_ended=not event.final,
        failures=node.failures + 1,
        error=event.error,
        ended_at=at,
        duration_ms=event.duration_ms,
        last_seq=seq,
    )


def _checkpointed(node: NodeState, event: e.NodeCheckpointed, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.RUNNING)
    stream = None if node.stream is None else checkpointed(node.stream, event)
    return replace(node, status=status, checkpoint=event.state, stream=stream, last_seq=seq)


def _goes_on_running(node: NodeState, event: e.StepCompleted | e.WaitOpened, seq: Seq, at: int) -> NodeState:
    return replace(node, status=_of_attempt(node, event, NodeStatus.RUNNING), last_seq=seq)


def _resumed(node: NodeState, event: e.NodeResumed, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.RUNNING)
    stream = cut_back(node.stream) if event.anew and node.stream is not None else node.stream
    if stream is not None and stream.wants_items:
        stream = replace(stream, wants_items=False)
    return replace(node, status=status, due=None, reason="", stream=stream, last_seq=seq)


def _triggered(node: NodeState, event: e.TriggerRegistered | e.TriggerInputReceived, seq: Seq, at: int) -> NodeState:
    return replace(node, status=_lawful(node, event, NodeStatus.RUNNING), last_seq=seq)


def _cursor_advanced(node: NodeState, event: e.TriggerCursorAdvanced, seq: Seq, at: int) -> NodeState:
    status = _lawful(node, event, NodeStatus.RUNNING)
    return replace(node, status=status, checkpoint=event.cursor, last_seq=seq)


def _wait_settled(
    node: NodeState, event: e.InteractionResponded | e.TimerFired | e.SignalTaken, seq: Seq, at: int
) -> NodeState:
    due = at if node.status is NodeStatus.SUSPENDED else node.due
    return replace(node, status=_lawful(node, event, node.status), due=due, last_seq=seq)


def _streamed(node: NodeState, event: e.OutboxEnqueued | e.OutboxClosed | e.ItemFailed, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.RUNNING)
    if node.stream is None or node.stream.is_closed:
        raise IllegalTransition(node, event)
    return replace(node, status=status, stream=evolve_stream(node.stream, event), last_seq=seq)


def _suspended(node: NodeState, event: e.NodeSuspended, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.SUSPENDED)
    due = at if event.goes_on else None
    wants_items = event.wants_items and node.stream is not None
    stream = replace(node.stream, wants_items=True) if wants_items and node.stream is not None else node.stream
    return replace(node, status=status, reason=event.reason, due=due, stream=stream, last_seq=seq)


def _attempt_lost(node: NodeState, event: e.AttemptLost, seq: Seq, at: int) -> NodeState:
    status = _of_attempt(node, event, NodeStatus.RUNNING)
    return replace(node, status=status, attempt_ended=True, lost=node.lost + 1, ended_at=at, last_seq=seq)


def _skipped(node: NodeState, event: e.NodeSkipped, seq: Seq, at: int) -> NodeState:
    status = _lawful(node, event, NodeStatus.SKIPPED)
    return replace(node, status=status, reason=event.reason, ended_at=at, last_seq=seq)


def _cancelled(node: NodeState, event: e.NodeCancelled, seq: Seq, at: int) -> NodeState:
    status = _lawful(node, event, NodeStatus.CANCELLED)
    return replace(node, status=status, reason=event.reason, ended_at=at, due=None, last_seq=seq)


def _in_doubt(node: NodeState, event: e.NodeInDoubt, seq: Seq, at: int) -> NodeState:
    if not node.attempt_ended or event.attempt != node.attempt:
        raise IllegalTransition(node, event)
    return replace(node, status=_lawful(node, event, NodeStatus.IN_DOUBT), last_seq=seq)


def _resolved(node: NodeState, event: e.NodeResolved, seq: Seq, at: int) -> NodeState:
    if event.attempt != node.attempt:
        raise IllegalTransition(node, event)
    match event.resolution:
        case "done":
            status = _lawful(node, event, NodeStatus.COMPLETED)
            return replace(node, status=status, outputs=event.outputs, ended_at=at, last_seq=seq)
        case "retry":
            return replace(
                node,
                status=_lawful(node, event, NodeStatus.SCHEDULED),
                attempt=node.attempt + 1,
                attempt_ended=False,
                scheduled_at=at,
                last_seq=seq,
            )
        case "fail":
            status = _lawful(node, event, NodeStatus.FAILED)
            return replace(node, status=status, error=event.error, ended_at=at, last_seq=seq)


def _of_attempt(node: NodeState, event: e.AttemptEvent, status: NodeStatus) -> NodeStatus:
    """Return the status to which an event moves a node that only its current attempt may cause."""
    if (
        event.attempt != node.attempt
        or node.attempt_ended
        or status not in NODE_LAW[type(event)].get(node.status, ())  # as `_lawful`, without a call
    ):
        raise IllegalTransition(node, event)
    return status


def _lawful(node: NodeState, event: e.NodeEvent, status: NodeStatus) -> NodeStatus:
    if status not in NODE_LAW[type(event)].get(node.status, ()):
        raise IllegalTransition(node, event)
    return status


NODE_CHANGES: Mapping[type[e.NodeEvent], Callable[[NodeState, Any, Seq, int], NodeState]] = {
    e.NodeScheduled: _scheduled,
    e.NodeStarted: _started,
    e.NodeCompleted: _completed,
    e.NodeFailed: _failed,
    e.NodeCheckpointed: _checkpointed,
    e.StepCompleted: _goes_on_running,
    e.InteractionRequested: _goes_on_running,
    e.TimerSet: _goes_on_running,
    e.SignalAwaited: _goes_on_running,
    e.NodeResumed: _resumed,
    e.TriggerRegistered: _triggered,
    e.TriggerInputReceived: _triggered,
    e.TriggerCursorAdvanced: _cursor_advanced,
    e.InteractionResponded: _wait_settled,
    e.TimerFired: _wait_settled,
    e.SignalTaken: _wait_settled,
    e.OutboxEnqueued: _streamed,
    e.OutboxClosed: _streamed,
    e.ItemFailed: _streamed,
    e.NodeSuspended: _suspended,
    e.AttemptLost: _attempt_lost,
    e.NodeSkipped: _skipped,
    e.NodeCancelled: _cancelled,
    e.NodeInDoubt: _in_doubt,
    e.NodeResolved: _resolved,
}
"""What becomes of a node by an event. Any other is only noted."""
