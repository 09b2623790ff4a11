"""The two state machines: which event moves a run or a node from which status to which.

`RUN_LAW` and `NODE_LAW` are the whole law. `evolve` applies it, the tests walk it, and the drawings in the docs are made
from it. A move that is not listed is an `IllegalTransition`, raised before anything is written.

A node that is in doubt is completed, scheduled again or failed by the word of a probe or a person (`NodeResolved`). It may also
be cancelled, with its whole run: nobody then says what became of the attempt, and the log keeps that it was in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from perdure.ids import BranchId, Epoch, EventId, NodeId, RunId, Seq
from perdure.journal import events as e


class RunStatus(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    AWAITING_INPUT = "awaiting_input"
    RECOVERING = "recovering"
    FAILING = "failing"
    CANCELLING = "cancelling"
    QUARANTINED = "quarantined"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeStatus(StrEnum):
    IDLE = "idle"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUSPENDED = "suspended"
    IN_DOUBT = "in_doubt"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


TERMINAL = frozenset((RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED))
MOVING = frozenset(
    (
        RunStatus.CREATED,
        RunStatus.RUNNING,
        RunStatus.PAUSING,
        RunStatus.RECOVERING,
        RunStatus.FAILING,
        RunStatus.CANCELLING,
    )
)
"""Runs that an engine should be driving. The others rest until something from outside arrives."""
LIVE = frozenset(RunStatus) - TERMINAL
WAITING = frozenset((RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT))
"""Runs in which nothing can move, and that go on by themselves when something comes."""

SETTLED = frozenset((NodeStatus.COMPLETED, NodeStatus.SKIPPED))
"""Nodes whose dependents know what they get from them."""
ENDED = frozenset((NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED, NodeStatus.CANCELLED))

_CANCELLABLE = LIVE - {RunStatus.FAILING, RunStatus.CANCELLING}
_RESTING = (RunStatus.PAUSED, RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT, RunStatus.QUARANTINED)

_WAITS = (e.InteractionRequested, e.TimerSet, e.SignalAwaited)
_TRIGGERS = (e.TriggerRegistered, e.TriggerInputReceived, e.TriggerCursorAdvanced)
_SETTLES = (e.InteractionResponded, e.TimerFired, e.SignalTaken)
_WAITING = (NodeStatus.RUNNING, NodeStatus.SUSPENDED, NodeStatus.SCHEDULED, NodeStatus.IN_DOUBT)
"""What a node may be when something comes that it waits for: its attempt may have been lost meanwhile."""

RUN_LAW: Mapping[type[e.Event], Mapping[RunStatus, frozenset[RunStatus]]] = {
    e.RunStarted: {RunStatus.CREATED: frozenset((RunStatus.RUNNING,))},
    e.RunPausing: {RunStatus.RUNNING: frozenset((RunStatus.PAUSING,))},
    e.RunPaused: {RunStatus.PAUSING: frozenset((RunStatus.PAUSED,))},
    e.RunSuspended: {RunStatus.RUNNING: frozenset((RunStatus.SUSPENDED, RunStatus.AWAITING_INPUT))},
    e.RunResumed: {status: frozenset((RunStatus.RUNNING,)) for status in _RESTING},
    e.RunClaimed: {
        **{status: frozenset((status,)) for status in RunStatus},
        RunStatus.RUNNING: frozenset((RunStatus.RUNNING, RunStatus.RECOVERING)),
    },
    e.RunRecovered: {
        **{status: frozenset((status,)) for status in RunStatus},
        RunStatus.RECOVERING: frozenset((RunStatus.RUNNING,)),
    },
    e.RunQuarantined: {status: frozenset((RunStatus.QUARANTINED,)) for status in LIVE},
    e.RunCancelling: {status: frozenset((RunStatus.CANCELLING,)) for status in _CANCELLABLE},
    e.RunFailing: {RunStatus.RUNNING: frozenset((RunStatus.FAILING,))},
    e.RunCompleted: {RunStatus.RUNNING: frozenset((RunStatus.COMPLETED,))},
    e.RunFailed: {RunStatus.FAILING: frozenset((RunStatus.FAILED,))},
    e.RunCancelled: {RunStatus.CANCELLING: frozenset((RunStatus.CANCELLED,))},
    e.RunReopened: {status: frozenset((RunStatus.RUNNING,)) for status in TERMINAL},
}

NODE_LAW: Mapping[type[e.Event], Mapping[NodeStatus, frozenset[NodeStatus]]] = {
    e.NodeScheduled: {
        NodeStatus.IDLE: frozenset((NodeStatus.SCHEDULED,)),
        NodeStatus.RUNNING: frozenset((NodeStatus.SCHEDULED,)),
    },
    e.NodeStarted: {NodeStatus.SCHEDULED: frozenset((NodeStatus.RUNNING,))},
    e.NodeCheckpointed: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    e.StepCompleted: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    e.OutboxEnqueued: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    e.OutboxClosed: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    e.ItemFailed: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    **{event: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))} for event in _TRIGGERS},
    e.NodeSuspended: {NodeStatus.RUNNING: frozenset((NodeStatus.SUSPENDED,))},
    **{event: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))} for event in _WAITS},
    **{event: {status: frozenset((status,)) for status in _WAITING} for event in _SETTLES},
    e.NodeResumed: {NodeStatus.SUSPENDED: frozenset((NodeStatus.RUNNING,))},
    e.NodeCompleted: {NodeStatus.RUNNING: frozenset((NodeStatus.COMPLETED,))},
    e.NodeFailed: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING, NodeStatus.FAILED))},
    e.AttemptLost: {NodeStatus.RUNNING: frozenset((NodeStatus.RUNNING,))},
    e.NodeSkipped: {NodeStatus.IDLE: frozenset((NodeStatus.SKIPPED,))},
    e.NodeCancelled: {
        status: frozenset((NodeStatus.CANCELLED,))
        for status in (
            NodeStatus.IDLE,
            NodeStatus.SCHEDULED,
            NodeStatus.RUNNING,
            NodeStatus.SUSPENDED,
            NodeStatus.IN_DOUBT,
        )
    },
    e.NodeInDoubt: {NodeStatus.RUNNING: frozenset((NodeStatus.IN_DOUBT,))},
    e.NodeResolved: {
        NodeStatus.IN_DOUBT: frozenset((NodeStatus.COMPLETED, NodeStatus.SCHEDULED, NodeStatus.FAILED)),
    },
    e.AttemptResultDiscarded: {status: frozenset((status,)) for status in NodeStatus},
}


class AuditState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the tables say about a run whose log is written on the side (`journal="audit"`), and otherwise only the log does."""

    transition: EventId
    """The first event of the last transition that had any: tells which transition has brought the run to where it is."""
    birth: EventId
    """The event that created the run: tells it from another one of the same id."""
    version: int
    """With which it was started."""
    driven_micros: int = 0
    """How long engines have driven it."""
    forked_from: e.Origin | None = None
    arrival: str = ""
    """Another text each time that the run is written whole: by an import, on its way back from the archive, without its values.
    What was queued for its log before is not for this one."""


