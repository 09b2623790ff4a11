"""What is read, listed and told: runs, versions, commands, engines, archives, as the tables hold them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.ids import ROOT_BRANCH, BranchId, CommandId, EngineId, Epoch, NodeId, RunId, Seq
from perdure.journal.dump import Mark
from perdure.journal.events import Recorded
from perdure.journal.projection import Given
from perdure.journal.states import (
    BranchState,
    CheckpointState,
    NodeState,
    RunState,
    RunStatus,
    SignalState,
    WaitState,
)
from perdure.store.transitions import BlobUse, ItemRow, StepRow

NEWEST = (2**63 - 1, "")
"""Where a listing begins that goes back in time."""
COMMANDS_PER_RUN = 500
"""How many items for the inputs of a run are read at once, and how many of all else that it was told."""
TAIL_EVENTS = 4
"""So many of a run's last events are read with it."""
SEND = "send"
CLOSE = "close"
"""The kinds of commands that bring items: those of one run are taken up in their order."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A wish from outside, kept until the run's owner takes it up."""

    command_id: CommandId
    run_id: RunId
    kind: str
    payload: dict[str, Any] = {}
    created_at: int = 0


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the tables hold it, with its owner and the commands that wait for it. One consistent read."""

    run: RunState
    owner: EngineId | None
    nodes: tuple[NodeState, ...] = ()
    steps: tuple[StepRow, ...] = ()
    waits: tuple[WaitState, ...] = ()
    """Of the current branch, by seq."""
    signals: tuple[SignalState, ...] = ()
    """In the order in which they came."""
    commands: tuple[Command, ...] = ()
    given: Given = {}
    """What nodes are given on the current branch in the place of what edges and properties say."""
    last_branch: BranchId = ROOT_BRANCH
    """The largest number that a branch of it has, also one that it never was on."""
    tail: tuple[Mark, ...] = ()
    """The last events of the log, in order: TAIL_EVENTS of them, of whichever branch."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a list of runs."""

    run_id: RunId
    workflow: str
    version: int
    status: RunStatus
    created_at: int
    started_at: int | None
    ended_at: int | None
    owner: EngineId | None
    reason: str = ""
    wake_at: int | None = None
    deleted_at: int | None = None
    """When its values were deleted, if they were."""
    tags: tuple[str, ...] = ()


class OpenWait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run waits for on its current branch, in a list over many runs."""

    run_id: RunId
    workflow: str
    run_status: RunStatus
    wait: WaitState


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list. Everything given must hold."""

    status: tuple[RunStatus, ...] = ()
    workflow: str | None = None
    id_prefix: str | None = None
    project_id: str | None = None
    tag: str | None = None


class Claimable(msgspec.Struct, frozen=True, kw_only=True):
    """A run that should move and has no living owner, as it was seen. The claim itself checks again."""

    run_id: RunId
    owner: EngineId | None
    created_at: int


class Wakings(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that rest, that nobody owns, and that something from outside moves."""

    runs: tuple[RunId, ...]
    """Those that were told something, or whose time has come: first who has waited longest since then."""
    next_at: int | None
    """When the time of the next one comes whose time has not come yet, in microseconds since 1970."""


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """An engine process. `host` names the boot and process-id space in which `pid` and `process_start` mean something."""

    engine_id: EngineId
    host: str
    pid: int
    process_start: str
    name: str = ""
    is_alive: bool = True
    """By the store's clock, when the row was read."""


class WorkflowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A saved graph: immutable, numbered from 1 within its workflow's name."""

    workflow: str
    version: int
    graph_hash: str
    graph: bytes
    source: dict[str, str] = {}
    created_at: int = 0


class AliasMove(msgspec.Struct, frozen=True, kw_only=True):
    """Where an alias of a workflow points from some moment on. It is never changed: the next move follows it."""

    workflow: str
    alias: str
    revision: int
    """From 1, one more with each move."""
    targets: dict[int, int]
    """Weights by version; none if the alias was removed."""
    moved_at: int
    restores: int | None = None
    """The move whose targets it brings back, if it does."""


class AliasState(msgspec.Struct, frozen=True, kw_only=True):
    """What an alias means at one moment, and which version is the newest then."""

    move: AliasMove | None
    """The last one; None if there was none."""
    newest: int | None
    """None if there is no version of the workflow."""


Kept = Literal["missing", "newest", "aliased", "used"]
"""Why a version is not deleted: it is not there, its number would be given again, an alias points at it, or runs refer to it."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a body wrote with `ctx.log`. Best effort: a log line is never worth stopping a run."""

    run_id: RunId
    branch_id: BranchId
    node_id: NodeId
    attempt: int
    at: int
    level: str
    message: str
    fields: dict[str, Any] = {}


class ItemRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where entries are, without them."""

    node_id: NodeId
    branch_id: BranchId
    position: int
    count: int
    seq: Seq


class Segment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive events of a run that are kept in one row: which, and when they happened."""

    first_seq: Seq
    last_seq: Seq
    first_epoch: Epoch
    last_epoch: Epoch
    first_time: int
    last_time: int
    reopens: bool
    """Whether RunReopened or BranchCreated is among them."""


class LongLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run with many events that are rows."""

    run_id: RunId
    last_seq: Seq
    in_segments: int
    """How many of its events are not rows, if none is missing."""
    is_audited: bool = False
    """Whether some may be missing."""


Whereabouts = Literal["database", "archive"]
"""Where a run is."""


class EventBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events of a run whose log is written on the side, in order."""

    run_id: RunId
    created_at: int
    """When the run was created: tells it from another one that has its id by now."""
    arrival: str = ""
    """From its `AuditState`: tells it from the same one that was written whole since."""
    events: tuple[Recorded, ...]


class RunDump(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the tables hold about one run, from one snapshot: what `verify` looks at."""

    stored: StoredRun
    events: tuple[Recorded, ...]
    """The deterministic key of each event, in the same order."""
    all_nodes: tuple[NodeState, ...]
    """Of every branch."""
    version: WorkflowVersion | None
    """The one that the run follows."""
    blobs: tuple[BlobUse, ...]
    earlier: tuple[WorkflowVersion, ...] = ()
    """Others that it has followed before, as far as they are there."""
    items: tuple[ItemRow, ...] = ()
    """By branch, node and position."""
    all_waits: tuple[WaitState, ...] = ()
    """Of every branch, by seq."""
    checkpoints: tuple[CheckpointState, ...] = ()
    """Of every branch, in the order in which they were saved."""
    branches: tuple[BranchState, ...] = ()
    """In the order in which they were created."""


class Archivable(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, as it was seen. Whoever removes it checks again."""

    run_id: RunId
    created_at: int
    last_seq: Seq


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is in a file of the archive, and not in the database."""

    run_id: RunId
    workflow: str
    version: int
    status: RunStatus
    created_at: int
    ended_at: int
    last_seq: Seq
    archived_at: int
    file: str
    """The name of the file in the folder of the archive."""
    position: int
    """Where its bundle begins in the file."""
    size: int
    digest: str
