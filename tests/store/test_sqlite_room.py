"""The log of a SQLite file is as long as it gets before commits need it, and is none the worse for that."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from perdure.store.sqlite.connection import WAL_AUTOCHECKPOINT_PAGES, log_of
from perdure.store.sqlite.file import Binding, SqliteFile
from perdure.store.sqlite.store import SqliteStore, open_sqlite
from perdure.store.transitions import Committed
from tests.store.builders import engine_row, save_workflow, started

WHOLE = 32 + WAL_AUTOCHECKPOINT_PAGES * (24 + 4096)


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite(sqlite_url)
    await save_workflow(store)
    yield store
    await store.close()


def log_bytes(store: SqliteStore) -> int:
    return log_of(store.path).stat().st_size


def copy(source: Path, target: Path) -> None:
    """Copy a file in another process: this one would lose its locks by closing it."""
    subprocess.run(["cp", source, target], check=True)


async def register(store: SqliteStore) -> None:
    await store.register_engine(engine_row(), ttl_seconds=60)


async def test_the_log_has_its_length_before_anything_is_committed(store: SqliteStore) -> None:
    assert log_bytes(store) < WHOLE

    await register(store)
    assert log_bytes(store) == WHOLE
    draft = started()
    for step in range(20):
        assert await store.commit([draft.transition()]) == [Committed()]
        draft.next_node(step)

    assert log_bytes(store) == WHOLE


async def test_what_a_killed_process_leaves_is_read_up_to_its_end(store: SqliteStore, tmp_path: Path) -> None:
    await register(store)
    transition = started().transition()
    assert await store.commit([transition]) == [Committed()]

    left = tmp_path / "left.db"
    copy(store.path, left)
    copy(log_of(store.path), log_of(left))

    found = await open_sqlite(f"sqlite:///{left}")
    assert (await found.load_run(transition.run_id)) is not None
    assert apsw.Connection(str(left)).execute("PRAGMA integrity_check").get == "ok"
    await found.close()


def test_a_log_of_nothing_but_room_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA journal_mode = WAL").get == "wal"
    connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    connection.close()
    log_of(path).write_bytes(bytes(WHOLE))

    again = apsw.Connection(str(path))

    assert again.execute("SELECT x FROM t").get == 1
    again.execute("INSERT INTO t VALUES (2)")
    assert again.execute("SELECT count(*) FROM t").get == 2
    again.close()


async def test_what_is_written_there_meanwhile_is_not_written_over(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a file that has taken the place of this one, of which nobody holds the lock here."""
    of_disk = os.fstatvfs

    def write_meanwhile(file: int) -> os.statvfs_result:
        with log_of(store.path).open("ab") as other:
            other.write(b"frames")
        return of_disk(file)

    before = log_bytes(store)
    monkeypatch.setattr("os.fstatvfs", write_meanwhile)
    await store.register_engine(engine_row(), ttl_seconds=60)
    while log_bytes(store) < WHOLE:
        await asyncio.sleep(0.01)
    found = log_of(store.path).read_bytes()

    assert b"frames" in found[before:]
    assert found.endswith(bytes(1_000))


async def test_a_file_behind_a_link_has_its_room(tmp_path: Path) -> None:
    place, link = tmp_path / "elsewhere", tmp_path / "link.db"
    place.mkdir()
    link.symlink_to(place / "perdure.db")
    store = await open_sqlite(f"sqlite:///{link}")
    await register(store)

    assert (place / "perdure.db-wal").stat().st_size == WHOLE
    await store.close()


async def test_whoever_writes_meanwhile_is_not_waited_for(
    store: SqliteStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(store.path))
    change = SqliteFile.change

    async def change_before_another(file: SqliteFile, name: str, binding: Binding) -> int:
        changed = await change(file, name, binding)
        other.execute("BEGIN IMMEDIATE")
        return changed

    monkeypatch.setattr(SqliteFile, "change", change_before_another)
    with caplog.at_level("INFO", logger="perdure.store.sqlite"):
        async with asyncio.timeout(2):
            await store.register_engine(engine_row(), ttl_seconds=60)
    other.execute("ROLLBACK")
    other.close()

    assert "no_room_made" in caplog.text
    assert log_bytes(store) < WHOLE
    assert await store.commit([started().transition()]) == [Committed()]


@pytest.mark.parametrize("trouble", ["little is left", "the disk refuses"])
async def test_commits_go_on_without_room(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if trouble == "little is left":
        monkeypatch.setattr("perdure.store.sqlite.room.SHARE_OF_DISK", 1e-12)
    else:
        monkeypatch.setattr("os.fstatvfs", refuse)

    await register(store)

    assert log_bytes(store) < WHOLE
    assert await store.commit([started().transition()]) == [Committed()]
