"""Reading a file that cannot be written to: on a read-only disk, or somebody else's.

no log beside it         everything is in the file, and only who makes a log first can change it. It is read without locks, which
                         need a file beside it. Whether a log has come or the file has changed is looked at before and after
                         each read: if so, the read is done again.
a log that is in use     whoever uses it keeps an index of it, which is read along.
a log without an index   cannot be read without making the index: refused, saying what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from perdure.errors import StoreError, StoreLocked, StoreReadOnly
from perdure.store.sqlite.connection import beside, connect_without_writing, log_of, translated

T = TypeVar("T")

MOST_TRIES = 5

_State = tuple[int, int, int, int]


class FrozenFile:
    """A database file for reading only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None
        self._state: _State | None = None

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Return what `work` reads, from one state of the file."""
        for _ in range(MOST_TRIES):
            state = self._look()
            connection = self._connected(state)
            try:
                result = work(connection)
            except Exception:  # what is read while it changes may be anything
                if self._look() == state:
                    raise
            else:
                # With a log, SQLite itself sees to it that one read is one state.
                if state is None or self._look() == state:
                    return result
        raise StoreLocked(f"The database {self._path} was changed each time it was read. Try again.")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, state: _State | None) -> apsw.Connection:
        if self._connection is not None and state == self._state:
            return self._connection
        self.close()
        connection = connect_without_writing(self._path, immutable=state is not None)
        try:
            with translated(self._path):
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except StoreError as error:
            connection.close()
            if isinstance(error.__cause__, apsw.CantOpenError | apsw.ReadOnlyError):
                raise self._unreadable() from error
            raise
        self._connection, self._state = connection, state
        return connection

    def _look(self) -> _State | None:
        """Return what changes when the file does; None if there is a log, so that the file is not all of it."""
        with translated(self._path):
            found = self._path.stat()
        for other in (log_of(self._path), beside(self._path, "-journal")):
            if other.exists() and other.stat().st_size:
                return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _unreadable(self) -> StoreReadOnly:
        return StoreReadOnly(
            f"The database {self._path} cannot be read where it is: its latest entries are in {log_of(self._path).name}, and to "
            "read them takes the right to write in its folder. Copy both files to a folder of your own and look there."
        )
