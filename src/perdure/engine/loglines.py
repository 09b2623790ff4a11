"""Keeping what bodies write with `ctx.log`. Best effort: a line that cannot be kept is lost, and nothing else is."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from perdure.clock import Clock
from perdure.errors import StoreError
from perdure.store.base import LogLine, Store

log = logging.getLogger("perdure.engine")

FLUSH_SECONDS = 0.25


class LogKeeper:
    """Writes the lines that gather in `lines` to the store, now and then."""

    def __init__(self, lines: deque[LogLine], store: Store, clock: Clock) -> None:
        self._lines = lines
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Write again and again, for ever."""
        while True:
            await self._clock.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what has gathered. Never raises because of a line, or of the store."""
        if batch := [self._lines.popleft() for _ in range(len(self._lines))]:
            await self._append(batch)

    async def _append(self, batch: Sequence[LogLine]) -> None:
        try:
            await self._store.append_logs(batch)
        except StoreError as error:
            log.warning("log_lines_lost", extra={"count": len(batch), "error": str(error)})
        except (
            Exception
        ) as error:  # a line holds whatever its body has put there, which the store may not be able to take
            if len(batch) == 1:
                lost = batch[0]
                place = {"run_id": lost.run_id, "node_id": lost.node_id}
                log.warning("log_line_lost", extra={**place, "error": f"{type(error).__name__}: {error}"})
                return
            middle = len(batch) // 2
            await self._append(batch[:middle])
            await self._append(batch[middle:])
