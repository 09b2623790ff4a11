"""How whoever drives a run saves checkpoints of it: those that somebody asks for, and those that are saved by themselves.

A wish for a checkpoint is a command whose id is made of the name, so that the store itself lets a name be asked for once. A run
that rests is taken up to record it, and rests on.

Without `checkpoint_every` nothing of this is there while a run is driven: no timer, and nothing to look at.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from perdure.ids import CommandId, RunId, Seq
from perdure.journal.events import RunClaimed
from perdure.journal.states import TERMINAL, WAITING, RunState, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import Command

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

CHECKPOINT = "checkpoint"
PAGE = 100


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of the command."""

    name: str
    asked_as: str
    """Tells who repeats a wish from somebody who has another one under the same name."""


def naming_command(run_id: RunId, naming: Naming, *, at: int) -> Command:
    """Return the command that asks for a checkpoint: the only one of this name."""
    return Command(
        command_id=CommandId(f"{CHECKPOINT}/{naming.name}"),
        run_id=run_id,
        kind=CHECKPOINT,
        payload=msgspec.to_builtins(naming),
        created_at=at,
    )


def obey_checkpoint(command: Command, driver: Driver, *, at: int) -> bool:
    """Give the place where the run is the name that was asked for. False if the run has ended, or its log may have gaps."""
    if driver.projection.run.status in TERMINAL or driver.projection.run.settings.journal == "audit":
        return False
    naming = msgspec.convert(command.payload, Naming)
    driver.decider.save_checkpoint(naming.name, asked_as=naming.asked_as, at=at)
    return True


class SavedSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of checkpoints when a run is taken up."""

    periodic: int
    """How many were saved by themselves."""
    last_at: int | None
    """When the last one was saved, in microseconds since 1970."""
    saved_seq: Seq
    """Up to where nothing is in the log that the last one does not hold, apart from engines having taken the run up."""


async def saved_so_far(store: Store, run: RunState) -> SavedSoFar | None:
    """Return what there is of checkpoints of a run, as it was loaded; None if none are saved by themselves."""
    if run.settings.checkpoint_every_seconds is None:
        return None
    last = await store.last_checkpoint(run.run_id)
    if last is None:
        return SavedSoFar(periodic=0, last_at=None, saved_seq=Seq(0))
    periodic = await store.last_checkpoint(run.run_id, periodic=True)
    seq = await _unchanged_until(store, run.run_id, last.event_seq)
    return SavedSoFar(
        periodic=0 if periodic is None else periodic.periodic,
        last_at=last.saved_at,
        saved_seq=Seq(seq + (seq == run.last_seq)),  # the next event is the claim of whoever takes it up
    )


async def _unchanged_until(store: Store, run_id: RunId, seq: Seq) -> Seq:
    """Return the last event after `seq` up to which nothing has happened but that engines took the run up."""
    while page := await store.load_events(run_id, after=seq, limit=PAGE):
        for entry in page:
            if not isinstance(entry.event, RunClaimed):
                return seq
            seq = entry.seq
    return seq


class Periodic:
    """Saves checkpoints of one run while it is driven: at most so often, and when it comes to rest. Only if something has been
    recorded since the last one."""

    def __init__(self, driver: Driver, every_seconds: float) -> None:
        self._driver = driver
        self._every_seconds = every_seconds
        self._last_at: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take_up(self, saved: SavedSoFar) -> None:
        """Go on where the last driver of the run has left off."""
        self._driver.decider.periodic = saved.periodic
        self._driver.decider.saved_seq = saved.saved_seq
        self._last_at = saved.last_at

    def begin(self) -> None:
        """Count the time from here, and from the last checkpoint if that is known."""
        since = self._last_at if self._last_at is not None else self._driver.projection.run.started_at
        now = self._driver.machinery.clock.now_micros()
        spent_seconds = 0.0 if since is None else (now - since) / 1_000_000
        # The clock of whoever saved it may be hours ahead of this one.
        self._set(min(max(self._every_seconds - spent_seconds, 0.0), self._every_seconds))

    def close(self) -> None:
        """Forget the time: the run is let go."""
        if self._timer is not None:
            self._timer.cancel()

    def save_rest(self) -> None:
        """Save where a run comes to rest that waits or was paused."""
        status = self._driver.projection.run.status
        if status is RunStatus.PAUSED or status in WAITING:
            self._driver.decider.save_periodic(at=self._driver.machinery.clock.now_micros())

    def _set(self, seconds: float) -> None:
        self._timer = self._driver.later(seconds, self._time_came)

    def _time_came(self) -> None:
        driver = self._driver
        is_running = driver.projection.run.status is RunStatus.RUNNING
        if is_running and driver.decider.save_periodic(at=driver.machinery.clock.now_micros()):
            driver.when_durable(lambda: self._set(self._every_seconds))
            driver.happened()
        else:
            self._set(self._every_seconds)


def periodic_for(driver: Driver) -> Periodic | None:
    """Return what saves checkpoints of a run by itself, if that was asked for."""
    every_seconds = driver.projection.run.settings.checkpoint_every_seconds
    return None if every_seconds is None else Periodic(driver, every_seconds)
