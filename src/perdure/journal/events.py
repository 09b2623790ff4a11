"""The facts of which a run's log consists.

An event holds all that replay needs: no clock, no random value and no lookup is used to fold one. Stored shapes only
grow: a field added later has a default, a type never changes, a tag is never used again.

`Recorded` is an event in its place: numbered, timed, on a branch and under the epoch of the engine that wrote it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from perdure.ids import BranchId, EngineId, Epoch, EventId, NodeId, RunId, Seq

Encoded = msgspec.Raw
"""A value as it is stored: JSON bytes written by a codec. The journal compares and carries it, and never decodes it."""

Maybe = Encoded | msgspec.UnsetType
"""A value that need not be there. None would not do: it could not be told from the value null."""

Durability = Literal["sync", "async", "exit"]
OnFailure = Literal["stop", "finish"]
Journal = Literal["log", "audit"]
"""Whether the log of a run is part of what is recorded of it, or is written on the side as well as that goes."""


class ErrorClass(StrEnum):
    """What kind of thing went wrong, which decides what may help."""

    TRANSIENT = "transient"
    RESOURCE = "resource"
    CONFIGURATION = "configuration"
    INPUT = "input"
    BUG = "bug"
    UNKNOWN = "unknown"


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An error as data. It is never turned back into an exception of its own type."""

    error_class: ErrorClass
    type: str
    message: str
    traceback: str = ""
    retryable: bool = False


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was chosen for one run when it was started. It stays with the run, whoever continues it."""

    durability: Durability = "sync"
    journal: Journal = "log"
    on_failure: OnFailure = "stop"
    timeout_seconds: float | None = None
    max_recoveries: int = 5
    grace_seconds: float = 10.0
    checkpoint_every_seconds: float | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True, omit_defaults=True, gc=False):
    """One fact about a run."""


class NodeEvent(Event, frozen=True, kw_only=True):
    """One fact about a node of a run."""

    node_id: NodeId


class AttemptEvent(NodeEvent, frozen=True, kw_only=True):
    """One fact about one try at a node."""

    attempt: int


# The run


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The run from which another one was forked, and the last event that counts for it."""

    run_id: RunId
    seq: Seq


class RunCreated(Event, frozen=True, kw_only=True):
    workflow: str
    version: int
    graph_hash: str
    inputs: dict[str, Encoded] = {}
    settings: RunSettings = RunSettings()
    project_id: str = "default"
    source: dict[str, str] = {}
    """Where the node types came from: `module` or `file`."""
    forked_from: Origin | None = None


class RunStarted(Event, frozen=True, kw_only=True):
    pass


class RunClaimed(Event, frozen=True, kw_only=True):
    """An engine took the run over. `lost` says that its last owner died with it instead of letting it go."""

    engine_id: EngineId
    epoch: Epoch
    previous: EngineId | None = None
    lost: bool = False


class RunPausing(Event, frozen=True, kw_only=True):
    reason: str = ""


class RunPaused(Event, frozen=True, kw_only=True):
    pass


class RunSuspended(Event, frozen=True, kw_only=True):
    """Nothing in the run can move until something from outside arrives."""

    awaiting_input: bool = False
    reason: str = ""
    wake_at: int | None = None
    """When time itself will move it, in microseconds since 1970."""


class RunResumed(Event, frozen=True, kw_only=True):
    reason: str = ""


class RunRecovered(Event, frozen=True, kw_only=True):
    """The run goes on after its engine was lost; or what was recorded of it did not agree with its log, and it goes on on a
    branch that does."""

    reason: str
    lost_attempts: int = 0
    code: str = ""
    """What was wrong, as the catalogue of the doctor calls it; empty if an engine was lost and nothing else."""
    previous_branch: BranchId | None = None
    branch: BranchId | None = None
    cut: Seq | None = None
    """The last event of the previous branch that counts on this one."""
    version: int | None = None
    """The version with which the run goes on, if that is another one than before."""
    graph_hash: str = ""


class RunReopened(Event, frozen=True, kw_only=True):
    reason: str = ""


class RunQuarantined(Event, frozen=True, kw_only=True):
    """The run was lost too often without progress; it rests until someone re-arms it."""

    recoveries: int
    node_id: NodeId | None = None
    reason: str = ""
    parked: bool = False
    """It was not lost at all: a node of it has failed in a way that somebody has to repair before it is tried again."""


