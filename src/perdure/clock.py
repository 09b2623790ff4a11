"""Time: the only place that asks what time it is.

Wall time decorates events and is never used to decide who owns what. Leases are judged by the database's clock
(PostgreSQL) or by the host's boot clock (SQLite), which is `host_seconds` here.
"""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """What the engine asks of time. Tests and the simulation bring their own."""

    def now_micros(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, for durations inside one process."""
        ...

    def host_seconds(self) -> float:
        """Seconds since the host booted: the same for all its processes, immune to changes of wall time."""
        ...

    async def sleep(self, seconds: float) -> None: ...


# macOS has no CLOCK_BOOTTIME; its monotonic clock is also shared by all processes, but stops while the host sleeps.
_HOST_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The real one."""

    monotonic = staticmethod(time.monotonic)
    host_seconds = staticmethod(functools.partial(time.clock_gettime, _HOST_CLOCK))

    def now_micros(self) -> int:
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def from_micros(micros: int) -> datetime:
    """Return the moment `micros` microseconds after 1970-01-01 UTC."""
    return EPOCH + timedelta(microseconds=micros)
