"""A process that keeps house in a store: it archives runs, brings them back, makes logs compact, deletes values, imports. At a
chosen boundary it is gone, as with SIGKILL: nothing that would clean up behind it runs.

Boundaries are numbered from 1, whatever they are:

    sql     a statement that changes a database, or ends a transaction: the process dies before it
    call    a call of the store that writes: it dies when that has returned, or lives on without the answer, or is refused
    write   bytes for a file of the archive: it dies before, or when half of them are written, or there is no room
    files   a file is synced, renamed or removed: it dies before, or right after

One process is started for many cases: it has everything imported and nothing open, and forks for each.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import apsw
import asyncpg
import msgspec

from perdure.clock import SystemClock
from perdure.engine.keeping import archiving, compacting
from perdure.engine.keeping.archives import restore
from perdure.engine.keeping.archiving import Archiver
from perdure.engine.keeping.compacting import compact_run
from perdure.engine.keeping.deleting import delete_run
from perdure.engine.keeping.importing import import_file
from perdure.errors import StoreError, StoreUnavailable
from perdure.ids import DEFAULT_PROJECT, RunId
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.opening import open_store
from perdure.store.sqlite import archive as sqlite_archive
from perdure.testing.proxy import StoreProxy

ROOT = Path(__file__).resolve().parents[2]
GONE = 77
"""How a process ends that dies."""
KINDS = {
    "sql": ("before",),
    "call": ("after", "reply_lost", "refused"),
    "write": ("before", "torn", "no_room"),
    "files": ("before", "after"),
}
"""What can happen at a boundary."""
WRITING = frozenset(("archive_runs", "remove_leftovers", "give_back", "write_run", "keep_version", "compact_log"))
READING = frozenset(
    ("find_archivable", "archive_files", "load_archive", "load_state", "load_events", "load_deletion", "list_segments")
)
SMALL: tuple[tuple[Any, str, int], ...] = (
    (archiving, "RUNS_AT_ONCE", 1),
    (archiving, "ROWS_AT_ONCE", 40),
    (archiving, "PAGES_AT_ONCE", 2),
    (sqlite_archive, "FEW_EVENTS", 3),
    (sqlite_archive, "SPARE_PAGES", 4),
    (compacting, "EVENTS_PER_SEGMENT", 10),
    (compacting, "KEPT_EVENTS", 7),
)
"""So that everything is done in portions of which there are several."""
CHANGING = ("INSERT", "UPDATE", "DELETE", "REPLACE", "COMMIT", "WITH", "PRAGMA INCREMENTAL_VACUUM")


class Boundary(msgspec.Struct, frozen=True):
    what: str
    name: str


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does, and at which boundary something happens to it; at none if that is 0."""

    what: str
    url: str
    blobs: str
    folder: str
    """Of the archive."""
    run_ids: list[str]
    bundle: str = ""
    at: int = 0
    kind: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a process."""

    code: int = 0
    boundaries: list[Boundary] = []
    """Those that it came to."""
    error: str = ""
    """What it was told, if it lived on and did not succeed."""


class Fate:
    """Counts the boundaries of a process, and says what happens at each."""

    def __init__(self, case: Case, answer: int) -> None:
        self.passed: list[Boundary] = []
        self.is_watching = False
        self._case = case
        self._answer = answer

    def comes_to(self, what: str, name: str) -> str:
        """Return what happens at this boundary; nothing mostly. Does not return if the process dies before it."""
        if not self.is_watching:
            return ""
        self.passed.append(Boundary(what, name))
        kind = self._case.kind if len(self.passed) == self._case.at else ""
        if kind == "before":
            self.die()
        return kind

    def die(self) -> NoReturn:
        self.end(GONE)

    def end(self, code: int, error: str = "") -> NoReturn:
        os.write(self._answer, msgspec.json.encode(Answer(code=code, boundaries=self.passed, error=error)))
        os._exit(code)


async def keep(case: Case, store: Store, blobs: BlobStore) -> None:
    """Do what a case says."""
    clock, folder = SystemClock(), Path(case.folder)
    match case.what:
        case "archive":
            archiver = Archiver(store, blobs, folder, clock, rest=0)
            await archiver.archive(older_than=timedelta(0), limit=None, dry_run=False)
        case "restore":
            for run_id in case.run_ids:
                await restore(store, blobs, folder, RunId(run_id), project_id=DEFAULT_PROJECT, clock=clock)
        case "compact":
            for run_id in case.run_ids:
                await compact_run(store, RunId(run_id))
        case "delete":
            for run_id in case.run_ids:
                await delete_run(store, blobs, RunId(run_id), clock=clock)
        case "import":
            (run_id,) = case.run_ids
            await import_file(
                store, blobs, Path(case.bundle), project_id=DEFAULT_PROJECT, clock=clock, run_id=run_id, paused=False
            )
        case _:
            raise AssertionError(case.what)


# The process that dies


class WatchedStore(StoreProxy):
    """A store whose answers may not come."""

    def __init__(self, inner: Store, fate: Fate) -> None:
        super().__init__(inner)
        self._fate = fate

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name not in WRITING:
            assert name in READING, f"say of {name} whether it writes"
            return await call()
        kind = self._fate.comes_to("call", name)
        if kind == "refused":
            raise StoreUnavailable("The database cannot be used for the moment.")
        answer = await call()
        if kind == "after":
            self._fate.die()
        if kind == "reply_lost":
            raise StoreUnavailable("The connection was cut before the answer came.")
        return answer


def watch_files(fate: Fate) -> None:
    """Have it noticed whenever a file is written, synced, renamed or removed."""

    class WatchedFile(io.BufferedRandom):
        def write(self, content: Any, /) -> int:
            kind = fate.comes_to("write", "a file of the archive")
            if kind == "no_room":
                raise OSError(errno.ENOSPC, "No space left on device")
            if kind == "torn":
                super().write(bytes(content)[: len(content) // 2])
                self.flush()
                fate.die()
            return super().write(content)

    def watched_open(path: Path, mode: str, *, opener: Any) -> BinaryIO:
        if not mode.startswith("x"):
            return open(path, mode, opener=opener)
        return WatchedFile(io.FileIO(path, mode.replace("b", ""), opener=opener))

    archiving.open = watched_open  # type: ignore[attr-defined]
    for name in ("fsync", "replace", "rename", "link", "unlink"):
        _watch_function(os, name, fate)


def _watch_function(where: Any, name: str, fate: Fate) -> None:
    function = getattr(where, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        kind = fate.comes_to("files", name)
        try:
            return function(*args, **kwargs)
        finally:
            if kind == "after":
                fate.die()

    setattr(where, name, watched)


def watch_statements(fate: Fate) -> None:
    """Have it noticed whenever a database is told to change something. The same for row after row counts once."""
    before = ""

    def look(statement: str) -> None:
        nonlocal before
        if statement != before and statement.lstrip().upper().startswith(CHANGING):
            fate.comes_to("sql", statement.split()[0])
        before = statement

    def trace(_: apsw.Cursor, statement: str, __: Any) -> bool:
        look(statement)
        return True

    def traced(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(traced)
    fetch, execute = asyncpg.prepared_stmt.PreparedStatement.fetch, asyncpg.Connection.execute

    async def watched_fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
        look(self.get_query())
        return await fetch(self, *args, **kwargs)

    async def watched_execute(self: Any, query: str, *args: Any, **kwargs: Any) -> Any:
        look(query)
        return await execute(self, query, *args, **kwargs)

    asyncpg.prepared_stmt.PreparedStatement.fetch = watched_fetch
    asyncpg.Connection.execute = watched_execute


async def _live(case: Case, fate: Fate) -> str:
    store, blobs = await open_store(case.url), open_blobs(case.blobs)
    fate.is_watching = True
    try:
        await keep(case, WatchedStore(store, fate).as_store, blobs)
    except StoreError as error:
        return str(error)
    finally:
        fate.is_watching = False
        await blobs.close()
        await store.close()
    return ""


def live(case: Case, answer: int) -> NoReturn:
    """Do what a case says, until something happens or all is done."""
    fate = Fate(case, answer)
    try:
        for module, name, value in SMALL:
            setattr(module, name, value)
        watch_files(fate)
        watch_statements(fate)
        fate.end(0, asyncio.run(_live(case, fate)))
    except BaseException as error:  # this process has nobody else to tell
        fate.end(1, repr(error))


def serve() -> None:
    """Read cases, one to a line, and write what became of a process for each."""
    for line in sys.stdin.buffer:
        case = msgspec.json.decode(line, type=Case)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            live(case, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(child, 0)
        answer = msgspec.json.decode(told, type=Answer)
        assert answer.code == os.waitstatus_to_exitcode(status)
        sys.stdout.buffer.write(told + b"\n")
        sys.stdout.buffer.flush()


# Whoever looks on


class Household:
    """Starts processes that keep house, one after the other."""

    async def __aenter__(self) -> Household:
        self._server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from tests.crash.keeping import serve; serve()"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        await self._server.wait()

    async def have_done(self, case: Case) -> Answer:
        """Have a process do something, and return what became of it."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(msgspec.json.encode(case) + b"\n")
        answer = msgspec.json.decode(await self._server.stdout.readline(), type=Answer)
        assert answer.code != 1, answer.error
        return answer


def everything_that_can_happen(boundaries: Sequence[Boundary]) -> list[tuple[int, str]]:
    """Return each boundary, by its number, with each thing that can happen there."""
    return [(at, kind) for at, found in enumerate(boundaries, start=1) for kind in KINDS[found.what]]
