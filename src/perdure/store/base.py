"""Where runs are kept: the one protocol that every database implements, drawn at operations of the domain.

**The door.** Whatever changes a run goes through `Store.commit` as a `Transition`: the events, the rows they change and
the lease under which they were decided, whole or not at all. Its first statement fences, locks and numbers at once: it
moves `last_seq` on only where `lease_epoch` and `last_seq` are still what the engine saw. What is answered `Committed` is
durable; what is answered otherwise has changed nothing.

**Unknown outcomes.** If the answer to a commit is lost (connection cut, time-out), the store looks the transition up by the
id of its first event and answers what it finds. Only if the database cannot be asked does `commit` raise `StoreUnavailable`;
then the engine must forget the run and load it again.

**Leases.** A run is owned by an engine (`owner`) under an epoch that rises with every claim. An engine is alive while its row
in `engines` has not expired by the store's clock: the database's own for PostgreSQL, the host's boot clock for SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from perdure.ids import BranchId, CommandId, EngineId, Epoch, NodeId, RunId, Seq
from perdure.journal.dump import Mark
from perdure.journal.events import Encoded, Recorded
from perdure.journal.projection import Given
from perdure.journal.states import (
    BranchState,
    CheckpointState,
    NodeState,
    RunState,
    RunStatus,
    SignalState,
    WaitState,
    WaitStatus,
)
from perdure.journal.times import PastRun

if TYPE_CHECKING:
    from perdure.store.records import Record


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


class ItemRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where entries are, without them."""

    node_id: NodeId
    branch_id: BranchId
    position: int
    count: int
    seq: Seq


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
    """How many of its events are not rows."""


