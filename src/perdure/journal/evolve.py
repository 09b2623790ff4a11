"""Fold events into state, by the law of `states`. Pure: the same events give the same rows, live or years later."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.errors import IllegalTransition
from perdure.ids import Epoch, RunId, Seq
from perdure.journal import events as e
from perdure.journal.flow import checkpointed, cut_back, evolve_stream, opened_stream
from perdure.journal.states import NODE_LAW, RUN_LAW, TERMINAL, NodeState, NodeStatus, RunState, RunStatus

PROGRESS = (e.NodeCompleted, e.OutboxEnqueued, e.WaitOpened, e.InteractionResponded, e.TimerFired, e.SignalTaken)
"""What says that the run gets on: from here its losses are counted anew."""


def create_run(run_id: RunId, created: e.RunCreated, *, at: int, branch_id: Any, epoch: Epoch) -> RunState:
    """Return the run that begins with `created`, which is always its first event."""
    return RunState(
        run_id=run_id,
        project_id=created.project_id,
        workflow=created.workflow,
        version=created.version,
        graph_hash=created.graph_hash,
        status=RunStatus.CREATED,
        branch_id=branch_id,
        epoch=epoch,
        inputs=created.inputs,
        settings=created.settings,
        source=created.source,
        created_at=at,
        last_seq=Seq(1),
    )


def evolve_run(run: RunState, event: e.Event, *, seq: Seq, at: int) -> RunState:
    """Return the run as it stands after `event`."""
    if isinstance(event, e.NodeEvent):
        recoveries = 0 if isinstance(event, PROGRESS) else run.recoveries
        return replace(run, last_seq=seq, recoveries=recoveries)
    match event:
        case e.RunStarted():
            return _run(run, event, RunStatus.RUNNING, seq, started_at=at)
        case e.RunClaimed():
            lost = event.lost and run.status is RunStatus.RUNNING
            status = RunStatus.RECOVERING if lost else run.status
            recoveries = run.recoveries + event.lost
            return _run(run, event, status, seq, epoch=event.epoch, recoveries=recoveries, wake_at=run.wake_at)
        case e.RunRecovered():
            return _recovered(run, event, seq)
        case e.RunPausing():
            return _run(run, event, RunStatus.PAUSING, seq, reason=event.reason)
        case e.RunPaused():
            return _run(run, event, RunStatus.PAUSED, seq)
        case e.RunSuspended():
            status = RunStatus.AWAITING_INPUT if event.awaiting_input else RunStatus.SUSPENDED
            return _run(run, event, status, seq, reason=event.reason, wake_at=event.wake_at)
        case e.RunResumed():
            return _run(run, event, RunStatus.RUNNING, seq, reason=event.reason, recoveries=0)
        case e.RunQuarantined():
            return _run(run, event, RunStatus.QUARANTINED, seq, reason=event.reason, failed_node=event.node_id)
        case e.RunCancelling():
            return _run(run, event, RunStatus.CANCELLING, seq, reason=event.reason)
        case e.RunFailing():
            return _run(run, event, RunStatus.FAILING, seq, error=event.error, failed_node=event.node_id)
        case e.RunCompleted():
            return _run(run, event, RunStatus.COMPLETED, seq, outputs=event.outputs, ended_at=at, reason="")
        case e.RunFailed():
            return _run(run, event, RunStatus.FAILED, seq, error=event.error, failed_node=event.node_id, ended_at=at)
        case e.RunCancelled():
            return _run(run, event, RunStatus.CANCELLED, seq, reason=event.reason, ended_at=at)
        case e.RunReopened():
            return _run(
                run,
                event,
                RunStatus.RUNNING,
                seq,
                outputs=None,
                error=None,
                failed_node=None,
                reason=event.reason,
                recoveries=0,
                ended_at=None,
            )
        case e.BranchActivated():
            if event.version is not None:
                run = replace(run, version=event.version, graph_hash=event.graph_hash)
            return replace(run, branch_id=event.branch_id, last_seq=seq)
        case e.CheckpointSaved():
            if not 0 < event.seq < seq:
                raise IllegalTransition(run.status, event)
            return replace(run, last_seq=seq)
        case e.RunDeleted():
            if run.status not in TERMINAL:
                raise IllegalTransition(run.status, event)
            return replace(run, last_seq=seq)
        case e.RunCreated():
            raise IllegalTransition(run.status, event)
        case _:
            return replace(run, last_seq=seq)


def evolve_node(node: NodeState, event: e.NodeEvent, *, seq: Seq, at: int) -> NodeState:
    """Return the node as it stands after `event`."""
    match event:
        case e.NodeScheduled():
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
        case e.NodeStarted():
            status = _of_attempt(node, event, NodeStatus.RUNNING)
            stream = opened_stream(node.branch_id) if event.streams and node.stream is None else node.stream
            if event.anew and stream is not None:
                stream = cut_back(stream)
            return replace(node, status=status, started_at=at, due=None, stream=stream, last_seq=seq)
        case e.NodeCompleted():
            return replace(
                node,
                status=_of_attempt(node, event, NodeStatus.COMPLETED),
                outputs=event.outputs,
                error=None,
                ended_at=at,
                duration_ms=event.duration_ms,
                last_seq=seq,
            )
        case e.NodeFailed():
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
        case e.NodeCheckpointed():
            status = _of_attempt(node, event, NodeStatus.RUNNING)
            stream = None if node.stream is None else checkpointed(node.stream, event)
            return replace(node, status=status, checkpoint=event.state, stream=stream, last_seq=seq)
        case e.StepCompleted() | e.WaitOpened():
            return replace(node, status=_of_attempt(node, event, NodeStatus.RUNNING), last_seq=seq)
        case e.NodeResumed():
            status = _of_attempt(node, event, NodeStatus.RUNNING)
            stream = cut_back(node.stream) if event.anew and node.stream is not None else node.stream
            if stream is not None and stream.wants_items:
                stream = replace(stream, wants_items=False)
            return replace(node, status=status, due=None, reason="", stream=stream, last_seq=seq)
        case e.TriggerRegistered() | e.TriggerInputReceived():
            return replace(node, status=_lawful(node, event, NodeStatus.RUNNING), last_seq=seq)
        case e.TriggerCursorAdvanced():
            status = _lawful(node, event, NodeStatus.RUNNING)
            return replace(node, status=status, checkpoint=event.cursor, last_seq=seq)
        case e.InteractionResponded() | e.TimerFired() | e.SignalTaken():
            due = at if node.status is NodeStatus.SUSPENDED else node.due
            return replace(node, status=_lawful(node, event, node.status), due=due, last_seq=seq)
        case e.OutboxEnqueued() | e.OutboxClosed() | e.ItemFailed():
            status = _of_attempt(node, event, NodeStatus.RUNNING)
            if node.stream is None or node.stream.is_closed:
                raise IllegalTransition(node, event)
            return replace(node, status=status, stream=evolve_stream(node.stream, event), last_seq=seq)
        case e.NodeSuspended():
            status = _of_attempt(node, event, NodeStatus.SUSPENDED)
            due = at if event.goes_on else None
            wants_items = event.wants_items and node.stream is not None
            stream = replace(node.stream, wants_items=True) if wants_items and node.stream is not None else node.stream
            return replace(node, status=status, reason=event.reason, due=due, stream=stream, last_seq=seq)
        case e.AttemptLost():
            status = _of_attempt(node, event, NodeStatus.RUNNING)
            return replace(node, status=status, attempt_ended=True, lost=node.lost + 1, ended_at=at, last_seq=seq)
        case e.NodeSkipped():
            status = _lawful(node, event, NodeStatus.SKIPPED)
            return replace(node, status=status, reason=event.reason, ended_at=at, last_seq=seq)
        case e.NodeCancelled():
            status = _lawful(node, event, NodeStatus.CANCELLED)
            return replace(node, status=status, reason=event.reason, ended_at=at, due=None, last_seq=seq)
        case e.NodeInDoubt():
            if not node.attempt_ended or event.attempt != node.attempt:
                raise IllegalTransition(node, event)
            return replace(node, status=_lawful(node, event, NodeStatus.IN_DOUBT), last_seq=seq)
        case e.NodeResolved():
            return _resolved(node, event, seq, at)
        case _:
            return replace(node, last_seq=seq)


def _recovered(run: RunState, event: e.RunRecovered, seq: Seq) -> RunState:
    status = RunStatus.RUNNING if run.status is RunStatus.RECOVERING else run.status
    if event.version is not None:
        run = replace(run, version=event.version, graph_hash=event.graph_hash)
    return _run(run, event, status, seq, wake_at=run.wake_at)


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
    if event.attempt != node.attempt or node.attempt_ended:
        raise IllegalTransition(node, event)
    return _lawful(node, event, status)


def _lawful(node: NodeState, event: e.NodeEvent, status: NodeStatus) -> NodeStatus:
    if status not in NODE_LAW[type(event)].get(node.status, ()):
        raise IllegalTransition(node, event)
    return status


def _run(run: RunState, event: e.Event, status: RunStatus, seq: Seq, **changes: Any) -> RunState:
    if status not in RUN_LAW[type(event)].get(run.status, ()):
        raise IllegalTransition(run.status, event)
    return replace(run, status=status, last_seq=seq, **{"wake_at": None, **changes})
