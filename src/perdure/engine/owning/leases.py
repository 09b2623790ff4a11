"""Staying alive in the eyes of other engines, and telling which of them are not.

The heartbeat runs in a thread with a connection of its own, so that a busy loop does not lose the lease, but it renews only
while the loop still turns, so that a wedged one cannot keep it for ever.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from perdure.clock import Clock
from perdure.engine.settings import EngineSettings
from perdure.ids import EngineId
from perdure.store.base import Store
from perdure.store.shapes import EngineRow

log = logging.getLogger("perdure.leases")

FRESH_FRACTION = 2 / 3
"""Without a renewal for this part of the lease nothing is started any more: side effects cannot be fenced."""
STOP_SECONDS = 5.0
"""How long to wait for a heartbeat that is asking the store at this moment."""


def describe_process(engine_id: EngineId, name: str) -> EngineRow:
    """Return what others need to know to tell whether this process is still there."""
    return EngineRow(
        engine_id=engine_id,
        name=name,
        host=_pid_space(),
        pid=os.getpid(),
        process_start=_process_start(os.getpid()) or "",
    )


def is_gone(engine: EngineRow) -> bool:
    """Whether the engine's process is known to have ended: only its own host can tell before the lease does.

    What cannot be told counts as alive: another user's process may be hidden, and a living engine must not be robbed.
    """
    if not engine.host or engine.host != _pid_space():
        return False
    if not _exists(engine.pid):
        return True
    started = _process_start(engine.pid)
    return started is not None and bool(engine.process_start) and started != engine.process_start


async def is_alive(store: Store, engine_id: EngineId | None) -> bool:
    """Whether an engine lives, as far as can be told from here."""
    rows = await store.list_engines() if engine_id is not None else ()
    return any(row.engine_id == engine_id and row.is_alive and not is_gone(row) for row in rows)


class Heartbeat:
    """Renews an engine's lease. On the engine's loop, `on_lost` is called when it was lost, once, and `on_fresh` when it is sure
    again after it was not."""

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
        self._fresh_seconds = settings.lease_seconds * FRESH_FRACTION
        self._renewed = clock.host_seconds()
        self._ticked = clock.monotonic()
        self._was_doubted = False
        """Somebody was told that the lease is not sure, and has not heard since."""
        self._is_lost = False
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._thread_wakes: Callable[[], object] | None = None
        self._thread_ended = asyncio.Event()

    def is_fresh(self) -> bool:
        """Whether the lease was renewed so recently that the engine may start things under it."""
        # By the clock that goes on while the host sleeps, as others' clocks do.
        if self._clock.host_seconds() - self._renewed < self._fresh_seconds and not self._is_lost:
            return True
        self._was_doubted = True
        return False

    def start_thread(self) -> None:
        """Renew from a thread of its own."""
        self._thread = threading.Thread(target=self._run_thread, name="perdure-heartbeat", daemon=True)
        self._thread.start()

    async def tick(self) -> None:
        """Show that the loop turns, for ever. Where there is no thread, renew as well, until the lease is lost."""
        store = None if self._thread is not None else await self._open_store()
        next_beat = self._clock.monotonic() + self._settings.heartbeat_seconds
        # A thread looks whether the loop turns; without one nobody does.
        pause = min(1.0, self._settings.heartbeat_seconds) if store is None else self._settings.heartbeat_seconds / 10
        while True:
            await self._clock.sleep(pause)
            self._ticked = self._clock.monotonic()
            if self._was_doubted and self.is_fresh():
                self._was_doubted = False
                self._on_fresh()
            if store is not None and self._ticked >= next_beat:
                next_beat = self._ticked + self._settings.heartbeat_seconds
                if not await self._renew(store):
                    self._lose()
                    return

    async def stop(self) -> None:
        """Renew no more. Returns when the thread has ended, or hangs in a store that does not answer."""
        self._stopped.set()
        if self._thread is None or not self._thread.is_alive():
            return
        if (wake := self._thread_wakes) is not None:
            with suppress(RuntimeError):  # its loop has closed meanwhile
                wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._thread_ended.wait()
                self._thread.join()

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._beat())
        except Exception:  # whatever it was: without a heartbeat the lease is lost in the end, and somebody must know
            log.exception("heartbeat_ended", extra={"engine_id": self._engine_id})
            self._on_loop(self._lose)
        finally:
            self._on_loop(self._thread_ended.set)

    async def _beat(self) -> None:
        """The thread's own loop. A store that cannot be opened is tried again: meanwhile the lease ages by itself."""
        woken = asyncio.Event()
        self._thread_wakes = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        store: Store | None = None
        try:
            while not await self._is_stopped_within(self._settings.heartbeat_seconds, woken):
                if self._clock.monotonic() - self._ticked > self._settings.loop_stall_seconds:
                    log.error("loop_stalled", extra={"engine_id": self._engine_id})
                    continue
                store = store or await self._opened()
                if store is not None and not await self._renew(store):
                    self._on_loop(self._lose)
                    return
        finally:
            if store is not None:
                await store.close()

    async def _is_stopped_within(self, seconds: float, woken: asyncio.Event) -> bool:
        if not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        return self._stopped.is_set()

    async def _opened(self) -> Store | None:
        try:
            return await self._open_store()
        except Exception as error:  # no connection, no descriptor, no thread: it may be there the next time
            log.warning("heartbeat_cannot_open_store", extra={"error": str(error)})
            return None

    async def _renew(self, store: Store) -> bool:
        """Renew once. A store that does not answer has not said that the lease is lost."""
        began = self._clock.host_seconds()
        try:
            if not await store.renew_engine(self._engine_id, ttl_seconds=self._settings.lease_seconds):
                return False
        except Exception as error:  # as in `_opened`
            log.warning("heartbeat_failed", extra={"error": str(error)})
            return True
        self._renewed = began
        return True

    def _on_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the engine's loop has closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(call)

    def _lose(self) -> None:
        if not self._stopped.is_set() and not self._is_lost:
            self._is_lost = True
            self._on_lost()


def _pid_space() -> str:
    """Name the boot and the space in which process ids mean something: containers of one host do not share the latter."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # there is one, and it is not ours
        return True
    return True


def _process_start(pid: int) -> str | None:
    """Return when the process started, in the kernel's ticks: a process id that is used again has another one.

    None if that is hidden from this process; "" if it has ended and only its parent has not noticed.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
