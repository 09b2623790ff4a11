"""Whether a run looks wrong at first sight: what whoever takes it up can tell from its rows and the end of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.journal import events as e
from perdure.journal.dump import Mark
from perdure.journal.states import (
    ENDED,
    MOVING,
    WAITING,
    NodeState,
    NodeStatus,
    RunState,
    RunStatus,
    WaitKind,
    WaitState,
    WaitStatus,
)

_JUMP, _ACTIVATED = e.JumpRequested.__name__, e.BranchActivated.__name__
_STATUSES: Mapping[str, frozenset[RunStatus]] = {
    event.__name__: frozenset(statuses)
    for event, statuses in (
        (e.RunStarted, (RunStatus.RUNNING,)),
        (e.RunResumed, (RunStatus.RUNNING,)),
        (e.RunReopened, (RunStatus.RUNNING,)),
        (e.RunSuspended, WAITING),
        (e.RunPausing, (RunStatus.PAUSING,)),
        (e.RunPaused, (RunStatus.PAUSED,)),
        (e.RunQuarantined, (RunStatus.QUARANTINED,)),
        (e.RunCancelling, (RunStatus.CANCELLING,)),
        (e.RunFailing, (RunStatus.FAILING,)),
        (e.RunCompleted, (RunStatus.COMPLETED,)),
        (e.RunFailed, (RunStatus.FAILED,)),
        (e.RunCancelled, (RunStatus.CANCELLED,)),
    )
}
"""In which status an event leaves the run, of those that say."""


def is_suspect(run: RunState, nodes: Sequence[NodeState], waits: Sequence[WaitState], tail: Sequence[Mark]) -> bool:
    """Whether a run may have to be examined, by its rows and the end of its log. Cheap; a yes may be wrong."""
    last = tail[-1] if tail else None
    if last is None or (last.seq, last.branch_id, last.epoch) != (run.last_seq, run.branch_id, run.epoch):
        return True
    told = next((_STATUSES[mark.type] for mark in reversed(tail) if mark.type in _STATUSES), None)
    if run.status not in (MOVING if told is None else told):
        return True
    types = [mark.type for mark in tail]
    has_jump = _JUMP in types and _ACTIVATED not in types[types.index(_JUMP) :]
    return has_jump or _contradicts_itself(run, nodes, waits)


def _contradicts_itself(run: RunState, nodes: Sequence[NodeState], waits: Sequence[WaitState]) -> bool:
    statuses = {node.status for node in nodes}
    if run.status in WAITING:
        open_waits = [wait for wait in waits if wait.status is WaitStatus.OPEN]
        is_asked = any(wait.kind is WaitKind.ASK for wait in open_waits)
        reasons = (NodeStatus.IN_DOUBT, NodeStatus.SCHEDULED, NodeStatus.SUSPENDED)
        is_due = any(node.status is NodeStatus.SUSPENDED and node.due is not None for node in nodes)
        has_no_reason = not open_waits and statuses.isdisjoint(reasons)
        return (run.status is RunStatus.AWAITING_INPUT and not is_asked) or has_no_reason or is_due
    if run.status is not RunStatus.RUNNING:
        return False
    has_failed = NodeStatus.FAILED in statuses and run.settings.on_failure == "stop"
    return has_failed or (bool(statuses) and statuses <= ENDED)