class RunCancelling(Event, frozen=True, kw_only=True):
    reason: str = ""


class RunFailing(Event, frozen=True, kw_only=True):
    error: ErrorRecord
    node_id: NodeId | None = None


class RunCompleted(Event, frozen=True, kw_only=True):
    outputs: dict[str, Encoded] = {}
    duration_ms: int = 0


class RunFailed(Event, frozen=True, kw_only=True):
    error: ErrorRecord
    node_id: NodeId | None = None


class RunCancelled(Event, frozen=True, kw_only=True):
    reason: str = ""


# Nodes and attempts


class NodeScheduled(AttemptEvent, frozen=True, kw_only=True):
    """The node may start, not before `due` (microseconds since 1970) if there is one."""

    due: int | None = None


class NodeStarted(AttemptEvent, frozen=True, kw_only=True):
    streams: bool = False
    """Whether the node has to do with streams: it reads some, or gives one, or both."""
    generates: bool = False
    """Whether its body is a generator, which the graph does not tell."""
    anew: bool = False
    """Whether what earlier attempts gave after their last checkpoint is taken back: nobody has seen it."""


class NodeCheckpointed(AttemptEvent, frozen=True, kw_only=True):
    state: Encoded
    emitted: int = 0
    """How many items the body had given by then, if it gives any. More may be recorded, of an earlier attempt."""
    consumed: dict[str, int] = {}
    """By handle: how many items of its streams the node had read."""
    suspends: bool = False
    """Whether it goes with a suspension: the body, run again, comes back to what it waited for before."""


class StepCompleted(AttemptEvent, frozen=True, kw_only=True):
    """`ctx.step` has its result: the body that runs again gets it without calling the function."""

    name: str
    occurrence: int
    result: Encoded


class NodeSuspended(AttemptEvent, frozen=True, kw_only=True):
    """The body waits and is not in memory any more. It will run again, as the same attempt."""

    reason: str
    goes_on: bool = False
    """Something that it waited for came while it was being suspended."""
    wants_items: bool = False
    """It could have gone on with items of a stream besides: it runs again whenever the run does."""


class NodeResumed(AttemptEvent, frozen=True, kw_only=True):
    """A body that was suspended runs again."""

    anew: bool = False
    """As in NodeStarted."""


class NodeCompleted(AttemptEvent, frozen=True, kw_only=True):
    outputs: dict[str, Encoded] = {}
    duration_ms: int = 0


class NodeFailed(AttemptEvent, frozen=True, kw_only=True):
    """The attempt failed. Unless `final`, the next attempt is scheduled in the same transition."""

    error: ErrorRecord
    final: bool = True
    duration_ms: int = 0


class NodeSkipped(NodeEvent, frozen=True, kw_only=True):
    reason: str


class NodeCancelled(NodeEvent, frozen=True, kw_only=True):
    attempt: int
    reason: str = ""


class NodeInDoubt(AttemptEvent, frozen=True, kw_only=True):
    """An attempt that must not be repeated was lost: whether it had its effect is not known."""


class NodeResolved(AttemptEvent, frozen=True, kw_only=True):
    resolution: Literal["done", "retry", "fail"]
    outputs: dict[str, Encoded] = {}
    error: ErrorRecord | None = None
    by: str = ""


class AttemptLost(AttemptEvent, frozen=True, kw_only=True):
    """The engine that ran the attempt is gone, let go of it to shut down, or cannot read what its body needs."""

    reason: str = ""


class AttemptResultDiscarded(AttemptEvent, frozen=True, kw_only=True):
    """A result came after its attempt had ended otherwise. It changes nothing."""

    outcome: Literal["completed", "failed"]


# Stages


class StageStarted(Event, frozen=True, kw_only=True):
    stage: str


class StageCompleted(Event, frozen=True, kw_only=True):
    stage: str


# Triggers


class TriggerRegistered(NodeEvent, frozen=True, kw_only=True):
    trigger_type: str
    config: dict[str, Any] = {}


class TriggerInputReceived(NodeEvent, frozen=True, kw_only=True):
    """Something has come from outside. What it is, is the entry of the stream that is recorded with it."""

    input_id: str


class TriggerCursorAdvanced(NodeEvent, frozen=True, kw_only=True):
    cursor: Encoded
    """How far the outside has been read: whoever runs the trigger again goes on from there."""


# Streams, one event per batch and never one per item