class RunState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run as its events add up to it: the row of `run_state`."""

    run_id: RunId
    project_id: str
    workflow: str
    version: int
    graph_hash: str
    status: RunStatus
    branch_id: BranchId
    epoch: Epoch
    inputs: dict[str, e.Encoded]
    settings: e.RunSettings
    source: dict[str, str]
    outputs: dict[str, e.Encoded] | None = None
    error: e.ErrorRecord | None = None
    failed_node: NodeId | None = None
    reason: str = ""
    recoveries: int = 0
    """How often the run was lost since a node of it last completed."""
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    wake_at: int | None = None
    """When time itself will move a run that rests, in microseconds since 1970."""
    last_seq: Seq = Seq(0)
    audit: AuditState | None = None
    """Only of a run whose log is written on the side, and may have gaps."""


class StreamState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a node that works item by item has come. The items themselves are rows of `run_inbox_messages`."""

    branch_id: BranchId
    """The branch on which the stream began: its items stay there, also when the run goes on on another."""
    entries: int = 0
    """How many entries are recorded: items that a generator has yielded, or calls of a mapped node that are done."""
    digest: str = ""
    """Of all entries, batch by batch: each batch is hashed together with the digest before it."""
    is_closed: bool = False
    """Nothing follows, and all of it is recorded."""
    is_unread: bool = False
    """It was ended because nobody reads it any more."""
    attempts: dict[int, int] = {}
    """By position: attempts at items that are not done, as far as they have failed."""
    failed: int = 0
    """Items that were given up, where the others go on."""
    checkpointed: int = 0
    """How many entries the body had given when its checkpoint was taken."""
    checkpoint_digest: str = ""
    """The digest of all that was recorded by then."""
    consumed: dict[str, int] = {}
    """By handle: how many items the node had read when its checkpoint was taken, or when its last entry was recorded."""
    wants_items: bool = False
    """Of a suspended node: not all that it waits for comes from outside of the run."""
    chosen: tuple[tuple[int, int, int], ...] = ()
    """Items that were chosen to begin again: the first, how many follow each other from there, and their generation."""
    base: int = 0
    """The generation of the other items, where some were chosen."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node as its events add up to it: a row of `run_node_state`. A node that nothing happened to has no row."""

    node_id: NodeId
    branch_id: BranchId
    status: NodeStatus = NodeStatus.IDLE
    attempt: int = 0
    attempt_ended: bool = False
    """The attempt failed or was lost, and nothing has followed yet."""
    generation: int = 1
    failures: int = 0
    """Attempts that failed by themselves: what the retry budget counts."""
    lost: int = 0
    """Attempts that were lost with their engine."""
    outputs: dict[str, e.Encoded] | None = None
    error: e.ErrorRecord | None = None
    checkpoint: e.Encoded | None = None
    reason: str = ""
    due: int | None = None
    """Not before this is a scheduled node started. Of a suspended one: since when it may go on, if it may."""
    scheduled_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    duration_ms: int | None = None
    stream: StreamState | None = None
    """Only of nodes that work item by item."""
    last_seq: Seq = Seq(0)


