"""Copying a SQLite file that is in use: one state of it, while others write."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import apsw

from perdure.store.files import sync_file, sync_folder
from perdure.store.sqlite.connection import Location, connect

PAGES_AT_ONCE = 1_024


def back_up(location: Location, target: Path, partial: Path) -> None:
    """Copy the file to `target`, which is whole or not there. Nobody owns the runs of the copy."""
    try:
        _copy(location, partial)
        with partial.open("rb+") as file:
            sync_file(file)
        os.replace(partial, target)
        sync_folder(target.parent)
    finally:
        for leftover in (partial, Path(f"{partial}-wal"), Path(f"{partial}-shm")):
            with suppress(FileNotFoundError):
                leftover.unlink()


def _copy(location: Location, partial: Path) -> None:
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    source = connect(location, read_only=True)
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # With a transaction open the copy is of one state, and need not begin again when somebody writes.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(PAGES_AT_ONCE)
        # The engines that drive runs drive those of the other file. What was in the log goes into the file itself.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("UPDATE run_state SET owner = NULL WHERE owner IS NOT NULL; DELETE FROM engines")
    finally:
        copy.close()
        source.close()
