"""Whether other processes have changed a SQLite file. It tells a connection so if it is asked: cheap enough to ask often."""

from __future__ import annotations

from perdure.clock import Clock
from perdure.errors import StoreLocked
from perdure.store.sqlite.connection import translated
from perdure.store.sqlite.file import SqliteFile

POLL_SECONDS = 0.1


class News:
    """What a file says about others' commits."""

    def __init__(self, file: SqliteFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._seen = 0

    async def wait(self, timeout_seconds: float) -> bool:
        """Return soon after another process has committed, or when the time is up (False)."""
        deadline = self._clock.monotonic() + timeout_seconds
        while (left := deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(POLL_SECONDS, left))
            if await self._has_come():
                return True
        return False

    async def _has_come(self) -> bool:
        """Ask the connection that writes, which does not count its own commits; not while it is used."""
        if self._file.is_writing or self._file.is_frozen:
            return False
        seen, self._seen = self._seen, await self._file.write(self._data_version)
        return self._seen != seen

    def _data_version(self) -> int:
        try:
            with translated(self._file.path):
                # What others hold up is asked again soon; commits must not wait for it here.
                return self._file.impatiently(lambda: int(self._file.writer.pragma("data_version")))
        except StoreLocked:
            return self._seen
