"""Staying alive in the eyes of other engines, and telling which of them are not.

The heartbeat runs in a thread with a connection of its own, so that a busy loop does not lose the lease, but it renews only
while the loop still turns, so that a wedged one cannot keep it for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from perdure.clock import Clock
from perdure.engine.settings import EngineSettings
from perdure.errors import StoreError
from perdure.ids import EngineId
from perdure.store.base import EngineRow, Store

log = logging.getLogger("perdure.leases")

FRESH_FRACTION = 2 / 3
"""Without a renewal for this part of the lease nothing is started any more: side effects cannot be fenced."""


def describe_process(engine_id: EngineId, name: str) -> EngineRow:
    """Return what others need to know to tell whether this process is still there."""
    return EngineRow(
        engine_id=engine_id,
        name=name,
        host=_pid_space(),
        pid=os.getpid(),
        process_start=_process_start(os.getpid()),
    )


def is_gone(engine: EngineRow) -> bool:
    """Whether the engine's process is known to have ended: only its own host can tell before the lease does."""
    if not engine.host or engine.host != _pid_space():
        return False
    return _process_start(engine.pid) != engine.process_start


class Heartbeat:
    """Renews an engine's lease. On the engine's loop, `on_lost` is called when it was lost and `on_fresh` when it is sure again
    after it was not."""

    def __init__(
        self,
        engine_id: EngineId,
        open_store: Callable[[], Awaitable[Store]],
        settings: EngineSettings,
        clock: Clock,
        on_lost: Callable[[], None],
        on_fresh: Callable[[], None],
    ) -> None:
        self._engine_id = engine_id
        self._open_store = open_store
        self._settings = settings
        self._clock = clock
        self._on_lost = on_lost
        self._on_fresh = on_fresh
        self._renewed = clock.host_seconds()
        self._ticked = clock.monotonic()
        self._was_doubted = False
        """Somebody was told that the lease is not sure, and has not heard since."""
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    def is_fresh(self) -> bool:
        """Whether the lease was renewed so recently that the engine may start things under it."""
        # By the clock that goes on while the host sleeps, as others' clocks do.
        age = self._clock.host_seconds() - self._renewed
        is_fresh = age < self._settings.lease_seconds * FRESH_FRACTION
        self._was_doubted = self._was_doubted or not is_fresh
        return is_fresh

    def start_thread(self) -> None:
        """Renew from a thread of its own."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beat()), name="perdure-heartbeat", daemon=True)
        self._thread.start()

    async def tick(self) -> None:
        """Show that the loop turns, for ever. Where there is no thread, renew as well."""
        store = None if self._thread is not None else await self._open_store()
        next_beat = self._clock.monotonic() + self._settings.heartbeat_seconds
        while True:
            await self._clock.sleep(min(1.0, self._settings.heartbeat_seconds))
            self._ticked = self._clock.monotonic()
            if self._was_doubted and self.is_fresh():
                self._was_doubted = False
                self._on_fresh()
            if store is not None and self._ticked >= next_beat:
                next_beat = self._ticked + self._settings.heartbeat_seconds
                if not await self._renew(store):
                    self._on_lost()
                    return

    async def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    async def _beat(self) -> None:
        """The thread's own loop."""
        try:
            store = await self._open_store()
        except StoreError as error:
            log.warning("heartbeat_cannot_open_store", extra={"error": str(error)})
            self._lose()
            return
        try:
            while not await asyncio.to_thread(self._stopped.wait, self._settings.heartbeat_seconds):
                if self._clock.monotonic() - self._ticked > self._settings.loop_stall_seconds:
                    log.error("loop_stalled", extra={"engine_id": self._engine_id})
                    continue
                if not await self._renew(store):
                    self._lose()
                    return
        finally:
            await store.close()

    async def _renew(self, store: Store) -> bool:
        """Renew once. A store that does not answer has not said that the lease is lost."""
        began = self._clock.host_seconds()
        try:
            if not await store.renew_engine(self._engine_id, ttl_seconds=self._settings.lease_seconds):
                return False
        except StoreError as error:
            log.warning("heartbeat_failed", extra={"error": str(error)})
            return True
        self._renewed = began
        return True

    def _lose(self) -> None:
        if not self._stopped.is_set():
            self._loop.call_soon_threadsafe(self._on_lost)


def _pid_space() -> str:
    """Name the boot and the space in which process ids mean something: containers of one host do not share the latter."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return when the process started, in the kernel's ticks: a process id that is used again has another one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