class OutboxEnqueued(AttemptEvent, frozen=True, kw_only=True):
    """Entries of a node's stream were recorded: what a generator has yielded, or what came of items of a mapped node."""

    ranges: tuple[tuple[int, int], ...]
    """First position and count of each row of `run_inbox_messages`."""
    digest: str
    consumed: dict[str, int] = {}
    """By handle: how many items the node has read so far. Only where the entries' positions do not tell."""


class OutboxClosed(AttemptEvent, frozen=True, kw_only=True):
    """The stream has ended well, and all of it is recorded."""

    entries: int
    unread: bool = False
    """Whether it was ended because nobody reads it any more."""


class ItemFailed(AttemptEvent, frozen=True, kw_only=True):
    """An attempt at one item failed. Unless `final`, it is tried again."""

    position: int
    item_attempt: int
    error: ErrorRecord
    final: bool = True
    fails_node: bool = False
    """Whether its node fails with it, and the others do not go on."""


# People, time, signals


class WaitOpened(AttemptEvent, frozen=True, kw_only=True):
    """A body waits for something from outside. Run again, it is given what came of it: matched by `name`, which stands for what
    it waits for, and by `occurrence`, which is how often that came before."""

    name: str
    occurrence: int = 0


class InteractionRequested(WaitOpened, frozen=True, kw_only=True):
    """A question to people; or, with `suspends`, a body that stopped until it is told to go on."""

    interaction_id: str
    prompt: str
    schema: dict[str, Any] = {}
    choices: tuple[Encoded, ...] = ()
    show: Maybe = msgspec.UNSET
    due: int | None = None
    """When the question is answered by its default, in microseconds since 1970."""
    default: Maybe = msgspec.UNSET
    suspends: bool = False


class InteractionResponded(NodeEvent, frozen=True, kw_only=True):
    interaction_id: str
    answer: Maybe = msgspec.UNSET
    """Not there if nobody answered in time, and there is no default."""
    by: str = ""


class TimerSet(WaitOpened, frozen=True, kw_only=True):
    timer_id: str
    due: int


class TimerFired(NodeEvent, frozen=True, kw_only=True):
    timer_id: str


class SignalReceived(Event, frozen=True, kw_only=True):
    """A signal has come. It is kept until somebody waits for it."""

    name: str
    signal_id: str
    value: Encoded


class SignalAwaited(WaitOpened, frozen=True, kw_only=True):
    wait_id: str
    signal: str
    due: int | None = None


AnyWait = InteractionRequested | TimerSet | SignalAwaited


class SignalTaken(NodeEvent, frozen=True, kw_only=True):
    """A wait has the signal that came first, or none because its time was over."""

    wait_id: str
    signal_id: str | None = None
    value: Maybe = msgspec.UNSET


# History


class JumpRequested(Event, frozen=True, kw_only=True):
    """Somebody has the run go back to just before a node."""

    node_id: NodeId
    reason: str = ""
    by: str = ""
    items: tuple[tuple[int, int], ...] = ()
    """The items that were chosen, as ranges; none if the whole node is to begin again."""


