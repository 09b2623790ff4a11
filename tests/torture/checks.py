"""What must hold of a store and of the ledger whatever was done to the processes: the invariants by their numbers."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from perdure.engine.inspect import verify_run
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.shapes import EngineRow, RunDump, RunFilter
from perdure.store.sqlite.connection import parse_url
from tests.torture.holding import connected
from tests.torture.programs.effects import Effect, Ledger

PAGE = 1_000


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    """Give the store, opened for this block alone."""
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def statuses(store: Store) -> dict[str, RunStatus]:
    """Return the status of every run."""
    found: dict[str, RunStatus] = {}
    before: tuple[int, str] | None = None
    while page := await store.list_runs(RunFilter(), before=before, limit=PAGE):
        found.update((run.run_id, run.status) for run in page)
        before = (page[-1].created_at, page[-1].run_id)
    return found


async def assert_whole(url: str, ledger: Ledger, pids: Mapping[str, int] | None = None) -> dict[str, RunDump]:
    """Every run obeys the law, and what bodies have done is what the log says. Return what the store holds.

    `pids` are the processes of engines, by name.
    """
    if url.startswith("sqlite:"):
        assert_file_sound(url)
    async with opened(url) as store:
        dumps: dict[str, RunDump] = {}
        violations: list[str] = []
        for run_id in await statuses(store):
            violations += [f"{run_id}: {violation}" for violation in await verify_run(store, run_id)]
            dump = await store.dump_run(RunId(run_id))
            assert dump is not None
            dumps[run_id] = dump
        found = {str(row.engine_id): row.pid for row in await store.list_engines()}
    violations += wrong_effects(dumps, ledger.effects(), {**found, **(pids or {})})
    assert not violations, "\n".join(violations[:20])
    return dumps


def assert_file_sound(url: str) -> None:
    """SQLite finds nothing wrong with its file."""
    connection = apsw.Connection(str(parse_url(url).path))
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


async def can_be_written(url: str) -> bool:
    """Whether no process that is stopped holds the lock of a SQLite file. Those that are at work hold it for a moment only."""
    if not url.startswith("sqlite:"):
        return True
    connection = apsw.Connection(str(parse_url(url).path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(300)
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def wrong_effects(dumps: Mapping[str, RunDump], effects: Sequence[Effect], pids: Mapping[str, int]) -> Iterator[str]:
    """I27: one effect per attempt, each of an attempt that was recorded as started, none missing, one key per node. I13: each in
    the process of the engine that owned the run then, as far as `pids` knows the engines."""
    started = {(run_id, *attempt): epoch for run_id, dump in dumps.items() for attempt, epoch in _started(dump).items()}
    owners = {(run_id, epoch): engine for run_id, dump in dumps.items() for epoch, engine in owners_of(dump).items()}
    for attempt, count in Counter((effect.run_id, effect.node_id, effect.attempt) for effect in effects).items():
        if count > 1:
            yield f"I27: the body of {attempt} has run {count} times"
    keys: dict[tuple[str, str], str] = {}
    for effect in effects:
        epoch = started.get((effect.run_id, effect.node_id, effect.attempt))
        if epoch is None:
            yield f"I27: {effect} was never recorded as started"
        elif pids.get(owners[effect.run_id, epoch], effect.pid) != effect.pid:
            yield f"I13: {effect} ran in another process than that of engine {owners[effect.run_id, epoch]}"
        if keys.setdefault((effect.run_id, effect.node_id), effect.key) != effect.key:
            yield f"I27: {effect} has another key than the attempts before"
    seen = {(effect.run_id, effect.node_id, effect.attempt) for effect in effects}
    for run_id, dump in dumps.items():
        for node in dump.all_nodes:
            if node.status is NodeStatus.COMPLETED and (run_id, node.node_id, node.attempt) not in seen:
                yield f"I27: node {node.node_id} of {run_id} is completed, but its attempt {node.attempt} has never run"


def owners_of(dump: RunDump) -> dict[int, str]:
    """Return who has owned the run, by epoch. Verify has seen to it that each epoch has one claim."""
    return {entry.event.epoch: entry.event.engine_id for entry in dump.events if isinstance(entry.event, e.RunClaimed)}


def takeovers(dump: RunDump) -> list[e.RunClaimed]:
    """Return the claims of runs whose engine was lost."""
    return [entry.event for entry in dump.events if isinstance(entry.event, e.RunClaimed) and entry.event.lost]


def completed_nodes(dump: RunDump) -> set[str]:
    return {node.node_id for node in dump.all_nodes if node.status is NodeStatus.COMPLETED}


def copy_of_dead(url: str, folder: Path) -> str:
    """Return a store with what a killed process has left of a SQLite file, which itself stays untouched: whoever continues has
    to recover from the log of the dead. Other databases recover by themselves, and are returned as they are."""
    if not url.startswith("sqlite:"):
        return url
    path = parse_url(url).path
    folder.mkdir(exist_ok=True)
    for name in (path.name, f"{path.name}-wal"):
        source, target = path.with_name(name), folder / name
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copyfile(source, target)
    (folder / f"{path.name}-shm").unlink(missing_ok=True)
    return f"sqlite:///{folder / path.name}"


async def engines_of(store: Store, pid: int) -> list[EngineRow]:
    """Return the engines of a process that live by the store's clock."""
    return [row for row in await store.list_engines() if row.pid == pid and row.is_alive]


async def rows_of(url: str) -> dict[str, list[str]]:
    """Return every row of every table but `engines`, which heartbeats change."""
    tables = await (_sqlite_rows(url) if url.startswith("sqlite:") else _postgres_rows(url))
    del tables["engines"]
    return tables


async def _sqlite_rows(url: str) -> dict[str, list[str]]:
    connection = apsw.Connection(str(parse_url(url).path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.wal_autocheckpoint(0)
        connection.execute("BEGIN")
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        tables = [str(name) for (name,) in names.fetchall()]
        return {table: sorted(map(repr, connection.execute(f"SELECT * FROM {table}").fetchall())) for table in tables}
    finally:
        connection.close()


async def _postgres_rows(url: str) -> dict[str, list[str]]:
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {
            name: sorted(repr(tuple(row)) for row in await connection.fetch(f"SELECT * FROM {name}"))
            for (name,) in names
        }


def _started(dump: RunDump) -> dict[tuple[str, int], int]:
    """Return under which epoch each attempt was started."""
    return {
        (entry.event.node_id, entry.event.attempt): entry.epoch
        for entry in dump.events
        if isinstance(entry.event, e.NodeStarted)
    }


def chosen_seed() -> int:
    """Return the seed of this test: a fresh one, or that of a failure to be seen again (PERDURE_TORTURE_SEED)."""
    named = os.environ.get("PERDURE_TORTURE_SEED")
    return int(named) if named else int.from_bytes(os.urandom(4), "big")
