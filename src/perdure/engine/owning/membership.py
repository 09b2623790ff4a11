"""An engine among the others: its name, its row and its lease. Whoever loses the lease comes back under another name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.clock import Clock
from perdure.engine.owning.leases import Heartbeat, describe_process
from perdure.engine.settings import EngineSettings
from perdure.errors import StoreError
from perdure.ids import Chance, EngineId
from perdure.store.base import Store
from perdure.store.opening import open_store

log = logging.getLogger("perdure.leases")


class Membership:
    """Keeps one engine registered. `keep` belongs in a task of its own; the callbacks are called on the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        settings: EngineSettings,
        *,
        name: str,
        project_id: str,
        on_lost: Callable[[], None],
        on_fresh: Callable[[], None],
    ) -> None:
        """`on_lost` is called when others take the engine for dead, `on_fresh` when its lease is sure again."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._name = name
        self._project = project_id
        self._on_lost = on_lost
        self._on_fresh = on_fresh
        self._is_leaving = False
        self._has_left = False
        self._is_joined = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._joined_at = clock.monotonic()
        self.engine_id = EngineId(chance.new_id())
        self._heartbeat = self._new_heartbeat()

    def is_fresh(self) -> bool:
        """Whether the lease is so sure that something may be started under it."""
        return self._heartbeat.is_fresh()

    async def join(self) -> None:
        """Register, and keep the lease from here on."""
        self._heartbeat = self._new_heartbeat()  # before the row is written: its age counts from here
        row = describe_process(self.engine_id, self._name)
        await self._store.register_engine(row, ttl_seconds=self._settings.lease_seconds)
        if self._settings.heartbeat_in_thread:
            self._heartbeat.start_thread()
        self._joined_at = self._clock.monotonic()
        self._is_lost.clear()
        self._is_joined.set()

    async def keep(self) -> None:
        """Show that the loop turns, and join again whenever the lease was lost, until the engine leaves."""
        while not self._is_leaving:
            if self._is_lost.is_set():
                await self._rejoin()
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._heartbeat.tick(), name="perdure tick")
                await self._is_lost.wait()
                ticking.cancel()

    async def until_joined(self) -> None:
        """Wait while the lease is lost: nothing is claimed under a name that others take for dead."""
        while not self._is_joined.is_set():
            await self._is_joined.wait()

    def prepare_to_leave(self) -> None:
        """Let nobody wait for the lease any more."""
        self._is_leaving = True
        self._is_joined.set()

    async def leave(self) -> None:
        """Give up the lease: whatever the engine still owns is free at once. Does nothing the second time."""
        self.prepare_to_leave()
        await self._heartbeat.stop()
        if self._has_left:
            return
        try:
            await self._store.retire_engine(self.engine_id)
        except StoreError as error:
            log.warning("retire_failed", extra={"error": str(error)})
        self._has_left = True

    def _lost(self) -> None:
        if not self._is_leaving:
            self._is_joined.clear()
        self._is_lost.set()
        self._on_lost()

    async def _rejoin(self) -> None:
        await self._heartbeat.stop()
        # A lease that is lost as soon as it is there must not make engines and takeovers by the hundred.
        rest = self._joined_at + self._settings.heartbeat_seconds - self._clock.monotonic()
        await self._clock.sleep(max(0.0, rest))
        self.engine_id = EngineId(self._chance.new_id())
        while True:
            try:
                await self.join()
            except (StoreError, RuntimeError) as error:  # the latter where no thread can be started
                log.warning("rejoin_failed", extra={"error": str(error)})
                await self._clock.sleep(self._settings.heartbeat_seconds)
            else:
                break
        self._on_fresh()

    def _new_heartbeat(self) -> Heartbeat:
        return Heartbeat(self.engine_id, self._heartbeat_store, self._settings, self._clock, self._lost, self._on_fresh)

    async def _heartbeat_store(self) -> Store:
        if not self._settings.heartbeat_in_thread:
            return self._store
        return await open_store(self._store.url, project_id=self._project, clock=self._clock)