class KeptItems(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a branch keeps of a node's stream, in rows of its own."""

    ranges: tuple[tuple[int, int], ...] = ()
    """First position and count of each row of `run_inbox_messages`."""
    digest: str = ""
    failed: int = 0
    """How many of them are of items that were given up."""
    chosen: tuple[tuple[int, int], ...] = ()
    """The items that begin again, as ranges. None if the node stays as it is, and only its items are read again."""
    renewed: tuple[tuple[int, int], ...] = ()
    """The same in fewer ranges, if there are, with items between them that are kept: nobody asks for the keys of those."""
    generates: bool = False
    """Whether the body of the node is a generator, of which nothing may have been started in this run."""


class BranchCreated(Event, frozen=True, kw_only=True):
    """The run goes on on another line of history, which keeps what its parent has up to `cut`, but for some nodes."""

    branch_id: BranchId
    parent: BranchId
    cut: Seq
    dropped: tuple[NodeId, ...] = ()
    """Nodes that begin again, as if nothing had happened to them."""
    retried: tuple[NodeId, ...] = ()
    """Nodes that had failed or were stopped and are tried again: what they have recorded counts, and so do their keys."""
    in_doubt: tuple[NodeId, ...] = ()
    """Of those: what must run at most once and was stopped when it had begun. Somebody has to say what became of it."""
    given: dict[NodeId, dict[str, Encoded]] = {}
    """By node, and then by handle: what nodes are given on the branch in the place of what edges and properties say."""
    outputs: dict[NodeId, dict[str, Encoded]] = {}
    """Of nodes that are dropped: what those have given that are not run again, because somebody says what it is."""
    items: dict[NodeId, KeptItems] = {}
    """What is kept of the streams of nodes of which only some items begin again, and which are `retried` for that; and of nodes
    whose items are read again because of that."""
    asked_as: str = ""
    """Under which id somebody has asked for it: who asks again is told of this one."""
    replayed: NodeId | None = None
    """A node whose stream begins again, while its attempt goes on: it gives something else than an earlier attempt did."""
    restored: bool = False
    """The run is what it was at `cut`, on the parent. What came later is not part of the branch, only signals are. Bodies that
    ran or waited at `cut` are `retried`: their next attempts are scheduled."""
    reason: str = ""


class BranchActivated(Event, frozen=True, kw_only=True):
    branch_id: BranchId
    version: int | None = None
    """The version that the run follows from here on, if somebody has chosen another one than before."""
    graph_hash: str = ""


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A place in the log has a name: all that was recorded up to `seq`, on the branch on which the run is."""

    name: str
    seq: Seq
    periodic: int = 0
    """Which one it is of those that are saved by themselves, from 1; 0 if somebody has asked for it."""
    asked_as: str = ""
    """Under which id somebody did: who asks again is told of this one."""


class RunDeleted(Event, frozen=True, kw_only=True):
    """The values of the run were removed: what it was given, what its nodes gave, what it was told. What happened stays."""

    by: str = ""
    reason: str = ""


class VersionResolved(Event, frozen=True, kw_only=True):
    """What an alias of its workflow meant when the run was started. The run keeps that version, wherever the alias moves."""

    workflow: str
    alias: str
    version: int
    revision: int = 0
    """How often the alias had been moved: which of its moves says where it pointed."""


AnyEvent = (
    RunCreated
    | RunStarted
    | RunClaimed
    | RunPausing
    | RunPaused
    | RunSuspended
    | RunResumed
    | RunRecovered
    | RunReopened
    | RunQuarantined
    | RunCancelling
    | RunFailing
    | RunCompleted
    | RunFailed
    | RunCancelled
    | NodeScheduled
    | NodeStarted
    | NodeCheckpointed
    | StepCompleted
    | NodeSuspended
    | NodeResumed
    | NodeCompleted
    | NodeFailed
    | NodeSkipped
    | NodeCancelled
    | NodeInDoubt
    | NodeResolved
    | AttemptLost
    | AttemptResultDiscarded
    | StageStarted
    | StageCompleted
    | TriggerRegistered
    | TriggerInputReceived
    | TriggerCursorAdvanced
    | OutboxEnqueued
    | OutboxClosed
    | ItemFailed
    | InteractionRequested
    | InteractionResponded
    | TimerSet
    | TimerFired
    | SignalReceived
    | SignalAwaited
    | SignalTaken
    | JumpRequested
    | BranchCreated
    | BranchActivated
    | CheckpointSaved
    | RunDeleted
    | VersionResolved
)

TERMINAL_EVENTS = (RunCompleted, RunFailed, RunCancelled)
AUDIT_EVENTS = (
    AttemptResultDiscarded,
    CheckpointSaved,
    SignalReceived,
    RunDeleted,
    RunClaimed,
    RunRecovered,
    RunReopened,
    BranchCreated,
    BranchActivated,
    JumpRequested,
)
"""What may still be recorded on a branch after its terminal event."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event in its place in the log."""

    seq: Seq
    id: EventId
    branch_id: BranchId
    epoch: Epoch
    at: int
    """Microseconds since 1970-01-01 UTC."""
    event: AnyEvent


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode_event(event: Event) -> str:
    """Return the event as it is stored: equal events give equal text."""
    return _encoder.encode(event).decode()


def decode_event(payload: str | bytes) -> AnyEvent:
    """Return the event that was stored as `payload`."""
    return _decoder.decode(payload)


def maybe(value: Encoded | None) -> Maybe:
    """Return a value as events hold it if it need not be there."""
    return msgspec.UNSET if value is None else value


def or_none(value: Maybe) -> Encoded | None:
    """Return a value that need not be there; None if it is not."""
    return None if isinstance(value, msgspec.UnsetType) else value


def type_of(event: Event) -> str:
    return type(event).__name__
