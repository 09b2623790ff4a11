"""Finding runs that should move and have no living owner, for ever. Start-up is the same loop.

A listing is only a hint: the claim itself is a compare-and-set on the run's epoch, and its row count decides. One run that
cannot be taken up holds up no other.

Runs that were asked for through this engine come first, however many it drives already: somebody waits for them, or has told
them something. What it takes up unasked is limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from perdure.clock import Clock
from perdure.engine.owning.leases import is_gone
from perdure.engine.owning.probation import Probation
from perdure.engine.settings import EngineSettings
from perdure.errors import PerdureError, StoreError
from perdure.ids import Chance, EngineId, RunId
from perdure.store.base import Store

log = logging.getLogger("perdure.recovery")

PRESSED_SECONDS = 0.2
"""How often to look while runs wait for others to prove harmless."""

WAKE_BATCH = 500
"""How many runs that rest are looked for at once, to be woken."""

Adopt = Callable[[RunId, EngineId | None], Awaitable[None]]
"""Take a run over if it is for this engine to take, given its owner if that one is known to be gone."""


class Wanted(Protocol):
    """The runs that were asked for through this engine."""

    def take_asked(self) -> Sequence[RunId]:
        """Return the undriven ones that are to be looked at in this sweep, whatever a listing says."""
        ...

    def ask_again(self, run_ids: Sequence[RunId]) -> None:
        """Look at these in the next sweep: this one has failed."""
        ...


class Recovery:
    """The recovery loop of one engine."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        settings: EngineSettings,
        *,
        adopt: Adopt,
        orphans: Callable[[], Sequence[tuple[RunId, EngineId]]],
        wanted: Wanted,
        room: Callable[[], int],
        probation: Probation,
    ) -> None:
        """`orphans` are runs that this engine owns and has dropped, with the name under which it owns them; `room` is how many
        more it may take up that nobody here has asked for."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._adopt = adopt
        self._orphans = orphans
        self._wanted = wanted
        self._room = room
        self._probation = probation
        self._sweeping = asyncio.Lock()

    async def run(self) -> None:
        """Sweep again and again, at uneven intervals so that engines do not move in step."""
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("recovery_failed", extra={"error": str(error)})
            interval = self._settings.recovery_seconds
            if self._probation.has_refused:
                interval = min(interval, PRESSED_SECONDS)
            await self._clock.sleep(interval * self._chance.uniform(0.5, 1.5))

    async def take_up_asked(self) -> None:
        """Take over what somebody here has asked for, and nothing else."""
        async with self._sweeping:
            await self._take_up_asked()

    async def sweep(self) -> None:
        """Take over what can be taken over now, oldest first, a batch at a time. One sweep follows the other."""
        async with self._sweeping:
            for run_id, owner in self._orphans():
                await self._try(run_id, owner)
            await self._take_up_asked()
            engines = await self._store.list_engines()
            dead = [engine.engine_id for engine in engines if is_gone(engine)]
            await self._wake()
            await self._take_over(dead)
            if gone := [engine.engine_id for engine in engines if not engine.is_alive or engine.engine_id in dead]:
                await self._store.forget_engines(gone)

    async def _take_up_asked(self) -> None:
        asked = list(self._wanted.take_asked())
        try:
            while asked:
                await self._try(asked[-1], None)
                asked.pop()
        finally:
            self._wanted.ask_again(asked)

    async def _wake(self) -> None:
        """Take up runs that rest and whose time has come, or for which something else has. Those that are not for this engine
        to take do not hold up the others."""
        seen: set[RunId] = set()
        while self._room() > 0:
            limit = len(seen) + max(WAKE_BATCH, len(seen))
            wakings = await self._store.find_woken(now=self._clock.now_micros(), limit=limit)
            found = [run_id for run_id in wakings.runs if run_id not in seen]
            for run_id in found:
                if self._room() > 0:
                    await self._try(run_id, None)
            seen.update(found)
            if not found or len(wakings.runs) < limit:
                break

    async def _take_over(self, dead: Sequence[EngineId]) -> None:
        after: tuple[int, str] | None = None
        seen: set[RunId] = set()
        while self._room() > 0:
            limit = min(self._settings.claim_batch, self._room())
            page = await self._store.find_claimable(dead=dead, after=after, limit=limit)
            for found in page:
                seen.add(found.run_id)
                after = (found.created_at, found.run_id)
                if not self._probation.refuses(found.run_id):
                    await self._try(found.run_id, found.owner if found.owner in dead else None)
            if len(page) < limit:
                break
        self._probation.forget_others(seen)

    async def _try(self, run_id: RunId, dead_owner: EngineId | None) -> None:
        try:
            await self._adopt(run_id, dead_owner)
        except StoreError:
            raise
        except PerdureError as error:
            log.info("run_left_alone", extra={"run_id": run_id, "reason": str(error)})
        except Exception:  # a damaged run may make anything fail, and must not keep the others from going on
            log.exception("run_cannot_be_taken_up", extra={"run_id": run_id})
