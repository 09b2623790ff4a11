"""The SQLite store: one file, one writer connection per process, reads beside it.

Commits run on the loop itself while they are fast, because a thread hop costs as much as the fsync; a group that would hold
the loop up, or that meets another process's write lock, goes to the writer thread. Whichever it is, a transaction holds no
`await` and no user code, and once begun it ends: the caller may leave, the outcome is the store's.

A file that cannot be written to is read as `frozen.py` says. A file that was removed or replaced while it is open is noticed
when a lease is renewed, when a run is let go and now and then: nothing is acknowledged for long that nobody can find again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from perdure.clock import Clock, SystemClock
from perdure.errors import (
    RunNotFound,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    VersionNotFound,
)
from perdure.ids import DEFAULT_PROJECT, ROOT_BRANCH, BranchId, CommandId, EngineId, NodeId, RunId, Seq, is_text
from perdure.journal.events import Recorded
from perdure.journal.projection import Given
from perdure.journal.states import BranchState, CheckpointState, NodeState, RunState, WaitStatus
from perdure.journal.times import PastRun
from perdure.store import aliases, archives, branches, checkpoints, rows, segments, waits
from perdure.store.base import (
    COMMANDS_PER_RUN,
    NEWEST,
    TAIL_EVENTS,
    AliasMove,
    AliasState,
    Archivable,
    ArchivedRun,
    BlobUse,
    Claimable,
    Command,
    Committed,
    EngineRow,
    ItemRange,
    ItemRow,
    Keep,
    Kept,
    LeaseLost,
    LogLine,
    LongLog,
    OpenWait,
    Outcome,
    Rejected,
    RunDump,
    RunExists,
    RunFilter,
    RunSummary,
    Segment,
    StoredRun,
    Transition,
    Wakings,
    WorkflowVersion,
)
from perdure.store.migrate import plan, read_migrations
from perdure.store.past import WAITS_PER_RUN, past_run_of
from perdure.store.queries import load_queries
from perdure.store.records import Record
from perdure.store.sqlite.archive import archive_runs, give_back, remove_leftovers
from perdure.store.sqlite.backup import back_up
from perdure.store.sqlite.bindings import fencing, row_writes
from perdure.store.sqlite.connection import (
    BUSY_TIMEOUT_MS,
    Location,
    can_write,
    connect,
    identity_of,
    is_fatal,
    parse_url,
    set_patience,
    translate,
    translated,
)
from perdure.store.sqlite.frozen import FrozenFile
from perdure.store.sqlite.pace import Pace
from perdure.store.sqlite.transfer import read_records, write_records

T = TypeVar("T")

INLINE_BUDGET_SECONDS = 0.004
"""A group that is expected to take longer than this is committed in the writer thread."""
NEWS_POLL_SECONDS = 0.1
LOOK_EVERY_SECONDS = 1.0
"""How often to look whether the file is still there, beside the moments that must not be missed."""
RECORDS_AT_ONCE = 500
"""How many records of whole runs are read in one go, or a few more."""
_PACKAGE = "perdure.store.sqlite"


async def open_sqlite(
    url: str, *, project_id: str = DEFAULT_PROJECT, clock: Clock | None = None, inline: bool = False
) -> SqliteStore:
    """Open the file, creating it and bringing its schema up to date. One that this process may not write to can be read, and
    whatever would write raises StoreReadOnly. `inline` keeps everything on the caller's thread."""
    location = parse_url(url)
    store = SqliteStore(url, location, project_id=project_id, clock=clock or SystemClock(), inline=inline)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


