"""Keeping what bodies write with `ctx.log`. Best effort: a line that cannot be kept is lost, and nothing else is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from perdure.clock import Clock
from perdure.errors import StoreError
from perdure.store.base import Store
from perdure.store.shapes import LogLine

log = logging.getLogger("perdure.engine")

FLUSH_SECONDS = 0.25


class LogLines:
    """Lines that wait to be written. If they come faster than that, the oldest are lost."""

    def __init__(self, most: int) -> None:
        self._lines: deque[LogLine] = deque(maxlen=most)
        self._have_come = asyncio.Event()

    def append(self, line: LogLine) -> None:
        self._lines.append(line)
        self._have_come.set()

    def take(self) -> list[LogLine]:
        self._have_come.clear()
        return [self._lines.popleft() for _ in range(len(self._lines))]

    async def have_come(self) -> None:
        """Return when there are some."""
        await self._have_come.wait()


class LogKeeper:
    """Writes the lines that gather in `lines` to the store, a moment after the first of them has come."""

    def __init__(self, lines: LogLines, store: Store, clock: Clock) -> None:
        self._lines = lines
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Write again and again, for ever."""
        while True:
            await self._lines.have_come()
            await self._clock.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what has gathered. Never raises because of a line, or of the store."""
        if batch := self._lines.take():
            await self._append(batch)

    async def _append(self, batch: Sequence[LogLine]) -> None:
        try:
            await self._store.append_logs(batch)
        except StoreError as error:
            log.warning("log_lines_lost", extra={"count": len(batch), "error": str(error)})
        except Exception as error:  # a line holds whatever its body has put there: the store may not be able to take it
            if len(batch) == 1:
                lost = batch[0]
                place = {"run_id": lost.run_id, "node_id": lost.node_id}
                log.warning("log_line_lost", extra={**place, "error": f"{type(error).__name__}: {error}"})
                return
            middle = len(batch) // 2
            await self._append(batch[:middle])
            await self._append(batch[middle:])
