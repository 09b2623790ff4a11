"""What is written: a transition of a run, with the rows that it changes and the lease under which it was decided; and what
becomes of it."""

from __future__ import annotations

import msgspec

from perdure.ids import BranchId, CommandId, EngineId, Epoch, NodeId, RunId, Seq
from perdure.journal.events import Encoded, Recorded
from perdure.journal.states import BranchState, CheckpointState, NodeState, RunState, SignalState, WaitState


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Take the run for `engine_id`. Holds only if nobody owns it, its owner has expired, or its owner is `dead`."""

    engine_id: EngineId
    dead: EngineId | None = None
    lets_go: bool = False
    """The run rests with this very transition, so that nobody owns it afterwards."""


class Keep(msgspec.Struct, frozen=True):
    """Go on owning the run."""


class Release(msgspec.Struct, frozen=True):
    """Let the run go: it has ended, rests, or is left for another engine."""


LeaseChange = Claim | Keep | Release


class StepRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a memoised step of a node."""

    node_id: NodeId
    branch_id: BranchId
    name: str
    occurrence: int
    result: Encoded
    seq: Seq


class ItemRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Entries of a node's stream at consecutive positions: a row of `run_inbox_messages`, written once and never changed.

    Its place (run, branch, node, position) is the deterministic id of what it holds.
    """

    node_id: NodeId
    branch_id: BranchId
    """The branch on which the stream began."""
    position: int
    """Of the first entry, from 0."""
    count: int
    items: Encoded
    """A JSON list of `count` entries. A plain one is the value on the node's only output; any other is the list of what the
    node gave there, each by output handle."""
    is_plain: bool = True
    seq: Seq = Seq(0)
    """The event that recorded it."""


class ItemDrop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Entries of a node's stream are no longer needed: all of them, or those from a position on at which a row begins."""

    node_id: NodeId
    branch_id: BranchId
    first: int = 0


class BlobUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run refers to a blob. The blob itself is already durable."""

    digest: str
    size: int


class Transition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened to a run, whole.

    `epoch` and `base_seq` are what the engine saw when it decided; `run` is the row afterwards (with a claim, `run.epoch` is
    the next epoch). `base_seq == 0` creates the run, owned by `lease.engine_id` if the lease is a Claim.
    `nodes` are the rows that changed, once each, as they stand at the end.
    """

    run_id: RunId
    epoch: Epoch
    base_seq: Seq
    run: RunState
    events: tuple[Recorded, ...] = ()
    """If the run has an `audit`, these are not written by the transition, but on the side."""
    nodes: tuple[NodeState, ...] = ()
    steps: tuple[StepRow, ...] = ()
    past_steps: tuple[NodeId, ...] = ()
    """Nodes that have left behind the steps that are there: those of the run's branch are removed, before `steps` are written."""
    branches: tuple[BranchState, ...] = ()
    items: tuple[ItemRow, ...] = ()
    drops: tuple[ItemDrop, ...] = ()
    """Streams whose entries are removed, before `items` are written. None of them gets items by the same transition."""
    waits: tuple[WaitState, ...] = ()
    """What changed of what nodes wait for, once each, as it stands at the end."""
    signals: tuple[SignalState, ...] = ()
    """Signals that have come."""
    checkpoints: tuple[CheckpointState, ...] = ()
    """Places of the log that have been given a name, which no other of the run has."""
    blobs: tuple[BlobUse, ...] = ()
    commands: tuple[CommandId, ...] = ()
    """Commands that this transition takes up: they are applied once, with it."""
    lease: LeaseChange = Keep()
    repins: bool = False
    """The run goes on with the version that `run` says. Otherwise a run keeps the one that it has."""
    only_steps: bool = False
    """Nothing of the run's row changes but its sequence number, which is so for nearly every step."""


class Committed(msgspec.Struct, frozen=True):
    """The transition is durable."""


class LeaseLost(msgspec.Struct, frozen=True):
    """The run is no longer where the engine saw it: nothing was written, and the engine must let go of it."""


class RunExists(msgspec.Struct, frozen=True):
    """A run with this id was there already: nothing was written."""


class Rejected(msgspec.Struct, frozen=True):
    """The database refused this transition (a constraint, a text that it cannot hold): nothing of it was written. It is a
    bug of ours."""

    problem: str


class Busy(msgspec.Struct, frozen=True):
    """Somebody else holds the run's row, so that nothing was written by this call. The same transition may be offered again
    later: only then is it known what becomes of it."""

    problem: str


Outcome = Committed | LeaseLost | RunExists | Rejected | Busy
