"""Room for SQLite's log before commits need it.

A commit that makes the log longer waits for the file system to record its new length as well, which takes as long as the commit
itself. SQLite makes the log as long as it gets by and by, and removes it with the last connection: without this, all of a short
run would be written at half the speed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import apsw

from perdure.store.files import sync
from perdure.store.sqlite.connection import WAL_AUTOCHECKPOINT_PAGES, log_of, translated

SHARE_OF_DISK = 1 / 16
"""More of what is left on the disk is not taken before it is needed."""
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24


def make_room(connection: apsw.Connection, path: Path) -> None:
    """Let the log be as long as it is when SQLite begins with it anew. Raises StoreLocked if somebody else writes.

    Nobody writes to the log without the lock that is held here, and zeros behind its end are no part of it, as little as what is
    left there of a longer one: they have no valid checksum.
    """
    with translated(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            page_bytes = int(connection.pragma("page_size"))
            wanted = _HEADER_BYTES + WAL_AUTOCHECKPOINT_PAGES * (_FRAME_HEADER_BYTES + page_bytes)
            with suppress(OSError):  # a full disk, say: it goes without, and more slowly
                _lengthen(log_of(path), wanted)
        finally:
            connection.execute("ROLLBACK")


def _lengthen(path: Path, wanted: int) -> None:
    # Behind whatever is there, and never over it: the file may have become another, for which nobody holds a lock here.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        disk = os.fstatvfs(file)
        missing = wanted - os.fstat(file).st_size
        if missing > 0 and wanted <= disk.f_bavail * disk.f_frsize * SHARE_OF_DISK:
            os.write(file, bytes(missing))
            sync(file)
    finally:
        os.close(file)
