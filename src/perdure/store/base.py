"""Where runs are kept: the one protocol that every database implements, drawn at operations of the domain.

**The door.** Whatever changes a run goes through `Store.commit` as a `Transition`: the events, the rows they change and
the lease under which they were decided, whole or not at all. Its first statement fences, locks and numbers at once: it
moves `last_seq` on only where `lease_epoch` and `last_seq` are still what the engine saw. What is answered `Committed` is
durable; what is answered otherwise has changed nothing.

**Unknown outcomes.** If the answer to a commit is lost (connection cut, time-out), the store looks the transition up by the
id of its first event, in the log or, of a run whose log is written on the side, in its row, and answers what it finds. Only if
the database cannot be asked does `commit` raise `StoreUnavailable`; then the engine must forget the run and load it again.

**Leases.** A run is owned by an engine (`owner`) under an epoch that rises with every claim. An engine is alive while its row
in `engines` has not expired by the store's clock: the database's own for PostgreSQL, the host's boot clock for SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perdure.ids import BranchId, CommandId, EngineId, NodeId, RunId, Seq
from perdure.journal.events import Recorded
from perdure.journal.states import BranchState, CheckpointState, NodeState, RunState, WaitStatus
from perdure.journal.times import PastRun
from perdure.store.shapes import (
    NEWEST,
    AliasMove,
    AliasState,
    Archivable,
    ArchivedRun,
    Claimable,
    Command,
    EngineRow,
    EventBatch,
    ItemRange,
    Kept,
    LogLine,
    LongLog,
    OpenWait,
    RunDump,
    RunFilter,
    RunSummary,
    Segment,
    StoredRun,
    Wakings,
    Whereabouts,
    WorkflowVersion,
)
from perdure.store.transitions import ItemRow, Outcome, Transition

if TYPE_CHECKING:
    from perdure.store.records import Record


class Store(Protocol):
    """A database that holds runs. Safe to call from any task of the loop that opened it."""

    url: str
    works_beside: bool
    """Whether it is at work elsewhere while a group is written, so that this process can do something else."""
    group_size: int
    """How many transitions go into one commit at most: so many that it is worth while, so few that nobody waits long."""

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

    async def append_events(self, batches: Sequence[EventBatch]) -> None:
        """Add to the logs of runs with `journal="audit"`. What is answered need not be durable yet.

        Left out is what is there already, whose run is gone, is another one by now or was written whole since, whose values were
        deleted, and what is older than what was made compact. No commit waits for this longer than it takes. Raises `Refused`,
        and nothing is written, if the database will not have one of them.
        """
        ...

    async def count_events(self, run_id: RunId, *, through: Seq) -> int:
        """Return how many events of a run are rows, up to this one."""
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
        self,
        pages: Iterator[Sequence[Record]],
        *,
        from_archive: ArchivedRun | None = None,
        instead_of: Seq | None = None,
    ) -> bool:
        """Write a run that `read_runs` has given, here or elsewhere, all of it or nothing. It has no owner afterwards.

        False if a run with its id is there, or in the archive, unless it comes from there, and is still there as `from_archive`
        says: then nothing is written. Its version has to be here already. With `instead_of`, the run that is there gives way to
        this one; False unless it has ended with that event, nobody owns it and nobody wants it to go on. What `pages` raises is
        passed on, and nothing is written either. Raises `Refused` for records that the database will not have.
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

    async def where_is(self, run_id: RunId) -> Whereabouts | None:
        """Return where a run is at this moment, which is one place; None if there is no such run."""
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

    async def withdraw_command(self, run_id: RunId, command_id: CommandId) -> bool:
        """Take back a command that has come when its run had ended, so that nothing ever comes of it. False, and it stays, if it
        was taken up, or the run moves, or somebody wants it to go on."""
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
