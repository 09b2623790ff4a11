"""An open SQLite file: one connection that writes, one that reads, and a thread for both.

A transaction holds no `await` and no user code, and once begun it ends: the caller may leave, the outcome is the file's.

A file that cannot be written to is read as `frozen.py` says. A file that was removed or replaced while it is open is noticed by
`require_same`: nothing is acknowledged for long that nobody can find again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import apsw

from perdure.clock import Clock
from perdure.errors import StoreDamaged, StoreError, StoreLocked, StoreReadOnly, StoreUnavailable
from perdure.store.migrate import Migration, plan, read_migrations
from perdure.store.queries import load_queries
from perdure.store.sqlite.connection import (
    BUSY_TIMEOUT_MS,
    CHECK_RIGHTS,
    Location,
    Patience,
    can_write,
    connect,
    identity_of,
    is_fatal,
    require_ours,
    set_patience,
    translate,
    translated,
)
from perdure.store.sqlite.frozen import FrozenFile
from perdure.store.sqlite.room import make_room

log = logging.getLogger("perdure.store.sqlite")

T = TypeVar("T")
Binding = tuple[Any, ...]
Rows = list[tuple[Any, ...]]

PACKAGE = "perdure.store.sqlite"
PATIENCE_SECONDS = BUSY_TIMEOUT_MS / 1_000
LOOK_UP_SECONDS = 0.002
"""Who has held up the loop for longer by looking something up is more careful for a while."""
CAREFUL_SECONDS = 1.0
ROUND_SECONDS = 0.003
"""What is done on the loop at once yields to nobody: after so long it does, before it goes on."""


class SqliteFile:
    """One file, as one process uses it. `inline` keeps everything on the caller's thread."""

    def __init__(self, url: str, location: Location, *, clock: Clock, inline: bool) -> None:
        self.location = location
        self.path = location.path
        self.sql = load_queries(PACKAGE)
        self.writer: apsw.Connection
        self._url = url
        self._clock = clock
        self._threads = None if inline else ThreadPoolExecutor(max_workers=1, thread_name_prefix="perdure-sqlite")
        self._reader: apsw.Connection
        self._writer_patience: Patience
        self._reader_patience: Patience
        self._connections: list[apsw.Connection] = []
        self._lock = asyncio.Lock()
        self._writing: set[asyncio.Future[Any]] = set()
        self._reader_lock = threading.Lock()
        self._careful_until = 0.0
        self._spent_seconds = 0.0
        """How long work for the file has held up this round of the loop."""
        self._process = os.getpid()
        self._is_closed = False
        self._identity: tuple[int, int] | None = None
        self._frozen: FrozenFile | None = None
        self._failure: StoreError | None = None
        """Why nothing can be written, if so."""

    @property
    def is_inline(self) -> bool:
        return self._threads is None

    @property
    def is_frozen(self) -> bool:
        """Whether it can only be read."""
        return self._frozen is not None

    @property
    def is_writing(self) -> bool:
        """Whether something has the connections to itself at this moment."""
        return self._lock.locked()

    # Opening and closing

    async def open(self) -> None:
        """Open the file, creating it and bringing its schema up to date; or, if it cannot be written to, for reading."""
        await self._shielded(self._alone(self._open))

    async def close(self) -> None:
        """Close both connections and end the thread, also when the caller leaves meanwhile."""
        if self._is_closed or self._process != os.getpid():
            return
        try:
            await self._shielded(self._alone(self._close))
        except asyncio.CancelledError:
            if self._writing:
                await asyncio.wait(self._writing)
            raise
        finally:
            self._is_closed = True
            if self._threads is not None:
                self._threads.shutdown(wait=True)

    def _open(self) -> None:
        if not can_write(self.path):
            self._open_frozen()
            return
        self.writer = connect(self.location)
        self._connections.append(self.writer)
        self._writer_patience = set_patience(self.writer, PATIENCE_SECONDS)
        self._identity = identity_of(self.path)
        self._migrate()
        self._reader = connect(self.location, read_only=True)
        self._connections.append(self._reader)
        self._reader_patience = set_patience(self._reader, PATIENCE_SECONDS)

    def _open_frozen(self) -> None:
        self._frozen = FrozenFile(self.path)
        self._failure = StoreReadOnly(
            f"The database {self.path} is read-only. {CHECK_RIGHTS}, or choose another --store."
        )
        self._frozen.read(lambda connection: require_ours(connection, self.path))
        applied = self._frozen.read(self._applied)
        if plan(applied, read_migrations(PACKAGE), where=str(self.path)):
            raise self._failure

    def _migrate(self) -> None:
        known = read_migrations(PACKAGE)
        if plan(self._applied(self.writer), known, where=str(self.path)):
            self.in_transaction(lambda: self._apply_migrations(known))

    def _apply_migrations(self, known: Sequence[Migration]) -> None:
        self.writer.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
            "checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT"
        )
        # Read again under the lock: another process may have been first.
        for migration in plan(self._applied(self.writer), known, where=str(self.path)):
            self.writer.execute(migration.sql)
            record = (migration.number, migration.name, migration.checksum, self._clock.now_micros())
            self.writer.execute("INSERT INTO schema_migrations VALUES (?, ?, ?, ?)", record)

    def _applied(self, connection: apsw.Connection) -> dict[int, str]:
        with translated(self.path):
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'").get:
                return {}
            found = connection.execute("SELECT number, checksum FROM schema_migrations").fetchall()
        return {cast("int", number): cast("str", checksum) for number, checksum in found}

    def _close(self) -> None:
        if self._frozen is not None:
            self._frozen.close()
        with self._reader_lock:
            while self._connections:
                self._connections.pop().close()

    # What must hold

    def require_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The store {self._url} is closed.")
        if self._process != os.getpid():
            raise StoreUnavailable(
                f"The database {self.path} was opened before this process was forked, which SQLite does not survive. "
                "Open it after the fork."
            )

    def require_writable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def require_same(self) -> None:
        """Raise if the file was removed or replaced while it is open."""
        if self._identity is not None and identity_of(self.path) != self._identity:
            raise StoreDamaged(
                f"The database {self.path} is gone: it was removed or replaced while it was open. Nothing more is written, "
                "because nobody could find it again. Put the file back, or start again with another --store."
            )

    # Statements, inside of `read` and of a transaction

    def select(self, name: str, binding: Binding) -> Rows:
        """Read on the connection for that."""
        return self._reader.execute(self.sql[name], binding).fetchall()

    def execute(self, name: str, binding: Binding) -> Rows:
        """Execute a statement on the connection that writes, and return what it gives."""
        return self.writer.execute(self.sql[name], binding).fetchall()

    def execute_each(self, name: str, bindings: Iterable[Binding]) -> Rows:
        return self.writer.executemany(self.sql[name], bindings).fetchall()

    # Ways to the file

    async def read(self, work: Callable[[], T]) -> T:
        """Run reads in one read transaction, so that they see one state of the database."""

        def read_from(connection: apsw.Connection) -> T:
            self._reader = connection
            return self._in_read_transaction(work)

        frozen = self._frozen
        if frozen is not None:
            return await self._call(lambda: frozen.read(read_from))
        return await self._call(lambda: self._read_alone(work))

    async def look_up(self, work: Callable[[], T]) -> T:
        """As `read`, for what finds a few rows by their keys: at once if nobody else reads, because the way to the thread and
        back takes longer than that."""
        await self.take_turn()
        started = time.perf_counter()
        is_free = self._frozen is None and not self._is_closed and started >= self._careful_until
        if not (is_free and self._reader_lock.acquire(blocking=False)):
            return await self.read(work)
        try:
            self.require_open()
            return _without(self._reader_patience, lambda: self._in_read_transaction(work))
        except StoreLocked:
            pass  # the thread can wait for whoever holds the file
        finally:
            self._reader_lock.release()
            ended = time.perf_counter()
            self._spend(ended - started)
            if ended - started > LOOK_UP_SECONDS:
                self._careful_until = ended + CAREFUL_SECONDS
        return await self.read(work)

    async def take_turn(self) -> None:
        """Let others have the loop before something is done on it at once, if this round of it was held up for long enough."""
        while self._spent_seconds >= ROUND_SECONDS:  # noqa: ASYNC110 -- the next round is what is waited for
            await asyncio.sleep(0)

    def _spend(self, seconds: float) -> None:
        if self._threads is None:
            return  # everything is done at once, whatever it takes
        if not self._spent_seconds:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._spent_seconds += seconds

    def _begin_round(self) -> None:
        self._spent_seconds = 0.0

    async def transact(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction of its own."""
        with self._refusals():
            return await self.write(lambda: self.in_transaction(work))

    def transact_at_once(self, work: Callable[[], T]) -> T:
        """As `transact`, on the loop, and without waiting for other processes: what they hold raises StoreLocked."""
        self.require_open()
        self.require_writable()
        started = time.perf_counter()
        try:
            with self._refusals():
                return self.impatiently(lambda: self.in_transaction(work))
        finally:
            self._spend(time.perf_counter() - started)

    @contextmanager
    def _refusals(self) -> Generator[None]:
        """What is too large, or of another kind than its column, is the caller's fault, and said so."""
        try:
            yield
        except (apsw.MismatchError, apsw.TooBigError) as error:
            raise translate(error, self.path) from error

    async def transact_without_keys(self, work: Callable[[], T]) -> T:
        """As `transact`, for what looks after references itself: a run goes before what belongs to it."""

        def keyless() -> T:
            self.writer.execute("PRAGMA foreign_keys = OFF")
            try:
                return self.in_transaction(work)
            finally:
                self.writer.execute("PRAGMA foreign_keys = ON")

        return await self.write(keyless)

    async def transact_on_the_side(self, work: Callable[[], T]) -> T:
        """As `transact`, for what waits for nobody and may be lost if the power fails: the next commit makes it durable with
        itself."""

        def unsynced() -> T:
            self.require_writable()
            self.writer.execute("PRAGMA synchronous = NORMAL")
            try:
                return self.in_transaction(work)
            finally:
                self.writer.execute(f"PRAGMA synchronous = {self.location.synchronous}")

        return await self.write(lambda: self.impatiently(unsynced))

    async def change(self, name: str, binding: Binding) -> int:
        """Run one writing statement in a transaction of its own and return how many rows it changed."""

        def execute() -> int:
            self.execute(name, binding)
            return self.writer.changes()

        return await self.transact(execute)

    async def write(self, work: Callable[[], T]) -> T:
        """Use the connection that writes for one thing at a time."""
        return await self._shielded(self._alone(work))

    async def make_room(self) -> None:
        """Lengthen the log for the commits that are to come, unless somebody else writes at this moment."""
        if self.is_inline:
            return
        try:
            await self.write(lambda: self.impatiently(lambda: make_room(self.writer, self.path)))
        except Exception as error:  # whatever it is, commits only take longer without
            log.info("no_room_made", extra={"error": str(error)})

    async def aside(self, work: Callable[[], T]) -> T:
        """Do what has a connection of its own beside all else."""
        self.require_open()
        return work() if self._threads is None else await asyncio.to_thread(work)

    async def transact_in_halves(self, work: Callable[[], T]) -> tuple[T, float]:
        """Run `work` in a transaction on the loop, at once and without waiting for other processes, and have it made durable
        in the thread: that is what takes long, and needs no Python. Return also how many seconds both have taken, without the
        way to the thread and back."""
        return await self._shielded(self._halves(work))

    async def _halves(self, work: Callable[[], T]) -> tuple[T, float]:
        async with self._lock:
            self.require_open()
            started = time.perf_counter()
            result = self.impatiently(lambda: self._first_half(work))
            written = time.perf_counter()
            return result, written - started + await self._to_its_end(self._second_half)

    def in_transaction(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction, on the thread on which this is called."""
        self.require_writable()
        with translated(self.path):
            try:
                self.writer.execute("BEGIN IMMEDIATE")
                result = work()
                self.writer.execute("COMMIT")
            except BaseException as error:
                self._undo(error)
                raise
            return result

    def _first_half(self, work: Callable[[], T]) -> T:
        self.require_writable()
        with translated(self.path):
            try:
                self.writer.execute("BEGIN IMMEDIATE")
                return work()
            except BaseException as error:
                self._undo(error)
                raise

    def _second_half(self) -> float:
        started = time.perf_counter()
        with translated(self.path):
            try:
                self.writer.execute("COMMIT")
            except BaseException as error:
                self._undo(error)
                raise
        return time.perf_counter() - started

    def _undo(self, error: BaseException) -> None:
        if isinstance(error, apsw.Error) and is_fatal(error):
            self._failure = translate(error, self.path)
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    def impatiently(self, work: Callable[[], T]) -> T:
        """Run `work` without waiting for other processes: what they hold raises StoreLocked at once."""
        return _without(self._writer_patience, work)

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what has the connections to itself: once begun it is finished, whoever leaves, before they are used again."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        # A group would have to be left together with the caller; this one outlives a caller that leaves.
        writing = asyncio.ensure_future(work)  # noqa: TID251
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return writing

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await self._to_its_end(work)

    async def _to_its_end(self, work: Callable[[], T]) -> T:
        """As `_call`. Who is cancelled meanwhile, as everybody is when the loop is torn down, leaves when it is done: nothing
        stops the thread, which has the connection until then."""
        self.require_open()
        if self._threads is None:
            return work()
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((running,))
            raise

    def _read_alone(self, work: Callable[[], T]) -> T:
        with self._reader_lock:
            return self._in_read_transaction(work)

    def _in_read_transaction(self, work: Callable[[], T]) -> T:
        with translated(self.path):
            self._reader.execute("BEGIN")
            try:
                return work()
            finally:
                self._reader.execute("COMMIT")

    async def _call(self, work: Callable[[], T]) -> T:
        self.require_open()
        if self._threads is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _without(patience: Patience, work: Callable[[], T]) -> T:
    patience.seconds = 0.0
    try:
        return work()
    finally:
        patience.seconds = PATIENCE_SECONDS
