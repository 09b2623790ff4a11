"""The SQLite store: one file, one writer connection per process, reads beside it.

Commits run on the loop itself while they are fast, because a thread hop costs as much as the fsync; a group that would hold
the loop up, or that meets another process's write lock, goes to the writer thread. Whichever it is, a transaction holds no
`await` and no user code, and once begun it ends: the caller may leave, the outcome is the store's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from perdure.clock import Clock, SystemClock
from perdure.errors import RunNotFound, StoreLocked
from perdure.ids import DEFAULT_PROJECT, EngineId, RunId, Seq
from perdure.journal.events import Recorded
from perdure.journal.states import RunState
from perdure.store import rows
from perdure.store.base import (
    BlobUse,
    Claim,
    Claimable,
    Command,
    Committed,
    EngineRow,
    LeaseLost,
    LogLine,
    Outcome,
    Rejected,
    Release,
    RunDump,
    RunExists,
    RunFilter,
    RunSummary,
    StoredRun,
    Transition,
    WorkflowVersion,
)
from perdure.store.migrate import plan, read_migrations
from perdure.store.queries import load_queries
from perdure.store.sqlite.connection import (
    BUSY_TIMEOUT_MS,
    Location,
    connect,
    parse_url,
    set_patience,
    translated,
)

T = TypeVar("T")

INLINE_BUDGET_SECONDS = 0.004
"""A group that is expected to take longer than this is committed in the writer thread."""
NEWS_POLL_SECONDS = 0.1
_PACKAGE = "perdure.store.sqlite"


async def open_sqlite(
    url: str, *, project_id: str = DEFAULT_PROJECT, clock: Clock | None = None, inline: bool = False
) -> SqliteStore:
    """Open the file, creating it and bringing its schema up to date. `inline` keeps everything on the caller's thread."""
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
        self._pace = _Pace()
        self._writer: apsw.Connection
        self._reader: apsw.Connection
        self._connections: list[apsw.Connection] = []
        self._lock = asyncio.Lock()
        self._news_seen = 0
        self._writing: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        await self._write(self._open)

    async def close(self) -> None:
        """Close both connections and end the thread, also when the caller leaves meanwhile."""
        try:
            await self._write(self._close)
        except asyncio.CancelledError:
            if self._writing:
                await asyncio.wait(self._writing)
            raise
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=True)

    # The door

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
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
        """Write the group in one transaction; if one of it violates a constraint, each in its own."""
        started = time.perf_counter()
        try:
            outcomes = self._in_transaction(lambda: self._write_group(transitions))
        except apsw.ConstraintError as error:
            if len(transitions) == 1:
                return [Rejected(str(error))]
            return [outcome for transition in transitions for outcome in self._commit([transition])]
        self._pace.took(transitions, time.perf_counter() - started)
        return outcomes

    def _write_group(self, transitions: Sequence[Transition]) -> list[Outcome]:
        moved = self._fence(transitions)
        self._write_rows([transition for transition in transitions if transition.run_id in moved])
        return [Committed() if transition.run_id in moved else self._refusal(transition) for transition in transitions]

    def _fence(self, transitions: Sequence[Transition]) -> set[str]:
        """Lock and number the runs' rows; return the runs of which the rest may be written."""
        statements: dict[str, list[tuple[Any, ...]]] = {}
        for transition in transitions:
            name, binding = self._fencing(transition)
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

    def _fencing(self, transition: Transition) -> tuple[str, tuple[Any, ...]]:
        run, lease = transition.run, transition.lease
        key = (self._project, transition.run_id)
        if transition.base_seq == 0:
            owner = lease.engine_id if isinstance(lease, Claim) and not lease.lets_go else None
            return "create_run", (*key, owner, run.epoch, *rows.run_row(run))
        state = (run.status.value, run.branch_id, *rows.changing_columns(run), run.started_at, run.ended_at)
        seen = (*key, transition.epoch, transition.base_seq)
        if isinstance(lease, Claim):
            alive = (lease.dead, self._boot_id, self._clock.host_seconds())
            owner = None if lease.lets_go else lease.engine_id
            return "claim_run", (run.last_seq, run.epoch, owner, *state, *seen, *alive)
        return "advance_run", (run.last_seq, run.epoch, isinstance(lease, Release), *state, *seen)

    def _write_rows(self, transitions: Sequence[Transition]) -> None:
        project = self._project
        for name, bindings in (
            ("create_root_branch", [(project, t.run_id, t.run.branch_id) for t in transitions if t.base_seq == 0]),
            ("append_events", [(project, t.run_id, *rows.event_row(entry)) for t in transitions for entry in t.events]),
            ("put_nodes", [(project, t.run_id, *rows.node_row(node)) for t in transitions for node in t.nodes]),
            ("put_steps", [(project, t.run_id, *rows.step_row(step)) for t in transitions for step in t.steps]),
            ("use_blobs", [(project, t.run_id, blob.digest, blob.size) for t in transitions for blob in t.blobs]),
            ("take_commands", [(t.run.last_seq, project, wish) for t in transitions for wish in t.commands]),
        ):
            if bindings:
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

        return await self._write(lambda: self._in_transaction(save))

    async def load_version(self, workflow: str, version: int) -> WorkflowVersion | None:
        found = await self._rows("load_version", (self._project, workflow, version))
        return rows.version_of(found[0]) if found else None

    async def list_versions(self, workflow: str | None = None) -> Sequence[WorkflowVersion]:
        return [rows.version_of(row) for row in await self._rows("list_versions", (self._project, workflow))]

    # Runs

    async def load_run(self, run_id: RunId) -> StoredRun | None:
        return await self._read(lambda: self._load_run(run_id))

    async def load_state(self, run_id: RunId) -> RunState | None:
        found = await self._rows("load_run", (self._project, run_id))
        return rows.run_of(found[0]) if found else None

    async def load_events(self, run_id: RunId, *, after: Seq, limit: int) -> Sequence[Recorded]:
        return [rows.event_of(row) for row in await self._rows("load_events", (self._project, run_id, after, limit))]

    async def dump_run(self, run_id: RunId) -> RunDump | None:
        return await self._read(lambda: self._dump_run(run_id))

    async def list_runs(self, which: RunFilter, *, before: tuple[int, str] | None, limit: int) -> Sequence[RunSummary]:
        statuses = rows.to_json([status.value for status in which.status]) if which.status else None
        project = which.project_id or self._project
        page = (project, statuses, which.workflow, which.id_prefix, *(before or (None, None)), limit)
        return [rows.summary_of(row) for row in await self._rows("list_runs", page)]

    def _load_run(self, run_id: RunId) -> StoredRun | None:
        key = (self._project, run_id)
        row = self._reader.execute(self._sql["load_run"], key).fetchone()
        if row is None:
            return None
        run = rows.run_of(row)
        return StoredRun(
            run=run,
            owner=row[20],
            nodes=tuple(rows.node_of_row(node) for node in self._select("load_nodes", (*key, run.branch_id))),
            steps=tuple(rows.step_of(step) for step in self._select("load_steps", (*key, run.branch_id))),
            commands=tuple(rows.command_of(command) for command in self._select("load_commands", key)),
        )

    def _dump_run(self, run_id: RunId) -> RunDump | None:
        stored = self._load_run(run_id)
        if stored is None:
            return None
        key = (self._project, run_id)
        version = self._select("load_version", (self._project, stored.run.workflow, stored.run.version))
        return RunDump(
            stored=stored,
            events=tuple(rows.event_of(row) for row in self._select("load_events", (*key, 0, -1))),
            keys=tuple(row[0] for row in self._select("load_keys", key)),
            all_nodes=tuple(rows.node_of_row(row) for row in self._select("load_nodes", (*key, None))),
            version=rows.version_of(version[0]) if version else None,
            blobs=tuple(BlobUse(digest=row[0], size=row[1]) for row in self._select("load_blob_uses", key)),
        )

    # Commands

    async def add_command(self, command: Command) -> bool:
        binding = (
            self._project,
            command.command_id,
            command.run_id,
            command.kind,
            rows.to_json(command.payload),
            command.created_at,
        )
        try:
            return bool(await self._execute("add_command", binding))
        except apsw.ConstraintError as error:
            raise RunNotFound(command.run_id) from error

    async def pending_commands(self, owner: EngineId) -> Sequence[Command]:
        return [rows.command_of(row) for row in await self._rows("pending_commands", (self._project, owner))]

    # Engines and recovery

    async def register_engine(self, engine: EngineRow, *, ttl_seconds: float) -> None:
        expires_at = self._clock.host_seconds() + ttl_seconds
        await self._execute(
            "register_engine",
            (engine.engine_id, engine.name, engine.host, engine.pid, engine.process_start, self._boot_id, expires_at),
        )

    async def renew_engine(self, engine_id: EngineId, *, ttl_seconds: float) -> bool:
        now = self._clock.host_seconds()
        return bool(await self._execute("renew_engine", (now + ttl_seconds, engine_id, self._boot_id, now)))

    async def retire_engine(self, engine_id: EngineId) -> None:
        def retire() -> None:
            self._writer.execute(self._sql["release_owned"], (engine_id,))
            self._writer.execute(self._sql["delete_engine"], (engine_id,))

        await self._write(lambda: self._in_transaction(retire))

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

    # Logs

    async def append_logs(self, lines: Sequence[LogLine]) -> None:
        bindings = [(self._project, *rows.log_row(line)) for line in lines]

        def append() -> None:
            self._writer.executemany(self._sql["append_logs"], bindings)

        await self._write(lambda: self._in_transaction(append))

    async def load_logs(self, run_id: RunId, *, after: int, limit: int) -> Sequence[tuple[int, LogLine]]:
        return [rows.log_of(row) for row in await self._rows("load_logs", (self._project, run_id, after, limit))]

    # News

    async def wait_for_news(self, timeout_seconds: float) -> bool:
        """SQLite tells a connection that another one has committed, if it is asked: cheap enough to ask often."""
        deadline = self._clock.monotonic() + timeout_seconds
        while (left := deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(NEWS_POLL_SECONDS, left))
            # Asked on the writer, which does not count its own commits; not while a thread is using it.
            if not self._lock.locked() and self._writer.pragma("data_version") != self._news_seen:
                self._news_seen = self._writer.pragma("data_version")
                return True
        return False

    # Opening and closing

    def _open(self) -> None:
        self._writer = connect(self._location)
        self._connections.append(self._writer)
        self._migrate()
        self._reader = connect(self._location, read_only=True)
        self._connections.append(self._reader)

    def _migrate(self) -> None:
        known = read_migrations(_PACKAGE)
        table = "SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'"
        with translated(self.path):
            applied = self._applied() if self._writer.execute(table).get else {}
            if not plan(applied, known, where=str(self.path)):
                return
            self._in_transaction(lambda: self._apply_migrations(known))

    def _apply_migrations(self, known: Sequence[Any]) -> None:
        self._writer.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
            "checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT"
        )
        # Read again under the lock: another process may have been first.
        for migration in plan(self._applied(), known, where=str(self.path)):
            self._writer.execute(migration.sql)
            record = (migration.number, migration.name, migration.checksum, self._clock.now_micros())
            self._writer.execute("INSERT INTO schema_migrations VALUES (?, ?, ?, ?)", record)

    def _applied(self) -> dict[int, str]:
        found = self._writer.execute("SELECT number, checksum FROM schema_migrations").fetchall()
        return {cast("int", number): cast("str", checksum) for number, checksum in found}

    def _close(self) -> None:
        while self._connections:
            self._connections.pop().close()

    # Getting there

    def _in_transaction(self, work: Callable[[], T]) -> T:
        with translated(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                result = work()
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            return result

    def _select(self, name: str, binding: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._reader.execute(self._sql[name], binding).fetchall()

    async def _rows(self, name: str, binding: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._read(lambda: self._select(name, binding))

    async def _execute(self, name: str, binding: tuple[Any, ...]) -> int:
        """Run one writing statement in a transaction of its own and return how many rows it changed."""

        def execute() -> int:
            self._writer.execute(self._sql[name], binding)
            return self._writer.changes()

        return await self._write(lambda: self._in_transaction(execute))

    async def _write(self, work: Callable[[], T]) -> T:
        """Do one writing thing at a time. Shielded: what was begun is finished before the connection is used again."""
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

        def read() -> T:
            with translated(self.path):
                self._reader.execute("BEGIN")
                try:
                    return work()
                finally:
                    self._reader.execute("COMMIT")

        return await self._call(read)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Pace:
    """How long commits take here, measured: a fixed part per commit and a part per row."""

    def __init__(self) -> None:
        self._per_commit = 0.0005
        self._per_row = 0.00001

    def expected(self, transitions: Sequence[Transition]) -> float:
        return self._per_commit + self._per_row * _size(transitions)

    def took(self, transitions: Sequence[Transition], seconds: float) -> None:
        size = _size(transitions)
        if size <= 10:
            self._per_commit += (seconds - self._per_commit) * 0.1
        else:
            self._per_row += (max(seconds - self._per_commit, 0.0) / size - self._per_row) * 0.1


def _size(transitions: Sequence[Transition]) -> int:
    return sum(1 + len(transition.events) + len(transition.nodes) for transition in transitions)


def boot_id() -> str:
    """Name the host's present boot: the clock that leases run on begins with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
