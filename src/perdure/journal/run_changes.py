"""What becomes of a run by each event: one small function for each, and the table that knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from perdure.errors import IllegalTransition
from perdure.ids import Seq
from perdure.journal import events as e
from perdure.journal.states import RUN_LAW, TERMINAL, RunState, RunStatus


def _impossible(run: RunState, event: e.RunCreated, seq: Seq, at: int) -> RunState:
    raise IllegalTransition(run.status, event)


def _started(run: RunState, event: e.RunStarted, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.RUNNING, seq, started_at=at)


def _claimed(run: RunState, event: e.RunClaimed, seq: Seq, at: int) -> RunState:
    lost = event.lost and run.status is RunStatus.RUNNING
    status = RunStatus.RECOVERING if lost else run.status
    recoveries = run.recoveries + event.lost
    return _run(run, event, status, seq, epoch=event.epoch, recoveries=recoveries, wake_at=run.wake_at)


def _recovered(run: RunState, event: e.RunRecovered, seq: Seq, at: int) -> RunState:
    status = RunStatus.RUNNING if run.status is RunStatus.RECOVERING else run.status
    if event.version is not None:
        run = replace(run, version=event.version, graph_hash=event.graph_hash)
    return _run(run, event, status, seq, wake_at=run.wake_at)


def _pausing(run: RunState, event: e.RunPausing, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.PAUSING, seq, reason=event.reason)


def _paused(run: RunState, event: e.RunPaused, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.PAUSED, seq)


def _suspended(run: RunState, event: e.RunSuspended, seq: Seq, at: int) -> RunState:
    status = RunStatus.AWAITING_INPUT if event.awaiting_input else RunStatus.SUSPENDED
    return _run(run, event, status, seq, reason=event.reason, wake_at=event.wake_at)


def _resumed(run: RunState, event: e.RunResumed, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.RUNNING, seq, reason=event.reason, recoveries=0)


def _quarantined(run: RunState, event: e.RunQuarantined, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.QUARANTINED, seq, reason=event.reason, failed_node=event.node_id)


def _cancelling(run: RunState, event: e.RunCancelling, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.CANCELLING, seq, reason=event.reason)


def _failing(run: RunState, event: e.RunFailing, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.FAILING, seq, error=event.error, failed_node=event.node_id)


def _completed(run: RunState, event: e.RunCompleted, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.COMPLETED, seq, outputs=event.outputs, ended_at=at, reason="")


def _failed(run: RunState, event: e.RunFailed, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.FAILED, seq, error=event.error, failed_node=event.node_id, ended_at=at)


def _cancelled(run: RunState, event: e.RunCancelled, seq: Seq, at: int) -> RunState:
    return _run(run, event, RunStatus.CANCELLED, seq, reason=event.reason, ended_at=at)


def _reopened(run: RunState, event: e.RunReopened, seq: Seq, at: int) -> RunState:
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


def _branch_activated(run: RunState, event: e.BranchActivated, seq: Seq, at: int) -> RunState:
    if event.version is not None:
        run = replace(run, version=event.version, graph_hash=event.graph_hash)
    return replace(run, branch_id=event.branch_id, last_seq=seq)


def _checkpoint_saved(run: RunState, event: e.CheckpointSaved, seq: Seq, at: int) -> RunState:
    if not 0 < event.seq < seq:
        raise IllegalTransition(run.status, event)
    return replace(run, last_seq=seq)


def _deleted(run: RunState, event: e.RunDeleted, seq: Seq, at: int) -> RunState:
    if run.status not in TERMINAL:
        raise IllegalTransition(run.status, event)
    return replace(run, last_seq=seq)


def _run(run: RunState, event: e.Event, status: RunStatus, seq: Seq, **changes: Any) -> RunState:
    if status not in RUN_LAW[type(event)].get(run.status, ()):
        raise IllegalTransition(run.status, event)
    return replace(run, status=status, last_seq=seq, **{"wake_at": None, **changes})


RUN_CHANGES: Mapping[type[e.Event], Callable[[RunState, Any, Seq, int], RunState]] = {
    e.RunCreated: _impossible,
    e.RunStarted: _started,
    e.RunClaimed: _claimed,
    e.RunRecovered: _recovered,
    e.RunPausing: _pausing,
    e.RunPaused: _paused,
    e.RunSuspended: _suspended,
    e.RunResumed: _resumed,
    e.RunQuarantined: _quarantined,
    e.RunCancelling: _cancelling,
    e.RunFailing: _failing,
    e.RunCompleted: _completed,
    e.RunFailed: _failed,
    e.RunCancelled: _cancelled,
    e.RunReopened: _reopened,
    e.BranchActivated: _branch_activated,
    e.CheckpointSaved: _checkpoint_saved,
    e.RunDeleted: _deleted,
}
"""What becomes of a run by an event. Any other only moves on its log."""
