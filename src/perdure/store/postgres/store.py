"""The PostgreSQL store: one statement per group of transitions, connections that fail alone, the database's own clock.

Commits have a connection to themselves and go one group after the other. A caller may leave while its group is on the way: the
store finishes it before it begins the next one. Heartbeats have a connection to themselves too, so that no slow list costs an
engine its runs, and so has what is written on the side, so that nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

from perdure.clock import Clock, SystemClock
from perdure.errors import RunNotFound, StoreError, StoreUnavailable, VersionNotFound
from perdure.ids import DEFAULT_PROJECT, CommandId, EngineId, RunId, Seq, is_text
from perdure.journal.events import Recorded
from perdure.journal.states import BranchState
from perdure.journal.times import PastRun
from perdure.store import aliases, branches, rows, segments
from perdure.store.audits import audited_rows, runs_of
from perdure.store.lookups import Lookups
from perdure.store.past import WAITS_PER_RUN
from perdure.store.postgres.address import Address, parse_url
from perdure.store.postgres.commit import GroupWriter, ready_to_write
from perdure.store.postgres.documents import encode_rows
from perdure.store.postgres.failures import Trouble, code_of, problem_of, translate, trouble_of
from perdure.store.postgres.lanes import Caller, Lane
from perdure.store.postgres.news import News
from perdure.store.postgres.reading import dump_of, past_runs_of, stored_run_of
from perdure.store.postgres.schema import PACKAGE, migrate
from perdure.store.postgres.session import Rows, Session, check_server, open_session
from perdure.store.postgres.texts import to_stored
from perdure.store.postgres.transfer import archive_runs, read_records, write_records
from perdure.store.queries import load_queries
from perdure.store.records import Record, Refused
from perdure.store.shapes import (
    CLOSE,
    COMMANDS_PER_RUN,
    TAIL_EVENTS,
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
from perdure.store.transitions import Busy, Claim, Outcome, Release, Transition

READERS = 4
"""Connections for everything that is neither a commit nor a heartbeat, at most."""
READERS_AHEAD = 3
"""Of those, how many are open when an engine begins: as many as it has use for at once."""
AHEAD_SECONDS = 2.0
"""How long it waits for connections that it can do without."""
MIGRATION_SECONDS = 120.0
ARCHIVING_SECONDS = 60.0
FINISH_SECONDS = 1.0
FINISH_AGAIN_SECONDS = 0.01
_FOREIGN_KEY_VIOLATED = "23503"


async def open_postgres(url: str, *, project_id: str = DEFAULT_PROJECT, clock: Clock | None = None) -> PostgresStore:
    """Open the database, bringing its schema up to date."""
    store = PostgresStore(url, parse_url(url), project_id=project_id, clock=clock or SystemClock())
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


class PostgresStore(Lookups):
    """`Store` on a PostgreSQL database."""

    works_beside = True
    group_size = 250

    def __init__(self, url: str, address: Address, *, project_id: str, clock: Clock) -> None:
        self.url = url
        self._address = address
        self._project = project_id
        self._clock = clock
        self._sql = load_queries(PACKAGE)
        self._caller = Caller(address.where, clock)
        self._commits = Lane(self._connect_for_commits, size=1, where=address.where)
        self._heartbeats = self._lane(1)
        self._readers = self._lane(READERS)
        self._audits = self._lane(1)
        self._writer = GroupWriter(self._commits, self._caller, project_id, address.where, clock)
        self._news = None if address.pooled else News(self._connect, project_id, clock)
        self._finishing: set[asyncio.Task[None]] = set()
        self._logging = asyncio.Lock()

    async def open(self) -> None:
        """Connect, refuse what cannot hold runs, and bring the schema up to date."""

        async def prepare(session: Session) -> None:
            await check_server(session, self._address.where)
            await migrate(session, self._address.where, self._clock)

        await self._caller.call(self._readers, prepare, seconds=MIGRATION_SECONDS)

    async def close(self) -> None:
        """Finish the commits that are on their way and end every connection."""
        # A stack goes on with the next one even when the caller leaves while one is being closed.
        async with AsyncExitStack() as closing:
            for lane in (self._commits, self._heartbeats, self._audits, self._readers):
                closing.push_async_callback(lane.close)
            if self._news is not None:
                closing.push_async_callback(self._news.close)
            if self._finishing:
                await asyncio.wait(self._finishing)

    # The door

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        if len(transitions) > 1 and len({transition.run_id for transition in transitions}) < len(transitions):
            raise ValueError("A group holds at most one transition of a run.")
        if not transitions:
            return ()
        while self._finishing:
            await asyncio.wait(self._finishing)
        try:
            outcomes = await self._writer.write(transitions)
        except asyncio.CancelledError:
            # The caller leaves, the group stays: written again, each transition is found or done, and none overtakes it.
            task = asyncio.get_running_loop().create_task(self._finish(transitions), name="perdure commit")
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
            raise
        self._tell_of(transitions)
        return outcomes

    async def _finish(self, transitions: Sequence[Transition]) -> None:
        """Write what nobody waits for any more. The session that was left may still hold its rows for a moment."""
        give_up_at = self._clock.monotonic() + FINISH_SECONDS
        while transitions and self._clock.monotonic() < give_up_at:
            outcomes = await self._writer.write(transitions)
            self._tell_of(transitions)
            answered = zip(transitions, outcomes, strict=True)
            transitions = [transition for transition, outcome in answered if isinstance(outcome, Busy)]
            if transitions:
                await self._clock.sleep(FINISH_AGAIN_SECONDS)

    def _tell_of(self, transitions: Sequence[Transition]) -> None:
        if any(map(_is_news, transitions)):
            self._tell()

    # Workflows

    async def save_version(
        self, workflow: str, graph_hash: str, graph: bytes, source: Mapping[str, str], *, at: int
    ) -> WorkflowVersion:
        key = (self._project, workflow, graph_hash)

        async def save(session: Session) -> WorkflowVersion:
            if found := await session.rows("version_by_hash", *key):
                return rows.version_of(found[0])
            async with session.transaction():
                await session.rows("lock_workflow", self._project, workflow)
                numbers = await session.rows("insert_version", *key, graph.decode(), rows.to_json(dict(source)), at)
            if not numbers:
                return rows.version_of((await session.rows("version_by_hash", *key))[0])
            return rows.saved_version(workflow, numbers[0][0], graph_hash, graph, source, at)

        return await self._caller.call(self._readers, save)

    async def delete_version(self, workflow: str, version: int) -> Kept | None:
        key, tries = (self._project, workflow, version), 0

        async def delete(session: Session) -> Kept | None:
            nonlocal tries
            tries += 1
            async with session.transaction():
                await session.rows("lock_workflow", self._project, workflow)
                kept = aliases.kept_of((await session.rows("why_kept", *key))[0])
                if kept is None:
                    await session.rows("delete_version", *key)
            # The answer to an earlier try may have been lost: then it is gone because of that one.
            return None if kept == "missing" and tries > 1 else kept

        if not is_text(workflow):
            return "missing"
        try:
            return await self._caller.call(self._readers, delete)
        except StoreError as error:
            if error.__cause__ is not None and code_of(error.__cause__) == _FOREIGN_KEY_VIOLATED:
                return "used"
            raise

    # Aliases

    async def move_alias(self, move: AliasMove) -> bool:
        row = aliases.move_row(move)

        async def write(session: Session) -> bool:
            async with session.transaction():
                await session.rows("lock_workflow", self._project, move.workflow)
                known = await session.rows("known_versions", self._project, move.workflow, list(move.targets))
                if missing := move.targets.keys() - {version for (version,) in known}:
                    raise VersionNotFound(move.workflow, min(missing))
                if await session.rows("move_alias", self._project, *row):
                    return True
            # The answer to an earlier try may have been lost: then it is this very move that is there.
            return row in await session.rows("list_alias_moves", self._project, move.workflow, move.alias)

        return await self._caller.call(self._readers, write)

    # Runs

    async def load_run(self, run_id: RunId) -> StoredRun | None:
        return stored_run_of(await self._rows("load_run", run_id, COMMANDS_PER_RUN, TAIL_EVENTS))

    async def load_events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        found = await self._rows("load_events", run_id, after, limit)
        # In this order: what became part of a segment meanwhile is missing here and found there.
        if not segments.are_next(found, after) and (older := await self._rows("next_segment", run_id, after)):
            return segments.page_of(older[0][0], after=after, limit=limit)
        return [rows.event_of(row) for row in found]

    async def append_events(self, batches: Sequence[EventBatch]) -> None:
        project, runs = to_stored(self._project), to_stored(runs_of(batches))

        async def append(session: Session) -> None:
            async with session.transaction("begin_audited"):
                await session.write("hold_logs", project, runs)
                await session.write("append_audited", project, document, runs)

        try:
            document = encode_rows([row for batch in batches for row in audited_rows((batch.run_id,), batch)])
        except (UnicodeError, ValueError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        try:
            await self._caller.once(self._audits, append)
        except StoreError:
            raise
        except Exception as error:  # As in `Caller.call`: whatever the driver raises is judged here.
            if trouble_of(error) is Trouble.REFUSED:
                raise Refused(problem_of(error)) from error
            raise translate(error, self._address.where) from error

    async def compact_log(self, run_id: RunId, *, through: Seq, most: int) -> int:
        key = (self._project, run_id)

        async def compact(session: Session) -> int:
            async with session.transaction("begin_whole"):
                await session.rows("hold_log", *key)
                taken = sorted(await session.rows("take_oldest_events", *key, through, most))
                if taken:
                    await session.rows("put_segment", *key, *segments.segment_row(taken))
                return len(taken)

        return await self._caller.call(self._readers, compact)

    async def dump_run(self, run_id: RunId) -> RunDump | None:
        return dump_of(await self._rows("dump_run", run_id, TAIL_EVENTS))

    async def list_runs(self, which: RunFilter, *, before: tuple[int, str] | None, limit: int) -> Sequence[RunSummary]:
        statuses = [status.value for status in which.status] or None
        page = (statuses, which.workflow, which.id_prefix, *(before or (None, None)), limit)
        name, tag = ("list_runs", ()) if which.tag is None else ("list_tagged_runs", (which.tag,))
        found = await self._rows(name, *page, *tag, project_id=which.project_id)
        return [rows.summary_of(row) for row in found]

    async def used_blobs(self, digests: Sequence[str]) -> set[str]:
        found = await self._caller.call(self._readers, lambda session: session.rows("used_blobs", list(digests)))
        return {row[0] for row in found}

    async def tag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        try:
            await self._rows("tag_run", run_id, list(tags))
        except StoreError as error:
            if error.__cause__ is not None and code_of(error.__cause__) == _FOREIGN_KEY_VIOLATED:
                raise RunNotFound(run_id) from error
            raise

    async def untag_run(self, run_id: RunId, tags: Sequence[str]) -> None:
        await self._rows("untag_run", run_id, list(tags))

    async def load_tags(self, run_id: RunId) -> Sequence[str]:
        return [name for (name,) in await self._rows("page_tags", run_id, "", None)]

    # Whole runs

    async def read_runs(self, run_ids: Sequence[RunId]) -> AsyncGenerator[Sequence[Record], None]:
        chosen = [run_id for run_id in run_ids if is_text(run_id)]
        async with aclosing(read_records(self._readers, self._address.where, self._project, chosen)) as pages:
            async for page in pages:
                yield page

    async def write_run(
        self,
        pages: Iterator[Sequence[Record]],
        *,
        from_archive: ArchivedRun | None = None,
        instead_of: Seq | None = None,
    ) -> bool:
        is_written = await write_records(
            self._readers,
            self._address.where,
            self._project,
            pages,
            from_archive=from_archive,
            instead_of=instead_of,
        )
        if is_written:
            self._tell()
        return is_written

    async def keep_version(self, version: WorkflowVersion) -> WorkflowVersion:
        key = (self._project, version.workflow)
        content = (version.graph_hash, version.graph.decode(), rows.to_json(version.source), version.created_at)

        async def keep(session: Session) -> Rows:
            async with session.transaction():
                await session.rows("lock_workflow", *key)
                if found := await session.rows("version_by_hash", *key, version.graph_hash):
                    return found
                if await session.rows("version_by_number", *key, version.version):
                    await session.rows("insert_version", *key, *content)
                else:
                    await session.rows("keep_version", *key, version.version, *content)
            return await session.rows("version_by_hash", *key, version.graph_hash)

        return rows.version_of((await self._caller.call(self._readers, keep))[0])

    # The archive

    async def archive_runs(self, archived: Sequence[ArchivedRun]) -> set[RunId]:
        return await self._caller.call(
            self._readers, lambda session: archive_runs(session, self._project, archived), seconds=ARCHIVING_SECONDS
        )

    async def remove_leftovers(self, *, limit: int) -> bool:
        return False  # all rows of a run go at once: here nobody waits for that

    async def give_back(self, *, pages: int) -> bool:
        return False  # the server's own vacuum sees to it

    async def back_up(self, target: Path, partial: Path) -> None:
        raise StoreUnavailable(
            f"The database {self._address.where} is no file that could be copied. Back it up with PostgreSQL's own tools, such "
            "as `pg_dump --format=custom`, and copy the blobs after that."
        )

    # Commands

    async def add_command(self, command: Command, *, before: CommandId | None = None) -> bool:
        values = (self._project, *rows.command_row(command), before)
        tries = 0

        async def insert(session: Session) -> Rows:
            if before is None and command.kind != CLOSE:
                return await session.rows("add_command", *values)
            async with session.transaction():
                lock, held = ("end_commands", command.command_id) if before is None else ("hold_end", before)
                await session.rows(lock, *values[:2], held)
                return await session.rows("add_command", *values)

        async def add(session: Session) -> bool:
            nonlocal tries
            tries += 1
            if await insert(session):
                return True
            found = await session.rows("load_command", *values[:3])
            for row in found:
                rows.require_same_command(command, row)
            # The answer to an earlier try may have been lost: then it is this very command that is there.
            return tries > 1 and any(row[4] >= command.created_at for row in found)

        try:
            is_added = await self._caller.call(self._readers, add)
        except StoreError as error:
            if error.__cause__ is not None and code_of(error.__cause__) == _FOREIGN_KEY_VIOLATED:
                raise RunNotFound(command.run_id) from error
            raise
        if is_added:
            self._tell()
        return is_added

    async def withdraw_command(self, run_id: RunId, command_id: CommandId) -> bool:
        key, tries = (self._project, run_id, command_id), 0

        async def withdraw(session: Session) -> bool:
            nonlocal tries
            tries += 1
            async with session.transaction("begin_whole"):
                if await session.rows("lock_ended", *key[:2]) and await session.rows("withdraw_command", *key):
                    return True
            # The answer to an earlier try may have been lost: then it is gone because of that one.
            return tries > 1 and not await session.rows("load_command", *key)

        return await self._caller.call(self._readers, withdraw)

    async def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        return [rows.command_of(row) for row in await self._rows("pending_commands", owner, COMMANDS_PER_RUN)]

    # Engines and recovery

    async def register_engine(self, engine: EngineRow, *, ttl_seconds: float) -> None:
        values = (engine.engine_id, engine.name, engine.host, engine.pid, engine.process_start, float(ttl_seconds))
        await self._caller.call(self._readers, lambda session: session.rows("register_engine", *values))
        await self._caller.call(self._commits, ready_to_write)  # whoever registers is about to commit
        with suppress(TimeoutError):
            async with asyncio.timeout(AHEAD_SECONDS):
                # And to ask several things at once.
                news = () if self._news is None else (self._news.open(),)
                await asyncio.gather(self._readers.open_ahead(READERS_AHEAD), *news)

    async def renew_engine(self, engine_id: EngineId, *, ttl_seconds: float) -> bool:
        values = (engine_id, float(ttl_seconds))
        return bool(await self._caller.call(self._heartbeats, lambda session: session.rows("renew_engine", *values)))

    async def retire_engine(self, engine_id: EngineId) -> None:
        await self._caller.call(self._readers, lambda session: session.rows("retire_engine", engine_id))
        self._tell()

    async def forget_engines(self, engine_ids: Sequence[EngineId]) -> None:
        await self._caller.call(self._readers, lambda session: session.rows("forget_engines", list(engine_ids)))

    async def list_engines(self) -> Sequence[EngineRow]:
        found = await self._caller.call(self._readers, lambda session: session.rows("list_engines"))
        return [rows.engine_of(row) for row in found]

    async def find_claimable(
        self, *, dead: Sequence[EngineId], after: tuple[int, str] | None, limit: int
    ) -> Sequence[Claimable]:
        found = await self._rows("find_claimable", list(dead), *(after or (None, None)), limit)
        return [rows.claimable_of(row) for row in found]

    # History

    async def list_branches(self, run_id: RunId) -> Sequence[BranchState]:
        return list(map(branches.branch_of, await self._rows("list_branches", run_id)))

    async def past_runs(self, workflow: str, version: int, *, limit: int) -> Sequence[PastRun]:
        return past_runs_of(await self._rows("past_runs", workflow, version, limit, WAITS_PER_RUN))

    # Logs

    async def append_logs(self, lines: Sequence[LogLine]) -> None:
        document = encode_rows([rows.log_row(line) for line in lines])
        # One after the other: whoever reads on after the last number it saw must not miss one that became visible later.
        async with self._logging:
            try:
                await self._caller.once(
                    self._readers, lambda session: session.write("append_logs", to_stored(self._project), document)
                )
            except Exception as error:  # As in `Caller.call`; a line whose answer was lost is not written twice.
                raise translate(error, self._address.where) from error

    # News

    async def wait_for_news(self, timeout_seconds: float) -> bool:
        if self._news is None:
            await self._clock.sleep(timeout_seconds)
            return False
        return await self._news.wait(timeout_seconds)

    def _tell(self) -> None:
        if self._news is not None:
            self._news.tell()

    # Getting there

    async def _rows(self, name: str, *values: Any, project_id: str | None = None) -> Rows:
        project = project_id or self._project
        # No row holds a text that is none, and the driver cannot even ask for it.
        if not all(is_text(value) for value in values if isinstance(value, str)):
            return []
        return await self._caller.call(self._readers, lambda session: session.rows(name, project, *values))

    def _lane(self, size: int) -> Lane:
        return Lane(self._connect, size=size, where=self._address.where)

    async def _connect(self) -> Session:
        return await open_session(self._address, self._sql)

    async def _connect_for_commits(self) -> Session:
        return await open_session(self._address, self._sql, commits=True)


def _is_news(transition: Transition) -> bool:
    """Whether others may have something to do after it: the run is free, or has come to rest, or somebody waits for a checkpoint
    that he has asked for."""
    if transition.checkpoints and any(not saved.periodic for saved in transition.checkpoints):
        return True
    if transition.base_seq == 0:
        return not isinstance(transition.lease, Claim)
    return isinstance(transition.lease, Release)
