"""How an engine hears of what happens elsewhere: commands for the runs that it drives, and runs that rest and are to go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.clock import Clock
from perdure.engine.owning.recovery import Recovery
from perdure.engine.recording.hub import Hub
from perdure.engine.settings import EngineSettings
from perdure.errors import StoreError
from perdure.ids import EngineId, RunId
from perdure.store.base import Store
from perdure.store.shapes import COMMANDS_PER_RUN, Command

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

log = logging.getLogger("perdure.engine")

LOOK_LATER_SECONDS = 0.05
"""How long to gather runs that rest until somebody looks whether anything has come for one of them meanwhile."""


class Listening:
    """Four loops: one hears news, one what is left of them, one looks at the time, one has runs taken up when there is reason."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: EngineSettings,
        hub: Hub,
        recovery: Recovery,
        drivers: Mapping[RunId, Driver],
        *,
        engine_id: Callable[[], EngineId],
        may_wake: Callable[[], bool],
    ) -> None:
        """`may_wake` says whether runs that rest are any concern of this engine."""
        self._store = store
        self._clock = clock
        self._poll_seconds = settings.poll_seconds
        self._hub = hub
        self._recovery = recovery
        self._drivers = drivers
        self._engine_id = engine_id
        self._may_wake = may_wake
        self._is_to_sweep = asyncio.Event()
        self._is_for_all = False
        self._is_to_look = asyncio.Event()
        self._is_more_said = asyncio.Event()
        self._looks_later: asyncio.TimerHandle | None = None

    def take_up_soon(self) -> None:
        """Somebody here has asked for a run."""
        self._is_to_sweep.set()

    def _sweep_soon(self) -> None:
        """There may be a run to take up for which nobody here has asked."""
        self._is_for_all = True
        self._is_to_sweep.set()

    def look_soon(self, *, is_timed: bool) -> None:
        """There is a run that rests. Look at once when it is due if it rests until some time; else something that was said to it
        may have come too late for who has driven it, and that is looked for together with what was said to others."""
        if is_timed:
            self._is_to_look.set()
        elif self._looks_later is None:
            self._looks_later = asyncio.get_running_loop().call_later(LOOK_LATER_SECONDS, self._look_now)

    def _look_now(self) -> None:
        self._looks_later = None
        self._is_to_look.set()

    async def hear_news(self) -> None:
        """Take up commands: as soon as news arrive, and now and then in any case."""
        while True:
            try:
                await self._store.wait_for_news(self._poll_seconds)
                self._is_to_look.set()
                if self._drivers:
                    await self.take_commands()
                for run_id in self._hub.watched():
                    self._hub.changed(run_id)
            except StoreError as error:
                log.warning("listening_failed", extra={"error": str(error)})
                await self._clock.sleep(self._poll_seconds)

    async def take_commands(self) -> None:
        """Give drivers here what was said to their runs."""
        before = dict(self._drivers)
        of_runs: dict[RunId, list[Command]] = {}
        for command in await self._store.pending_commands(self._engine_id()):
            of_runs.setdefault(command.run_id, []).append(command)
        for run_id, commands in of_runs.items():
            driver = self._drivers.get(run_id)
            if driver is None:
                continue
            if driver is before.get(run_id):
                self.give(driver, commands)
            else:  # it may have been made since: what was untaken when this was read, its run may know already
                self._is_more_said.set()

    def give(self, driver: Driver, commands: Sequence[Command]) -> None:
        """Give a driver what was said to its run. If that may not be all, the rest follows when it has taken up this."""
        for command in commands:
            driver.command(command)
        if len(commands) >= COMMANDS_PER_RUN:
            self.give_more(driver)

    def give_more(self, driver: Driver) -> None:
        """Look for more that was said to a run, when what its driver was given is taken up."""
        driver.when_taken(self._is_more_said.set)

    async def hear_more(self) -> None:
        """Take up commands of runs to which more was said than is read at once."""
        while True:
            await self._is_more_said.wait()
            self._is_more_said.clear()
            try:
                await self.take_commands()
            except StoreError as error:
                log.warning("listening_failed", extra={"error": str(error)})

    async def wake_in_time(self) -> None:
        """Look for runs that rest and for which something has come: when there are news, when time itself has come, and now and
        then in any case."""
        while True:
            self._is_to_look.clear()
            try:
                seconds = await self._until_next_waking()
            except StoreError as error:
                log.warning("waking_failed", extra={"error": str(error)})
                seconds = self._poll_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_to_look.wait()

    async def _until_next_waking(self) -> float:
        """Have runs taken up that rest and for which something has come; return how long until there may be more."""
        if not self._may_wake():
            return self._poll_seconds
        now = self._clock.now_micros()
        wakings = await self._store.find_woken(now=now, limit=1)
        if wakings.runs:
            self._sweep_soon()
        if wakings.next_at is None:
            return self._poll_seconds
        # Also beside runs that may be for others to take.
        return min(self._poll_seconds, max(0.001, (wakings.next_at - now) / 1_000_000))

    async def sweep_on_demand(self) -> None:
        """Have runs taken up when there is reason to."""
        while True:
            await self._is_to_sweep.wait()
            self._is_to_sweep.clear()
            is_for_all, self._is_for_all = self._is_for_all, False
            try:
                await (self._recovery.sweep() if is_for_all else self._recovery.take_up_asked())
            except StoreError as error:
                log.warning("recovery_failed", extra={"error": str(error)})