class RunDump(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the tables hold about one run, from one snapshot: what `verify` looks at."""

    stored: StoredRun
    events: tuple[Recorded, ...]
    """The deterministic key of each event, in the same order."""
    all_nodes: tuple[NodeState, ...]
    """Of every branch."""
    version: WorkflowVersion | None
    blobs: tuple[BlobUse, ...]
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


class Store(Protocol):
    """A database that holds runs. Safe to call from any task of the loop that opened it."""

    url: str

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        """Write each transition whole or not at all, and answer for each in order, at most one per run.

        All that are answered Committed share one durable commit. One that is refused leaves the others unaffected, and one
        whose run is held by somebody else (Busy) does not make them wait.
        """
        ...

    # Workflows

    async def save_version(
        self, workflow: str, graph_hash: str, graph: bytes, source: Mapping[str, str], *, at: int
    ) -> WorkflowVersion:
        """Save a graph under a name and return its version: the existing one if the same graph is there already."""
        ...

    async def load_version(self, workflow: str, version: int) -> WorkflowVersion | None: ...

    async def list_versions(self, workflow: str | None = None) -> Sequence[WorkflowVersion]:
        """Return saved versions by name and number, newest of a name last."""
        ...

    async def delete_version(self, workflow: str, version: int) -> Kept | None:
        """Delete a version to which nothing refers; return why it is kept, if it is. Whoever moves an alias to it or starts a run
        of it at the same time either comes first, and keeps it, or finds it gone."""
        ...

    async def count_runs(self, workflow: str) -> Mapping[int, int]:
        """Return how many runs there are of each version of a workflow that has any."""
        ...

    async def move_alias(self, move: AliasMove) -> bool:
        """Have an alias point somewhere else, at once for everybody. Durable when this returns.

        False, and nothing is changed, if the move does not follow the alias's last one: somebody else has moved it. Raises
        VersionNotFound if one of its targets is not there.
        """
        ...

    async def load_alias(self, workflow: str, alias: str) -> AliasState:
        """Return what an alias means and which version is the newest, both at the same moment."""
        ...

    async def list_aliases(self, workflow: str | None = None) -> Sequence[AliasMove]:
        """Return where the aliases point that are there, by workflow and name."""
        ...

    async def list_alias_moves(self, workflow: str, alias: str) -> Sequence[AliasMove]:
        """Return all moves of an alias, oldest first."""
        ...

    # Runs

    async def load_run(self, run_id: RunId) -> StoredRun | None:
        """Return the run with the nodes, steps and waits of its current branch, its signals and its untaken commands, oldest
        first; of those so many as `pending_commands` returns."""
        ...

    async def load_node(self, run_id: RunId, node_id: NodeId) -> NodeState | None:
        """Return a node of the run's current branch; None if nothing has happened to it."""
        ...

    async def load_state(self, run_id: RunId) -> RunState | None:
        """Return the run's own row, and nothing else of it."""
        ...

    async def load_events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        """Return the next events of a run in order, wherever they are kept."""
        ...

    async def compact_log(self, run_id: RunId, *, through: Seq, most: int) -> int:
        """Keep the oldest events that are rows, up to this one and so many at most, in one row from here on, and return how many
        these are; 0 if there are none, or if somebody else is at it. Nothing that is read of a run changes by it."""
        ...

    async def list_segments(self, run_id: RunId) -> Sequence[Segment]:
        """Return the parts of a run's log that were made compact, in order."""
        ...

    async def find_long_logs(self, *, longer_than: int, after: RunId, limit: int) -> Sequence[LongLog]:
        """Return a page of the runs with more than so many events that are rows, in the order of their ids."""
        ...

    async def load_items(
        self, run_id: RunId, branch_id: BranchId, node_id: NodeId, *, after: tuple[int, int], in_order: bool, limit: int
    ) -> Sequence[ItemRow]:
        """Return the next rows of a node's stream, `limit` at most.

        With `in_order`, by position; `after` is then (position of the last row seen, anything). Otherwise in the order in
        which they were recorded; `after` is then (its position, its seq). (-1, -1) is the beginning.
        """
        ...

    async def load_ranges(self, run_id: RunId) -> Sequence[ItemRange]:
        """Return where the entries of a run's streams are, by branch, node and position."""
        ...

    async def dump_run(self, run_id: RunId) -> RunDump | None: ...

    async def list_runs(self, which: RunFilter, *, before: tuple[int, str] | None, limit: int) -> Sequence[RunSummary]:
        """Return runs, newest first by (created_at, run_id); `before` is where the last page ended."""
        ...

    async def used_blobs(self, digests: Sequence[str]) -> set[str]:
        """Return those of these blobs that are not to be deleted: some run refers to them, in whichever project, or a
        command that waits for its run does."""
        ...

    async def tag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        """Give a run tags; those that it has stay. Raises RunNotFound."""
        ...

    async def untag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        """Take tags from a run, if it has them."""
        ...

    async def load_tags(self, run_id: RunId) -> Sequence[str]:
        """Return the tags of a run, sorted."""
        ...

    # Whole runs

    def read_runs(self, run_ids: Sequence[RunId]) -> AsyncGenerator[Sequence[Record], None]:
        """Yield everything that is stored about these runs, page by page, one run after the other, each beginning with its own
        row. All of it is one state of the database, and no more than a page is in memory. Runs that are not there are left out.
        """
        ...

    async def write_run(
        self, pages: Iterator[Sequence[Record]], *, from_archive: bool = False, instead_of: Seq | None = None
    ) -> bool:
        """Write a run that `read_runs` has given, here or elsewhere, all of it or nothing. It has no owner afterwards.

        False if a run with its id is there, or in the archive, unless it comes from there: then nothing is written. Its version
        has to be here already. With `instead_of`, the run that is there gives way to this one; False unless it has ended with
        that event, nobody owns it and nobody wants it to go on. What `pages` raises is passed on, and nothing is written either.
        Raises `Refused` for records that the database will not have.
        """
        ...

    async def load_deletion(self, run_id: RunId) -> int | None:
        """Return when the values of a run were deleted, in microseconds since 1970; None if they were not."""
        ...

    async def keep_version(self, version: WorkflowVersion) -> WorkflowVersion:
        """Save a version that comes from elsewhere and return it as it is called here: the existing one if the same graph is
        there already; under its own number if that is free; else under the next one."""
        ...

    # The archive

    async def find_archivable(
        self, *, ended_before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[Archivable]:
        """Return runs that have ended before a moment, that nobody owns and nobody wants to go on, oldest first by (created_at,
        run_id); `after` is where the last page ended."""
        ...

    async def archive_runs(self, archived: Sequence[ArchivedRun]) -> set[RunId]:
        """Remove runs that are in a file, and record where: all of it or nothing, for each. Return those of which that was done:
        they are still what was written into the file, and nobody wants them to go on. Until a run is restored, none with its id
        can be created. Of a large one some rows may stay for a while: see `remove_leftovers`."""
        ...

    async def remove_leftovers(self, *, limit: int) -> bool:
        """Remove so many rows of runs that were archived and were too large to be removed at once. False if there are none."""
        ...

    async def load_archive(self, run_id: RunId) -> ArchivedRun | None:
        """Return where an archived run is."""
        ...

    async def list_archives(
        self, *, id_prefix: str | None, before: tuple[int, str] | None, limit: int
    ) -> Sequence[ArchivedRun]:
        """Return archived runs, newest first by (created_at, run_id); `before` is where the last page ended."""
        ...

    async def archive_files(self) -> set[str]:
        """Return the names of all files that hold archived runs."""
        ...

    async def give_back(self, *, pages: int) -> bool:
        """Give so many pages back to the system that nothing uses any more. False if there are hardly any, or if the database
        sees to that itself."""
        ...

    async def back_up(self, target: Path, partial: Path) -> None:
        """Copy the whole database into a file, in one state, while others go on writing. The file is there whole or not at all,
        and nobody owns the runs in it; `partial` is what it is called until then. Raises StoreUnavailable if the database is no
        file that could be copied."""
        ...

    # Commands

    async def add_command(self, command: Command, *, before: CommandId | None = None) -> bool:
        """Keep a command for the run's owner. Durable when this returns; False if this run had it already.

        One that is added when another has been is taken up after it, also if the clock of whoever adds it is behind: then
        it counts as created a moment after it.

        With `before`, the id of a `close`, it is kept only if it comes before that one: False if the run has that one, and this
        one was not there before. Whoever of the two is first, also where both are added at once, is taken up first.

        Raises RunNotFound if there is no such run, CommandIdTaken if the run was told something else under the same id, and
        ValueNotStorable if a text of it is none that a database can hold.
        """
        ...

    async def load_command(self, run_id: RunId, command_id: CommandId) -> Command | None:
        """Return what a run was told under this id, whether or not anybody has taken it up; None if nothing was."""
        ...

    async def latest_commands(
        self, run_id: RunId, *, before: tuple[int, str] = NEWEST, limit: int
    ) -> Sequence[Command]:
        """Return untaken commands for a run, newest first by (created_at, command_id); `before` is where the last page
        ended."""
        ...

    async def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        """Return untaken commands for runs that `owner` owns, oldest first: of each run so many items for its inputs (`send` and
        `close`) as COMMANDS_PER_RUN, and as many of all other kinds. When some are taken up, there may be more."""
        ...

    # Engines and recovery

    async def register_engine(self, engine: EngineRow, *, ttl_seconds: float) -> None: ...

    async def renew_engine(self, engine_id: EngineId, *, ttl_seconds: float) -> bool:
        """Prolong the engine's life. False means that it has expired or is gone: stop now."""
        ...

    async def retire_engine(self, engine_id: EngineId) -> None:
        """Remove the engine; whatever it still owns is free at once."""
        ...

    async def forget_engines(self, engine_ids: Sequence[EngineId]) -> None:
        """Remove the rows of engines that are gone, but not of one that a run still names as its owner: how the run was
        lost is told by its next claim."""
        ...

    async def list_engines(self) -> Sequence[EngineRow]: ...

    async def find_claimable(
        self, *, dead: Sequence[EngineId], after: tuple[int, str] | None, limit: int
    ) -> Sequence[Claimable]:
        """Return runs that should move, or have untaken commands, and have no living owner; oldest first by
        (created_at, run_id), after where the last page ended. `dead` are owners known to be gone before they expire.

        Items for inputs of a run that was paused or quarantined wait until it moves for another reason.
        """
        ...

    async def find_woken(self, *, now: int, limit: int) -> Wakings:
        """Return resting runs without an owner that have untaken commands, as in `find_claimable`, or whose `wake_at` is not
        after `now` and that are not paused or quarantined.

        Cheap however many runs rest, and however many commands wait for one run. If more were told something than `limit`, any
        of them are returned; whoever is taken up makes room for the others.
        """
        ...

    # Waits

    async def list_waits(
        self,
        *,
        run_id: RunId | None = None,
        status: WaitStatus | None = WaitStatus.OPEN,
        questions_only: bool = False,
        after: tuple[int, str] | None = None,
        limit: int,
    ) -> Sequence[OpenWait]:
        """Return what runs wait for on their current branches, oldest first by (opened_at, wait_id), after where the last page
        ended; of one run or of all; with `questions_only`, only what people are asked (kinds `ask` and `suspend`), and of that
        nothing that is open and has an answer which nobody has taken up: a command whose id is `answer/` and that of the wait."""
        ...

    async def load_wait(self, wait_id: str) -> OpenWait | None:
        """Return a wait by its id, whichever run's current branch it is on."""
        ...

    # History

    async def list_branches(self, run_id: RunId) -> Sequence[BranchState]:
        """Return a run's lines of history in the order in which they were created."""
        ...

    async def past_runs(self, workflow: str, version: int, *, limit: int) -> Sequence[PastRun]:
        """Return how long the runs of a version took that have completed, those first that did so last: of each the completed
        nodes of its branch, and a thousand at most of what they waited for. Cheap however many other runs there are."""
        ...

    # Checkpoints

    async def list_checkpoints(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[CheckpointState]:
        """Return a run's checkpoints of every branch in the order in which they were saved, after the one that event `after` has
        saved."""
        ...

    async def load_checkpoint(self, run_id: RunId, name: str) -> CheckpointState | None:
        """Return the checkpoint of a run that has this name."""
        ...

    async def last_checkpoint(self, run_id: RunId, *, periodic: bool = False) -> CheckpointState | None:
        """Return the checkpoint that was saved last; with `periodic`, of those that were saved by themselves."""
        ...

    # Logs

    async def append_logs(self, lines: Sequence[LogLine]) -> None: ...

    async def load_logs(self, run_id: RunId, *, after: int, limit: int) -> Sequence[tuple[int, LogLine]]:
        """Return log lines with their numbers, in order, after number `after`."""
        ...

    # News

    async def wait_for_news(self, timeout_seconds: float) -> bool:
        """Return soon after another process has changed something, or when the time is up (False)."""
        ...

    async def close(self) -> None: ...