class WaitKind(StrEnum):
    ASK = "ask"
    SUSPEND = "suspend"
    SLEEP = "sleep"
    SIGNAL = "signal"


class WaitStatus(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    PAST = "past"
    """Settled before its node took its last checkpoint: no body comes back to it."""
    WITHDRAWN = "withdrawn"
    """Its node ended otherwise: nobody waits any more."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What people are asked."""

    prompt: str
    schema: dict[str, Any] = {}
    choices: tuple[e.Encoded, ...] = ()
    show: e.Maybe = msgspec.UNSET
    default: e.Maybe = msgspec.UNSET


class WaitState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a node waits for, or has waited for: a row of `run_waits`."""

    wait_id: str
    """Of a question, the id under which it is answered."""
    node_id: NodeId
    branch_id: BranchId
    kind: WaitKind
    name: str
    """What the body waits for, so that it is found again when the body runs again."""
    occurrence: int = 0
    status: WaitStatus = WaitStatus.OPEN
    question: Question | None = None
    signal: str | None = None
    """The name of the signal that is waited for."""
    signal_id: str | None = None
    """The signal that was taken."""
    due: int | None = None
    result: e.Encoded | None = None
    """What came of it; None also if its time was over before anything came."""
    by: str = ""
    opened_at: int = 0
    settled_at: int | None = None
    last_seq: Seq = Seq(0)


class BranchState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of history of a run: a row of `run_branches`, which never changes. What it is made of is told by `BranchCreated`."""

    branch_id: BranchId
    parent: BranchId | None = None
    """None of the first one, which is there with the run."""
    cut: Seq | None = None
    dropped: tuple[NodeId, ...] = ()
    retried: tuple[NodeId, ...] = ()
    given: dict[NodeId, dict[str, e.Encoded]] = {}
    reason: str = ""
    asked_as: str = ""
    created_at: int = 0
    restored: bool = False
    """Whether it begins with what its parent was at `cut`, instead of with what the run was when it was created."""
    seq: Seq
    """The event that has created it."""


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A name for a place in the log: a row of `run_checkpoints`, which never changes."""

    name: str
    branch_id: BranchId
    """The branch on which the run was."""
    seq: Seq
    """The last event that belongs to it."""
    event_seq: Seq
    """The event that says so."""
    periodic: int = 0
    asked_as: str = ""
    saved_at: int


class SignalState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A signal that has come: a row of `run_signals`, which never changes. Who took it is told by the waits."""

    signal_id: str
    name: str
    value: e.Encoded
    received_at: int
    seq: Seq