class SqliteStore:
    """`Store` on one SQLite file."""

    def __init__(self, url: str, location: Location, *, project_id: str, clock: Clock, inline: bool) -> None:
        self.url = url
        self.path = location.path
        self._location = location
        self._project = project_id
        self._clock = clock
        self._boot_id = boot_id()
        self._sql = load_queries(_PACKAGE)
        self._threads = None if inline else ThreadPoolExecutor(max_workers=1, thread_name_prefix="perdure-sqlite")
        self._pace = Pace()
        self._writer: apsw.Connection
        self._reader: apsw.Connection
        self._connections: list[apsw.Connection] = []
        self._lock = asyncio.Lock()
        self._news_seen = 0
        self._writing: set[asyncio.Future[Any]] = set()
        self._process = os.getpid()
        self._is_closed = False
        self._identity: tuple[int, int] | None = None
        self._look_again_at = 0.0
        self._frozen: FrozenFile | None = None
        self._failure: StoreError | None = None
        """Why nothing can be written, if so."""

    async def open(self) -> None:
        await self._shielded(self._open)

    async def close(self) -> None:
        """Close both connections and end the thread, also when the caller leaves meanwhile."""
        if self._is_closed or self._process != os.getpid():
            return
        try:
            await self._shielded(self._close)
        except asyncio.CancelledError:
            if self._writing:
                await asyncio.wait(self._writing)
            raise
        finally:
            self._is_closed = True
            if self._threads is not None:
                self._threads.shutdown(wait=True)

    # The door

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        if len(transitions) > 1 and len({transition.run_id for transition in transitions}) < len(transitions):
            raise ValueError("A group holds at most one transition of a run.")
        self._require_open()
        self._require_writable()
        if self._lock.locked() or (
            self._threads is not None and self._pace.expected(transitions) > INLINE_BUDGET_SECONDS
        ):
            return await self._commit_in_thread(transitions)
        if self._threads is None:
            return self._commit(transitions)
        try:
            return self._commit_at_once(transitions)
        except StoreLocked:
            return await self._commit_in_thread(transitions)

    def _commit_at_once(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        """Commit on the loop, which cannot wait for other processes."""
        set_patience(self._writer, 0)
        try:
            return self._commit(transitions)
        finally:
            set_patience(self._writer, BUSY_TIMEOUT_MS / 1_000)

    async def _commit_in_thread(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        return await self._write(lambda: self._commit(transitions))

    def _commit(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """Write the group in one transaction. If one of it cannot be written, halve it until that one stands alone."""
        started = time.perf_counter()
        if started > self._look_again_at or any(type(transition.lease) is not Keep for transition in transitions):
            self._look_again_at = started + LOOK_EVERY_SECONDS
            self._require_same_file()
        try:
            outcomes = self._in_transaction(lambda: self._write_group(transitions))
        except StoreError:
            raise
        except Exception as error:  # a constraint, or a value of whatever kind that has no form in the database
            if len(transitions) == 1:
                return [Rejected(f"{type(error).__name__}: {error}")]
            middle = len(transitions) // 2
            return [*self._commit(transitions[:middle]), *self._commit(transitions[middle:])]
        self._pace.took(transitions, time.perf_counter() - started)
        return outcomes

    def _write_group(self, transitions: Sequence[Transition]) -> list[Outcome]:
        moved = self._fence(transitions)
        self._write_rows([transition for transition in transitions if transition.run_id in moved])
        return [Committed() if transition.run_id in moved else self._refusal(transition) for transition in transitions]

    def _fence(self, transitions: Sequence[Transition]) -> set[str]:
        """Lock and number the runs' rows; return the runs of which the rest may be written."""
        statements: dict[str, list[tuple[Any, ...]]] = {}
        now = self._clock.host_seconds()
        for transition in transitions:
            name, binding = fencing(self._project, transition, boot_id=self._boot_id, now=now)
            statements.setdefault(name, []).append(binding)
        return {
            cast("str", run_id)
            for name, bindings in statements.items()
            for (run_id,) in self._writer.executemany(self._sql[name], bindings)
        }

    def _refusal(self, transition: Transition) -> Outcome:
        """Say why a transition was not written, unless it was written before its answer got lost."""
        if transition.events:
            first = transition.events[0]
            key = (self._project, transition.run_id, first.seq)
            if self._writer.execute(self._sql["event_id_at"], key).get == first.id:
                return Committed()
        return RunExists() if transition.base_seq == 0 else LeaseLost()

    def _write_rows(self, transitions: Sequence[Transition]) -> None:
        for name, bindings in row_writes(self._project, transitions):
            self._writer.executemany(self._sql[name], bindings)

    # Workflows

    async def save_version(
        self, workflow: str, graph_hash: str, graph: bytes, source: Mapping[str, str], *, at: int
    ) -> WorkflowVersion:
        def save() -> WorkflowVersion:
            key = (self._project, workflow, graph_hash)
            if found := self._writer.execute(self._sql["version_by_hash"], key).fetchone():
                return rows.version_of(found)
            self._writer.execute(self._sql["insert_version"], (*key, graph.decode(), rows.to_json(dict(source)), at))
            return rows.version_of(self._writer.execute(self._sql["version_by_hash"], key).fetchall()[0])

        return await self._transact(save)

    async def load_version(self, workflow: str, version: int) -> WorkflowVersion | None:
        found = await self._rows("load_version", (self._project, workflow, version))
        return rows.version_of(found[0]) if found else None

    async def list_versions(self, workflow: str | None = None) -> Sequence[WorkflowVersion]:
        return [rows.version_of(row) for row in await self._rows("list_versions", (self._project, workflow))]

    async def delete_version(self, workflow: str, version: int) -> Kept | None:
        key = (self._project, workflow, version)

        def delete() -> Kept | None:
            kept = aliases.kept_of(self._writer.execute(self._sql["why_kept"], key).fetchall()[0])
            if kept is None:
                self._writer.execute(self._sql["delete_version"], key)
            return kept

        return await self._transact(delete) if is_text(workflow) else "missing"

    async def count_runs(self, workflow: str) -> Mapping[int, int]:
        return dict(await self._rows("count_runs", (self._project, workflow)))

    # Aliases

    async def move_alias(self, move: AliasMove) -> bool:
        key, wanted = (self._project, move.workflow), rows.to_json(list(move.targets))

        def write() -> bool:
            known = {version for (version,) in self._writer.execute(self._sql["known_versions"], (*key, wanted))}
            if missing := move.targets.keys() - known:
                raise VersionNotFound(move.workflow, min(missing))
            self._writer.execute(self._sql["move_alias"], (self._project, *aliases.move_row(move)))
            return bool(self._writer.changes())

        return await self._transact(write)

    async def load_alias(self, workflow: str, alias: str) -> AliasState:
        found = await self._rows("load_alias", (self._project, workflow, alias))
        return aliases.state_of(found)

    async def list_aliases(self, workflow: str | None = None) -> Sequence[AliasMove]:
        return list(map(aliases.move_of, await self._rows("list_aliases", (self._project, workflow))))

    async def list_alias_moves(self, workflow: str, alias: str) -> Sequence[AliasMove]:
        return list(map(aliases.move_of, await self._rows("list_alias_moves", (self._project, workflow, alias))))

    # Runs

    async def load_run(self, run_id: RunId) -> StoredRun | None:
        return (
            await self._read(lambda: self._load_run(run_id, most_commands=COMMANDS_PER_RUN))
            if is_text(run_id)
            else None
        )

    async def load_node(self, run_id: RunId, node_id: NodeId) -> NodeState | None:
        found = await self._rows("load_node", (self._project, run_id, node_id))
        return rows.node_of_row(found[0]) if found else None

    async def load_state(self, run_id: RunId) -> RunState | None:
        found = await self._rows("load_state", (self._project, run_id))
        return rows.run_of(found[0]) if found else None

    async def load_events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        return await self._read(lambda: self._load_events(run_id, after, limit)) if is_text(run_id) else []

    def _load_events(self, run_id: RunId, after: Seq, limit: int) -> Sequence[Recorded]:
        key = (self._project, run_id)
        found = self._select("load_events", (*key, after, limit))
        if not segments.are_next(found, after) and (older := self._select("next_segment", (*key, after))):
            return segments.page_of(older[0][0], after=after, limit=limit)
        return [rows.event_of(row) for row in found]

    async def compact_log(self, run_id: RunId, *, through: Seq, most: int) -> int:
        key = (self._project, run_id)

        def compact() -> int:
            taken = self._writer.execute(self._sql["oldest_events"], (*key, through, most)).fetchall()
            if taken:
                row = segments.segment_row(taken)
                self._writer.execute(self._sql["put_segment"], (*key, *row))
                self._writer.execute(self._sql["drop_events"], (*key, row[0]))
            return len(taken)

        return await self._transact(compact)

    async def list_segments(self, run_id: RunId) -> Sequence[Segment]:
        return [segments.segment_of(row) for row in await self._rows("list_segments", (self._project, run_id))]

    async def find_long_logs(self, *, longer_than: int, after: RunId, limit: int) -> Sequence[LongLog]:
        found = await self._rows("long_logs", (self._project, longer_than, after, limit))
        return [segments.long_log_of(row) for row in found]

    async def load_items(
        self, run_id: RunId, branch_id: BranchId, node_id: NodeId, *, after: tuple[int, int], in_order: bool, limit: int
    ) -> Sequence[ItemRow]:
        position, seq = after
        name, seen = ("load_items_by_position", (position,)) if in_order else ("load_items_by_seq", (seq, position))
        found = await self._rows(name, (self._project, run_id, branch_id, node_id, *seen, limit))
        return [rows.item_of(row) for row in found]

    async def load_ranges(self, run_id: RunId) -> Sequence[ItemRange]:
        return [rows.range_of(row) for row in await self._rows("load_ranges", (self._project, run_id))]

    async def dump_run(self, run_id: RunId) -> RunDump | None:
        return await self._read(lambda: self._dump_run(run_id)) if is_text(run_id) else None

    async def list_runs(self, which: RunFilter, *, before: tuple[int, str] | None, limit: int) -> Sequence[RunSummary]:
        statuses = rows.to_json([status.value for status in which.status]) if which.status else None
        project = which.project_id or self._project
        page = (project, statuses, which.workflow, which.id_prefix, *(before or (None, None)), limit)
        if which.tag is not None:
            return [rows.summary_of(row) for row in await self._rows("list_tagged_runs", (*page, which.tag))]
        return [rows.summary_of(row) for row in await self._rows("list_runs", page)]

    def _load_run(self, run_id: RunId, *, most_commands: int) -> StoredRun | None:
        key = (self._project, run_id)
        row = self._reader.execute(self._sql["load_run"], key).fetchone()
        if row is None:
            return None
        run = rows.run_of(row)
        return StoredRun(
            run=run,
            owner=row[21],
            nodes=tuple(rows.node_of_row(node) for node in self._select("load_nodes", (*key, run.branch_id))),
            steps=tuple(rows.step_of(step) for step in self._select("load_steps", (*key, run.branch_id))),
            waits=tuple(waits.wait_of(wait) for wait in self._select("load_waits", (*key, run.branch_id))),
            signals=tuple(waits.signal_of(signal) for signal in self._select("load_signals", key)),
            commands=tuple(map(rows.command_of, self._select("load_commands", (*key, most_commands)))),
            given={} if run.branch_id == ROOT_BRANCH else self._given(run),
            tail=tuple(map(rows.mark_of, reversed(self._select("load_tail", (*key, TAIL_EVENTS))))),
        )

    def _given(self, run: RunState) -> Given:
        found = self._select("list_branches", (self._project, run.run_id, run.branch_id))
        return branches.branch_of(found[0]).given if found else {}

    def _dump_run(self, run_id: RunId) -> RunDump | None:
        stored = self._load_run(run_id, most_commands=-1)
        if stored is None:
            return None
        key = (self._project, run_id)
        version = self._select("load_version", (self._project, stored.run.workflow, stored.run.version))
        return RunDump(
            stored=stored,
            events=tuple(self._whole_log(key)),
            all_nodes=tuple(rows.node_of_row(row) for row in self._select("load_nodes", (*key, None))),
            version=rows.version_of(version[0]) if version else None,
            blobs=tuple(BlobUse(digest=row[0], size=row[1]) for row in self._select("load_blob_uses", key)),
            items=tuple(rows.item_of(row) for row in self._select("dump_items", key)),
            all_waits=tuple(waits.wait_of(row) for row in self._select("load_waits", (*key, None))),
            checkpoints=tuple(map(checkpoints.checkpoint_of, self._select("list_checkpoints", (*key, 0, -1)))),
            branches=tuple(map(branches.branch_of, self._select("list_branches", (*key, None)))),
        )

    def _whole_log(self, key: tuple[str, str]) -> Iterator[Recorded]:
        for (content,) in self._select("dump_segments", key):
            yield from segments.events_of(content)
        yield from map(rows.event_of, self._select("load_events", (*key, 0, -1)))

    async def used_blobs(self, digests: Sequence[str]) -> set[str]:
        return {digest for (digest,) in await self._rows("used_blobs", (rows.to_json(list(digests)),))}

    async def tag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        def tag() -> None:
            self._writer.executemany(self._sql["tag_run"], [(self._project, run_id, name) for name in tags])

        try:
            await self._transact(tag)
        except apsw.ConstraintError as error:
            raise RunNotFound(run_id) from error

    async def untag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        def untag() -> None:
            self._writer.executemany(self._sql["untag_run"], [(self._project, run_id, name) for name in tags])

        await self._transact(untag)

    async def load_tags(self, run_id: RunId) -> Sequence[str]:
        return [name for (name,) in await self._rows("page_tags", (self._project, run_id, "", -1))]

    # Whole runs

    async def read_runs(self, run_ids: Sequence[RunId]) -> AsyncGenerator[Sequence[Record], None]:
        chosen = [run_id for run_id in run_ids if is_text(run_id)]
        if self._frozen is not None:  # it is read again from the beginning if it changes meanwhile
            for whole in await self._read(lambda: list(read_records(self._select_own, chosen))):
                yield whole
            return
        connection = await self._aside(lambda: connect(self._location, read_only=True))
        try:

            def select(name: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
                return connection.execute(self._sql[name], (self._project, *values)).fetchall()

            def take() -> list[Sequence[Record]]:
                taken: list[Sequence[Record]] = []
                with translated(self.path):
                    while sum(map(len, taken)) < RECORDS_AT_ONCE and (next_page := next(pages, None)) is not None:
                        taken.append(next_page)
                return taken

            await self._aside(lambda: connection.execute("BEGIN"))
            pages = read_records(select, chosen)
            while several := await self._aside(take):
                for page in several:
                    yield page
        finally:
            connection.close()

    async def write_run(
        self, pages: Iterator[Sequence[Record]], *, from_archive: bool = False, instead_of: Seq | None = None
    ) -> bool:
        self._require_open()
        self._require_writable()

        def write() -> bool:
            connection = connect(self._location)
            try:
                with translated(self.path):
                    if instead_of is not None:
                        connection.execute("PRAGMA foreign_keys = OFF")
                        connection.execute("PRAGMA secure_delete = ON")
                    connection.execute("BEGIN IMMEDIATE")
                    is_written = write_records(
                        connection, self._sql, self._project, pages, from_archive=from_archive, instead_of=instead_of
                    )
                    connection.execute("COMMIT")
                    return is_written
            finally:
                connection.close()  # what was not committed is undone by this

        return await self._aside(write)

    async def load_deletion(self, run_id: RunId) -> int | None:
        found = await self._rows("load_deletion", (self._project, run_id))
        return found[0][0] if found else None

    async def keep_version(self, version: WorkflowVersion) -> WorkflowVersion:
        key = (self._project, version.workflow)
        content = (version.graph_hash, version.graph.decode(), rows.to_json(version.source), version.created_at)

        def keep() -> WorkflowVersion:
            if not self._writer.execute(self._sql["version_by_hash"], (*key, version.graph_hash)).fetchall():
                if self._writer.execute(self._sql["version_by_number"], (*key, version.version)).get is None:
                    self._writer.execute(self._sql["keep_version"], (*key, version.version, *content))
                else:
                    self._writer.execute(self._sql["insert_version"], (*key, *content))
            return rows.version_of(
                self._writer.execute(self._sql["version_by_hash"], (*key, version.graph_hash)).fetchall()[0]
            )

        return await self._transact(keep)

    # The archive

    async def find_archivable(
        self, *, ended_before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[Archivable]:
        page = (self._project, ended_before, *(after or archives.BEGINNING), limit)
        return [archives.archivable_of(row) for row in await self._rows("find_archivable", page)]

    async def archive_runs(self, archived: Sequence[ArchivedRun]) -> set[RunId]:
        return await self._write(
            lambda: self._without_keys(lambda: archive_runs(self._writer, self._sql, self._project, archived))
        )

    async def remove_leftovers(self, *, limit: int) -> bool:
        if not await self._rows("archives_left", (self._project, 1)):
            return False
        await self._write(
            lambda: self._without_keys(lambda: remove_leftovers(self._writer, self._sql, self._project, limit))
        )
        return True

    async def load_archive(self, run_id: RunId) -> ArchivedRun | None:
        found = await self._rows("load_archive", (self._project, run_id))
        return archives.archive_of(found[0]) if found else None

    async def list_archives(
        self, *, id_prefix: str | None, before: tuple[int, str] | None, limit: int
    ) -> Sequence[ArchivedRun]:
        page = (self._project, id_prefix, *(before or (None, None)), limit)
        return [archives.archive_of(row) for row in await self._rows("list_archives", page)]

    async def archive_files(self) -> set[str]:
        return {file for (file,) in await self._rows("archive_files", (self._project,))}

    async def give_back(self, *, pages: int) -> bool:
        def vacuum() -> bool:
            with translated(self.path):
                return give_back(self._writer, pages)

        self._require_writable()
        return await self._write(vacuum)

    def _without_keys(self, work: Callable[[], T]) -> T:
        """Do what looks after references itself: a run goes before what belongs to it."""
        self._writer.execute("PRAGMA foreign_keys = OFF")
        try:
            return self._in_transaction(work)
        finally:
            self._writer.execute("PRAGMA foreign_keys = ON")

    async def back_up(self, target: Path, partial: Path) -> None:
        def copy() -> None:
            with translated(self.path):
                back_up(self._location, target, partial)

        await self._aside(copy)

    # Commands

    async def add_command(self, command: Command, *, before: CommandId | None = None) -> bool:
        binding = (self._project, *rows.command_row(command), before)

        def add() -> bool:
            self._writer.execute(self._sql["add_command"], binding)
            if self._writer.changes():
                return True
            for found in self._writer.execute(self._sql["load_command"], binding[:3]):
                rows.require_same_command(command, found)
            return False

        try:
            return await self._transact(add)
        except apsw.ConstraintError as error:
            raise RunNotFound(command.run_id) from error

    async def load_command(self, run_id: RunId, command_id: CommandId) -> Command | None:
        found = await self._rows("load_command", (self._project, run_id, command_id))
        return rows.command_of(found[0]) if found else None

    async def latest_commands(
        self, run_id: RunId, *, before: tuple[int, str] = NEWEST, limit: int
    ) -> Sequence[Command]:
        found = await self._rows("latest_commands", (self._project, run_id, *before, limit))
        return [rows.command_of(row) for row in found]

    async def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        return await self._read(lambda: self._pending_commands(owner))

    def _pending_commands(self, owner: EngineId) -> list[Command]:
        found: list[Command] = []
        for (run_id,) in self._select("addressed_runs", (self._project, owner)):
            key = (self._project, run_id, COMMANDS_PER_RUN)
            found += map(rows.command_of, self._select("load_commands", key))
        return sorted(found, key=lambda command: (command.created_at, command.command_id))

    # Engines and recovery

    async def register_engine(self, engine: EngineRow, *, ttl_seconds: float) -> None:
        expires_at = self._clock.host_seconds() + ttl_seconds
        await self._execute(
            "register_engine",
            (engine.engine_id, engine.name, engine.host, engine.pid, engine.process_start, self._boot_id, expires_at),
        )

    async def renew_engine(self, engine_id: EngineId, *, ttl_seconds: float) -> bool:
        self._require_same_file()
        now = self._clock.host_seconds()
        return bool(await self._execute("renew_engine", (now + ttl_seconds, engine_id, self._boot_id, now)))

    async def retire_engine(self, engine_id: EngineId) -> None:
        def retire() -> None:
            self._writer.execute(self._sql["release_owned"], (engine_id,))
            self._writer.execute(self._sql["delete_engine"], (engine_id,))

        await self._transact(retire)

    async def forget_engines(self, engine_ids: Sequence[EngineId]) -> None:
        await self._execute("forget_engines", (rows.to_json(list(engine_ids)),))

    async def list_engines(self) -> Sequence[EngineRow]:
        found = await self._rows("list_engines", (self._boot_id, self._clock.host_seconds()))
        return [
            EngineRow(
                engine_id=EngineId(row[0]),
                name=row[1],
                host=row[2],
                pid=row[3],
                process_start=row[4],
                is_alive=bool(row[5]),
            )
            for row in found
        ]

    async def find_claimable(
        self, *, dead: Sequence[EngineId], after: tuple[int, str] | None, limit: int
    ) -> Sequence[Claimable]:
        now = self._clock.host_seconds()
        page = (self._project, self._boot_id, now, rows.to_json(list(dead)), *(after or (None, None)), limit)
        found = await self._rows("find_claimable", page)
        return [Claimable(run_id=RunId(row[0]), owner=row[1], created_at=row[2]) for row in found]

    async def find_woken(self, *, now: int, limit: int) -> Wakings:
        return waits.wakings_of(await self._rows("find_woken", (self._project, now, limit)), limit=limit)

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
        name, values = waits.listing(
            run_id=run_id, status=status, questions_only=questions_only, after=after, limit=limit
        )
        return [waits.open_wait_of(row) for row in await self._rows(name, (self._project, *values))]

    async def load_wait(self, wait_id: str) -> OpenWait | None:
        found = await self._rows("load_wait", (self._project, wait_id))
        return waits.open_wait_of(found[0]) if found else None

    # History

    async def list_branches(self, run_id: RunId) -> Sequence[BranchState]:
        return list(map(branches.branch_of, await self._rows("list_branches", (self._project, run_id, None))))

    async def past_runs(self, workflow: str, version: int, *, limit: int) -> Sequence[PastRun]:
        return await self._read(lambda: self._past_runs(workflow, version, limit)) if is_text(workflow) else []

    def _past_runs(self, workflow: str, version: int, limit: int) -> list[PastRun]:
        found: list[PastRun] = []
        for run_id, branch_id in self._select("past_runs", (self._project, workflow, version, limit)):
            key = (self._project, run_id, branch_id)
            waits_of_run = self._select("past_waits", (*key, WAITS_PER_RUN))
            found.append(past_run_of(run_id, self._select("past_nodes", key), waits_of_run))
        return found

    # Checkpoints

    async def list_checkpoints(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[CheckpointState]:
        found = await self._rows("list_checkpoints", (self._project, run_id, after, limit))
        return [checkpoints.checkpoint_of(row) for row in found]

    async def load_checkpoint(self, run_id: RunId, name: str) -> CheckpointState | None:
        found = await self._rows("load_checkpoint", (self._project, run_id, name))
        return checkpoints.checkpoint_of(found[0]) if found else None

    async def last_checkpoint(self, run_id: RunId, *, periodic: bool = False) -> CheckpointState | None:
        found = await self._rows("last_checkpoint", (self._project, run_id, periodic))
        return checkpoints.checkpoint_of(found[0]) if found else None

    # Logs

    async def append_logs(self, lines: Sequence[LogLine]) -> None:
        bindings = [(self._project, *rows.log_row(line)) for line in lines]

        def append() -> None:
            self._writer.executemany(self._sql["append_logs"], bindings)

        await self._transact(append)

    async def load_logs(self, run_id: RunId, *, after: int, limit: int) -> Sequence[tuple[int, LogLine]]:
        return [rows.log_of(row) for row in await self._rows("load_logs", (self._project, run_id, after, limit))]

    # News

    async def wait_for_news(self, timeout_seconds: float) -> bool:
        """SQLite tells a connection that another one has committed, if it is asked: cheap enough to ask often."""
        deadline = self._clock.monotonic() + timeout_seconds
        while (left := deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(NEWS_POLL_SECONDS, left))
            if await self._has_news():
                return True
        return False

    async def _has_news(self) -> bool:
        """Ask the writer, which does not count its own commits; not while it is used."""
        if self._lock.locked() or self._frozen is not None:
            return False
        seen, self._news_seen = self._news_seen, await self._write(self._data_version)
        return self._news_seen != seen

    def _data_version(self) -> int:
        try:
            with translated(self.path):
                # What others hold up is asked again soon; commits must not wait for it here.
                set_patience(self._writer, 0)
                try:
                    return int(self._writer.pragma("data_version"))
                finally:
                    set_patience(self._writer, BUSY_TIMEOUT_MS / 1_000)
        except StoreLocked:
            return self._news_seen

    # Opening and closing

    def _open(self) -> None:
        if not can_write(self.path):
            self._open_frozen()
            return
        self._writer = connect(self._location)
        self._connections.append(self._writer)
        self._identity = identity_of(self.path)
        self._migrate()
        self._reader = connect(self._location, read_only=True)
        self._connections.append(self._reader)

    def _open_frozen(self) -> None:
        self._frozen = FrozenFile(self.path)
        self._failure = StoreReadOnly(
            f"The database {self.path} is read-only. Check the rights of the file and of its folder, or choose another --store."
        )
        applied = self._frozen.read(self._applied)
        if plan(applied, read_migrations(_PACKAGE), where=str(self.path)):
            raise self._failure

    def _migrate(self) -> None:
        known = read_migrations(_PACKAGE)
        if plan(self._applied(self._writer), known, where=str(self.path)):
            self._in_transaction(lambda: self._apply_migrations(known))

    def _apply_migrations(self, known: Sequence[Any]) -> None:
        self._writer.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
            "checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT"
        )
        # Read again under the lock: another process may have been first.
        for migration in plan(self._applied(self._writer), known, where=str(self.path)):
            self._writer.execute(migration.sql)
            record = (migration.number, migration.name, migration.checksum, self._clock.now_micros())
            self._writer.execute("INSERT INTO schema_migrations VALUES (?, ?, ?, ?)", record)

    def _applied(self, connection: apsw.Connection) -> dict[int, str]:
        with translated(self.path):
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'").get:
                return {}
            found = connection.execute("SELECT number, checksum FROM schema_migrations").fetchall()
        return {cast("int", number): cast("str", checksum) for number, checksum in found}

    def _close(self) -> None:
        if self._frozen is not None:
            self._frozen.close()
        while self._connections:
            self._connections.pop().close()

    # Getting there

    def _in_transaction(self, work: Callable[[], T]) -> T:
        self._require_writable()
        with translated(self.path):
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                result = work()
                self._writer.execute("COMMIT")
            except BaseException as error:
                if isinstance(error, apsw.Error) and is_fatal(error):
                    self._failure = translate(error, self.path)
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            return result

    def _require_writable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def _require_same_file(self) -> None:
        if self._identity is not None and identity_of(self.path) != self._identity:
            raise StoreDamaged(
                f"The database {self.path} is gone: it was removed or replaced while it was open. Nothing more is written, "
                "because nobody could find it again. Put the file back, or start again with another --store."
            )

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The store {self.url} is closed.")
        if self._process != os.getpid():
            raise StoreUnavailable(
                f"The database {self.path} was opened before this process was forked, which SQLite does not survive. "
                "Open it after the fork."
            )

    def _select(self, name: str, binding: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._reader.execute(self._sql[name], binding).fetchall()

    def _select_own(self, name: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._select(name, (self._project, *values))

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do what has a connection of its own beside all else."""
        self._require_open()
        return work() if self._threads is None else await asyncio.to_thread(work)

    async def _rows(self, name: str, binding: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # No row holds a text that is none, and the driver cannot even ask for it.
        if not all(is_text(value) for value in binding if isinstance(value, str)):
            return []
        return await self._read(lambda: self._select(name, binding))

    async def _execute(self, name: str, binding: tuple[Any, ...]) -> int:
        """Run one writing statement in a transaction of its own and return how many rows it changed."""

        def execute() -> int:
            self._writer.execute(self._sql[name], binding)
            return self._writer.changes()

        return await self._transact(execute)

    async def _transact(self, work: Callable[[], T]) -> T:
        try:
            return await self._write(lambda: self._in_transaction(work))
        except (apsw.MismatchError, apsw.TooBigError) as error:
            raise translate(error, self.path) from error

    async def _write(self, work: Callable[[], T]) -> T:
        """Use the writer for one thing at a time."""
        return await self._shielded(work)

    async def _shielded(self, work: Callable[[], T]) -> T:
        """Do one thing at a time: what was begun is finished, whoever leaves, before the connections are used again."""
        # A group would have to be left together with the caller; this one outlives a caller that leaves.
        writing = asyncio.ensure_future(self._alone(work))  # noqa: TID251
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return await asyncio.shield(writing)

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await self._call(work)

    async def _read(self, work: Callable[[], T]) -> T:
        """Run reads in one read transaction, so that they see one state of the database."""

        def read_from(connection: apsw.Connection) -> T:
            self._reader = connection
            return self._in_read_transaction(work)

        frozen = self._frozen
        if frozen is not None:
            return await self._call(lambda: frozen.read(read_from))
        return await self._call(lambda: self._in_read_transaction(work))

    def _in_read_transaction(self, work: Callable[[], T]) -> T:
        with translated(self.path):
            self._reader.execute("BEGIN")
            try:
                return work()
            finally:
                self._reader.execute("COMMIT")

    async def _call(self, work: Callable[[], T]) -> T:
        self._require_open()
        if self._threads is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def boot_id() -> str:
    """Name the host's present boot: the clock that leases run on begins with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
