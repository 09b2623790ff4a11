"""The SQLite store: one file, one writer connection per process, reads beside it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from perdure.clock import Clock, SystemClock
from perdure.errors import RunNotFound, VersionNotFound
from perdure.ids import DEFAULT_PROJECT, CommandId, EngineId, RunId, Seq, is_text
from perdure.journal.events import Recorded
from perdure.journal.states import BranchState
from perdure.journal.times import PastRun
from perdure.store import aliases, branches, rows, segments
from perdure.store.lookups import Lookups, Rows
from perdure.store.records import Record, Refused
from perdure.store.shapes import (
    COMMANDS_PER_RUN,
    AliasMove,
    ArchivedRun,
    Claimable,
    Command,
    EngineRow,
    EventBatch,
    Kept,
    LogLine,
    RunDump,
    RunFilter,
    RunSummary,
    StoredRun,
    WorkflowVersion,
)
from perdure.store.sqlite.archive import archive_runs, give_back, remove_leftovers
from perdure.store.sqlite.backup import back_up
from perdure.store.sqlite.bindings import audited_events
from perdure.store.sqlite.commit import GroupWriter
from perdure.store.sqlite.connection import REFUSALS, Location, connect, parse_url, translated
from perdure.store.sqlite.file import SqliteFile
from perdure.store.sqlite.news import News
from perdure.store.sqlite.reading import Reading
from perdure.store.sqlite.transfer import read_records, write_records
from perdure.store.transitions import Outcome, Transition

T = TypeVar("T")

FEW_EVENTS, FEW_BYTES = 100, 10_000
"""A run with so few events, to which so little was said that it has not taken up, is looked up at once."""
_BY_KEY = frozenset(
    ("load_state", "size_of_run", "load_node", "load_wait", "load_command", "load_archive", "load_deletion")
)
"""Statements that find at most one row."""
RECORDS_AT_ONCE = 500
"""How many records of whole runs are read in one go, or a few more."""


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


class SqliteStore(Lookups):
    """`Store` on one SQLite file."""

    works_beside = False
    group_size = 125

    def __init__(self, url: str, location: Location, *, project_id: str, clock: Clock, inline: bool) -> None:
        self.url = url
        self.path = location.path
        self._project = project_id
        self._clock = clock
        self._boot_id = boot_id()
        self._file = SqliteFile(url, location, clock=clock, inline=inline)
        self._door = GroupWriter(self._file, project_id, clock, boot_id=self._boot_id)
        self._reading = Reading(self._file, project_id)
        self._news = News(self._file, clock)

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        """Finish what is being written and close the file, also when the caller leaves meanwhile."""
        await self._file.close()

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        if len(transitions) > 1 and len({transition.run_id for transition in transitions}) < len(transitions):
            raise ValueError("A group holds at most one transition of a run.")
        self._file.require_open()
        self._file.require_writable()
        return await self._door.write(transitions)

    # Workflows

    async def save_version(
        self, workflow: str, graph_hash: str, graph: bytes, source: Mapping[str, str], *, at: int
    ) -> WorkflowVersion:
        def save() -> WorkflowVersion:
            key = (self._project, workflow, graph_hash)
            if found := self._file.execute("version_by_hash", key):
                return rows.version_of(found[0])
            values = (*key, graph.decode(), rows.to_json(dict(source)), at)
            ((number,),) = self._file.execute("insert_version", values)
            return rows.saved_version(workflow, number, graph_hash, graph, source, at)

        return await self._file.transact(save)

    async def delete_version(self, workflow: str, version: int) -> Kept | None:
        key = (self._project, workflow, version)

        def delete() -> Kept | None:
            kept = aliases.kept_of(self._file.execute("why_kept", key)[0])
            if kept is None:
                self._file.execute("delete_version", key)
            return kept

        return await self._file.transact(delete) if is_text(workflow) else "missing"

    # Aliases

    async def move_alias(self, move: AliasMove) -> bool:
        key, wanted = (self._project, move.workflow), rows.to_json(list(move.targets))

        def write() -> bool:
            known = {version for (version,) in self._file.execute("known_versions", (*key, wanted))}
            if missing := move.targets.keys() - known:
                raise VersionNotFound(move.workflow, min(missing))
            self._file.execute("move_alias", (self._project, *aliases.move_row(move)))
            return bool(self._file.writer.changes())

        return await self._file.transact(write)

    # Runs

    async def load_run(self, run_id: RunId) -> StoredRun | None:
        def read() -> StoredRun | None:
            return self._reading.stored_run(run_id, most_commands=COMMANDS_PER_RUN)

        found = await self._rows("size_of_run", run_id)
        if not found:
            return None
        is_small = found[0][0] <= FEW_EVENTS and found[0][1] <= FEW_BYTES
        return await (self._file.look_up(read) if is_small else self._file.read(read))

    async def load_events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        return (
            await self._file.read(lambda: self._reading.events(run_id, after=after, limit=limit))
            if is_text(run_id)
            else []
        )

    async def append_events(self, batches: Sequence[EventBatch]) -> None:
        try:
            bindings = [binding for batch in batches for binding in audited_events(self._project, batch)]
            await self._file.transact_on_the_side(lambda: self._file.execute_each("append_audited", bindings))
        except (*REFUSALS, OverflowError, UnicodeError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    async def compact_log(self, run_id: RunId, *, through: Seq, most: int) -> int:
        key = (self._project, run_id)

        def compact() -> int:
            taken = self._file.execute("oldest_events", (*key, through, most))
            if taken:
                row = segments.segment_row(taken)
                self._file.execute("put_segment", (*key, *row))
                self._file.execute("drop_events", (*key, row[0]))
            return len(taken)

        return await self._file.transact(compact)

    async def dump_run(self, run_id: RunId) -> RunDump | None:
        return await self._file.read(lambda: self._reading.dump(run_id)) if is_text(run_id) else None

    async def list_runs(self, which: RunFilter, *, before: tuple[int, str] | None, limit: int) -> Sequence[RunSummary]:
        statuses = rows.to_json([status.value for status in which.status]) if which.status else None
        page = (statuses, which.workflow, which.id_prefix, *(before or (None, None)), limit)
        name, tag = ("list_runs", ()) if which.tag is None else ("list_tagged_runs", (which.tag,))
        found = await self._rows(name, *page, *tag, project_id=which.project_id)
        return [rows.summary_of(row) for row in found]

    async def used_blobs(self, digests: Sequence[str]) -> set[str]:
        return {digest for (digest,) in await self._everywhere("used_blobs", rows.to_json(list(digests)))}

    async def tag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        def tag() -> None:
            self._file.execute_each("tag_run", [(self._project, run_id, name) for name in tags])

        try:
            await self._file.transact(tag)
        except apsw.ConstraintError as error:
            raise RunNotFound(run_id) from error

    async def untag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        def untag() -> None:
            self._file.execute_each("untag_run", [(self._project, run_id, name) for name in tags])

        await self._file.transact(untag)

    async def load_tags(self, run_id: RunId) -> Sequence[str]:
        return [name for (name,) in await self._rows("page_tags", run_id, "", -1)]

    # Whole runs

    async def read_runs(self, run_ids: Sequence[RunId]) -> AsyncGenerator[Sequence[Record], None]:
        chosen = [run_id for run_id in run_ids if is_text(run_id)]
        if self._file.is_frozen:  # it is read again from the beginning if it changes meanwhile
            for whole in await self._file.read(lambda: list(read_records(self._select_own, chosen))):
                yield whole
            return
        connection = await self._file.aside(lambda: connect(self._file.location, read_only=True))
        try:

            def select(name: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
                return connection.execute(self._file.sql[name], (self._project, *values)).fetchall()

            def take() -> list[Sequence[Record]]:
                taken: list[Sequence[Record]] = []
                with translated(self.path):
                    while sum(map(len, taken)) < RECORDS_AT_ONCE and (next_page := next(pages, None)) is not None:
                        taken.append(next_page)
                return taken

            await self._file.aside(lambda: connection.execute("BEGIN"))
            pages = read_records(select, chosen)
            while several := await self._file.aside(take):
                for page in several:
                    yield page
        finally:
            connection.close()

    async def write_run(
        self,
        pages: Iterator[Sequence[Record]],
        *,
        from_archive: ArchivedRun | None = None,
        instead_of: Seq | None = None,
    ) -> bool:
        self._file.require_open()
        self._file.require_writable()

        def write() -> bool:
            connection = connect(self._file.location)
            try:
                with translated(self.path):
                    if instead_of is not None:
                        connection.execute("PRAGMA foreign_keys = OFF")
                        connection.execute("PRAGMA secure_delete = ON")
                    connection.execute("BEGIN IMMEDIATE")
                    is_written = write_records(
                        connection,
                        self._file.sql,
                        self._project,
                        pages,
                        from_archive=from_archive,
                        instead_of=instead_of,
                    )
                    connection.execute("COMMIT")
                    return is_written
            finally:
                connection.close()  # what was not committed is undone by this

        return await self._file.aside(write)

    async def keep_version(self, version: WorkflowVersion) -> WorkflowVersion:
        key = (self._project, version.workflow)
        content = (version.graph_hash, version.graph.decode(), rows.to_json(version.source), version.created_at)

        def keep() -> WorkflowVersion:
            if not self._file.execute("version_by_hash", (*key, version.graph_hash)):
                if self._file.execute("version_by_number", (*key, version.version)):
                    self._file.execute("insert_version", (*key, *content))
                else:
                    self._file.execute("keep_version", (*key, version.version, *content))
            return rows.version_of(self._file.execute("version_by_hash", (*key, version.graph_hash))[0])

        return await self._file.transact(keep)

    # The archive

    async def archive_runs(self, archived: Sequence[ArchivedRun]) -> set[RunId]:
        return await self._file.transact_without_keys(
            lambda: archive_runs(self._file.writer, self._file.sql, self._project, archived)
        )

    async def remove_leftovers(self, *, limit: int) -> bool:
        if not await self._rows("archives_left", 1):
            return False
        await self._file.transact_without_keys(
            lambda: remove_leftovers(self._file.writer, self._file.sql, self._project, limit)
        )
        return True

    async def give_back(self, *, pages: int) -> bool:
        def vacuum() -> bool:
            with translated(self.path):
                return give_back(self._file.writer, pages)

        self._file.require_writable()
        return await self._file.write(vacuum)

    async def back_up(self, target: Path, partial: Path) -> None:
        def copy() -> None:
            with translated(self.path):
                back_up(self._file.location, target, partial)

        await self._file.aside(copy)

    # Commands

    async def add_command(self, command: Command, *, before: CommandId | None = None) -> bool:
        binding = (self._project, *rows.command_row(command), before)

        def add() -> bool:
            self._file.execute("add_command", binding)
            if self._file.writer.changes():
                return True
            for found in self._file.execute("load_command", binding[:3]):
                rows.require_same_command(command, found)
            return False

        try:
            return await self._door.transact(add)
        except apsw.ConstraintError as error:
            raise RunNotFound(command.run_id) from error

    async def withdraw_command(self, run_id: RunId, command_id: CommandId) -> bool:
        return bool(await self._file.change("withdraw_command", (self._project, run_id, command_id)))

    async def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        return await self._file.read(lambda: self._reading.pending_commands(owner))

    # Engines and recovery

    async def register_engine(self, engine: EngineRow, *, ttl_seconds: float) -> None:
        expires_at = self._clock.host_seconds() + ttl_seconds
        await self._file.change(
            "register_engine",
            (engine.engine_id, engine.name, engine.host, engine.pid, engine.process_start, self._boot_id, expires_at),
        )
        await self._file.make_room()

    async def renew_engine(self, engine_id: EngineId, *, ttl_seconds: float) -> bool:
        self._file.require_same()
        now = self._clock.host_seconds()
        return bool(await self._file.change("renew_engine", (now + ttl_seconds, engine_id, self._boot_id, now)))

    async def retire_engine(self, engine_id: EngineId) -> None:
        def retire() -> None:
            self._file.execute("release_owned", (engine_id,))
            self._file.execute("delete_engine", (engine_id,))

        await self._file.transact(retire)

    async def forget_engines(self, engine_ids: Sequence[EngineId]) -> None:
        await self._file.change("forget_engines", (rows.to_json(list(engine_ids)),))

    async def list_engines(self) -> Sequence[EngineRow]:
        found = await self._everywhere("list_engines", self._boot_id, self._clock.host_seconds())
        return [rows.engine_of(row) for row in found]

    async def find_claimable(
        self, *, dead: Sequence[EngineId], after: tuple[int, str] | None, limit: int
    ) -> Sequence[Claimable]:
        now = self._clock.host_seconds()
        page = (*(after or (None, None)), limit)
        found = await self._rows("find_claimable", self._boot_id, now, rows.to_json(list(dead)), *page)
        return [rows.claimable_of(row) for row in found]

    # History

    async def list_branches(self, run_id: RunId) -> Sequence[BranchState]:
        return list(map(branches.branch_of, await self._rows("list_branches", run_id, None)))

    async def past_runs(self, workflow: str, version: int, *, limit: int) -> Sequence[PastRun]:
        return (
            await self._file.read(lambda: self._reading.past_runs(workflow, version, limit=limit))
            if is_text(workflow)
            else []
        )

    # Logs

    async def append_logs(self, lines: Sequence[LogLine]) -> None:
        bindings = [(self._project, *rows.log_row(line)) for line in lines]

        def append() -> None:
            self._file.execute_each("append_logs", bindings)

        await self._file.transact(append)

    # News

    async def wait_for_news(self, timeout_seconds: float) -> bool:
        return await self._news.wait(timeout_seconds)

    # Getting there

    async def _rows(self, name: str, *values: Any, project_id: str | None = None) -> Rows:
        # No row holds a text that is none, and the driver cannot even ask for it.
        if not all(is_text(value) for value in values if isinstance(value, str)):
            return []
        if name in _BY_KEY:
            return await self._file.look_up(lambda: self._file.select(name, (project_id or self._project, *values)))
        return await self._everywhere(name, project_id or self._project, *values)

    async def _everywhere(self, name: str, *values: Any) -> Rows:
        """Return what a statement finds that does not ask for a project."""
        return await self._file.read(lambda: self._file.select(name, values))

    def _select_own(self, name: str, values: tuple[Any, ...]) -> Rows:
        return self._file.select(name, (self._project, *values))


def boot_id() -> str:
    """Name the host's present boot: the clock that leases run on begins with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
