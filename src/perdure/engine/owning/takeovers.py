"""How an engine takes over runs that nobody drives: those that others have left, and those that rest and are to go on.

What is read of a run is only a hint. The claim itself is the run's first transition under its next epoch, and whether that was
written decides. Until then others may take the run, also others in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from perdure.engine.attempts.probing import ask_probes, nodes_to_probe
from perdure.engine.attempts.resolution import Resolution
from perdure.engine.driving.catalogue import Catalogue, Prepared
from perdure.engine.driving.checkpointing import SavedSoFar, saved_so_far
from perdure.engine.driving.driver import Driver, NotOurs
from perdure.engine.driving.reopening import Reopening, load_reopenings
from perdure.engine.driving.returning import Returning, load_returnings
from perdure.engine.driving.switching import Switcher, wanted_switch
from perdure.engine.owning.adoption import (
    answered_in_time,
    in_order,
    is_due,
    is_lost,
    is_only_named,
    is_woken,
    needs_no_code,
    owner_row,
    take_up,
)
from perdure.engine.owning.doctoring import Doctor
from perdure.engine.owning.holding import Holding
from perdure.engine.owning.leases import is_gone
from perdure.engine.owning.listening import Listening
from perdure.engine.owning.probation import Probation
from perdure.engine.recording.driven import driven_so_far
from perdure.engine.recording.machinery import Machinery
from perdure.errors import JournalDamaged, RunNotFound, TypesMissing
from perdure.ids import CommandId, EngineId, RunId
from perdure.journal.states import MOVING
from perdure.journal.suspicion import is_suspect
from perdure.store.base import Store
from perdure.store.shapes import ItemRange, StoredRun
from perdure.store.transitions import Claim

log = logging.getLogger("perdure.engine")


class _Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is read for a run before it is taken up, beside what is stored of every run."""

    returnings: Mapping[CommandId, Returning | None]
    reopenings: Mapping[CommandId, Reopening | None]
    ranges: Sequence[ItemRange]
    spent_seconds: float
    saved: SavedSoFar | None


class Takeovers:
    """Takes runs over for one engine."""

    def __init__(
        self,
        store: Store,
        machinery: Machinery,
        holding: Holding,
        catalogue: Catalogue,
        doctor: Doctor,
        switcher: Switcher,
        listening: Listening,
        *,
        engine_id: Callable[[], EngineId],
        require_running: Callable[[], None],
        until_joined: Callable[[], Awaitable[None]],
        drive: Callable[[Driver], None],
    ) -> None:
        """`require_running` asks whether the engine takes work, `until_joined` waits until it may claim runs, and `drive` keeps
        one in motion: all three raise EngineStopped."""
        self._store = store
        self._machinery = machinery
        self._clock = machinery.clock
        self._holding = holding
        self._catalogue = catalogue
        self._doctor = doctor
        self._switcher = switcher
        self._listening = listening
        self._engine_id = engine_id
        self._require_running = require_running
        self._until_joined = until_joined
        self._drive = drive
        self._asking: dict[RunId, asyncio.Task[None]] = {}
        self.group: asyncio.TaskGroup | None = None
        """Where the tasks belong in which probes are asked."""

    async def take_over(
        self,
        run_id: RunId,
        dead_owner: EngineId | None = None,
        *,
        probation: Probation | None = None,
        answers: Sequence[Resolution] | None = None,
    ) -> Driver | None:
        """See `Engine.adopt`. `answers` are what probes have said."""
        self._require_running()
        if run_id in self._holding.drivers:
            return self._holding.drivers[run_id]
        stored = await self._find(run_id)
        if stored is None:
            return None
        if (switched := await self._switched(stored)) is not None:
            return await self.take_over(run_id, probation=probation) if switched else None
        if is_due(stored.run, self._clock.now_micros()):
            stored = await answered_in_time(stored, self._store, at=self._clock.now_micros())
        problem = self._holding.left_alone(stored)
        if problem is not None and not needs_no_code(stored, self._clock.now_micros()):
            raise problem
        if stored.owner is not None:
            if (disowned := await self._disowned(stored, stored.owner, dead_owner)) is None:
                return None
            stored, dead_owner = disowned
        prepared = await self._prepared(stored)
        if prepared is None:
            return await self.take_over(run_id, probation=probation, answers=answers)
        return await self._take_up(stored, prepared, dead_owner, probation, answers)

    def is_asking(self, run_id: RunId) -> bool:
        """Whether the probes of a run are being asked."""
        return run_id in self._asking

    def stop(self) -> None:
        """Ask no more probes."""
        for asking in self._asking.values():
            asking.cancel()

    # Whether

    async def _find(self, run_id: RunId) -> StoredRun | None:
        """Return a run that is to move, repaired if something is wrong with it and nobody owns it; None if it rests."""
        stored = await self._store.load_run(run_id)
        if stored is None:
            self._holding.no_longer_ours(run_id)
            raise RunNotFound(run_id)
        if stored.owner is None:
            stored = await self._mended(stored)
        self._holding.seen_owned_by(run_id, stored.owner)
        if self._rests(stored):
            if not self._holding.wanted.is_asked(run_id):  # by whom it was told something after it was read
                self._holding.no_longer_ours(run_id)
            return None
        return stored

    def _rests(self, stored: StoredRun) -> bool:
        return stored.run.status not in MOVING and not is_woken(stored, self._clock.now_micros())

    async def _mended(self, stored: StoredRun) -> StoredRun:
        """Return a run that is about to be taken up, repaired if something is wrong with it. Raises RunDamaged if it cannot
        be."""
        is_audited = stored.run.audit is not None  # its tables count, and there is nothing to compare them with
        if is_audited or not is_suspect(stored.run, stored.nodes, stored.waits, stored.tail):
            return stored
        await self._until_joined()
        await self._doctor.require_healthy(stored.run.run_id)
        return await self._store.load_run(stored.run.run_id) or stored

    async def _switched(self, stored: StoredRun) -> bool | None:
        """Have a run follow another version, if somebody wishes it: see `Switcher.switched`."""
        if wanted_switch(stored) is None:
            return None
        await self._until_joined()
        switched = await self._switcher.switched(stored)
        if switched:
            self._holding.try_again(stored.run.run_id)
            self._machinery.hub.changed(stored.run.run_id)
        return switched

    async def _disowned(
        self, stored: StoredRun, owner: EngineId, dead_owner: EngineId | None
    ) -> tuple[StoredRun, EngineId | None] | None:
        """Return a run that nobody living owns, with its owner if that one is known to be dead; None if the owner lives, or if
        the run rests after it was repaired."""
        if dead_owner is None:
            row = await owner_row(self._store, owner)
            if owner == self._engine_id() or (row is not None and is_gone(row)):
                dead_owner = owner
            elif row is not None and row.is_alive:
                return None
        stored = await self._mended(stored)
        if self._rests(stored):
            return None
        return stored, None if stored.owner is None else dead_owner

    async def _prepared(self, stored: StoredRun) -> Prepared | None:
        """Return what a run follows; None if it had to be repaired first. Raises TypesMissing if bodies of it are to run and
        cannot."""
        run = stored.run
        try:
            prepared = await self._catalogue.load(run.run_id, run.workflow, run.version)
        except JournalDamaged:
            if not await self._doctor.require_healthy(run.run_id):
                raise
            return None
        if prepared.missing and not needs_no_code(stored, self._clock.now_micros()):
            raise TypesMissing(run.run_id, prepared.missing.types, workflows=prepared.missing.workflows)
        return prepared

    # How

    async def _take_up(
        self,
        stored: StoredRun,
        prepared: Prepared,
        dead_owner: EngineId | None,
        probation: Probation | None,
        answers: Sequence[Resolution] | None,
    ) -> Driver | None:
        run_id, limit = stored.run.run_id, stored.run.settings.max_recoveries
        losses = stored.run.recoveries + is_lost(stored)
        if probation is not None and not probation.admits(run_id, losses, limit):
            return None
        returnings = await load_returnings(self._store, stored, prepared.plan)
        if answers is None and not returnings and self._is_in_doubt(stored, prepared):
            if probation is not None:
                self._ask_apart(stored, prepared, dead_owner, probation)
                return None
            answers = await self._ask_probes(stored, prepared)
        needs = await self._needs(stored, prepared, returnings)
        if needs is None:
            return None
        await self._until_joined()
        if run_id in self._holding.drivers:  # somebody else here was faster
            return self._holding.drivers[run_id]
        if probation is not None and not probation.admits(run_id, losses, limit):
            return None  # others were taken up meanwhile
        driver = self._driver(stored, prepared, needs, dead_owner, answers or ())
        if probation is not None:
            probation.begin(driver, driver.projection.run.recoveries, limit)
        self._drive(driver)
        self._listening.give(driver, in_order(stored, lacks_types=bool(prepared.missing)))
        if self._holding.wanted.is_asked(run_id):  # by whom it was told something after it was read
            self._listening.give_more(driver)
        return driver if probation is not None or await _is_claimed(driver) else None

    async def _needs(
        self, stored: StoredRun, prepared: Prepared, returnings: Mapping[CommandId, Returning | None]
    ) -> _Needs | None:
        """Read what else is needed of a run; None if somebody has written more of it since it was read."""
        run = stored.run
        reopenings = await load_reopenings(self._store, self._machinery.values, stored, prepared.plan)
        spent = 0.0 if run.settings.timeout_seconds is None else await driven_so_far(self._store, run)
        saved = await saved_so_far(self._store, run)
        ranges: Sequence[ItemRange] = ()
        if any(node.stream for node in stored.nodes):
            ranges = await self._store.load_ranges(run.run_id)
            state = await self._store.load_state(run.run_id)
            if state is None or state.last_seq != run.last_seq:
                return None
        return _Needs(returnings=returnings, reopenings=reopenings, ranges=ranges, spent_seconds=spent, saved=saved)

    def _driver(
        self,
        stored: StoredRun,
        prepared: Prepared,
        needs: _Needs,
        dead_owner: EngineId | None,
        answers: Sequence[Resolution],
    ) -> Driver:
        driver = take_up(
            stored,
            prepared,
            self._machinery,
            Claim(engine_id=self._engine_id(), dead=dead_owner),
            answers,
            on_gone=self._holding.forget,
            at=self._clock.now_micros(),
            ranges=needs.ranges,
            returnings=needs.returnings,
            reopenings=needs.reopenings,
        )
        driver.spent_seconds = needs.spent_seconds
        if driver.periodic is not None and needs.saved is not None:
            driver.periodic.take_up(needs.saved)
        return driver

    # Attempts in doubt

    def _is_in_doubt(self, stored: StoredRun, prepared: Prepared) -> bool:
        """Whether there are probes to be asked before the run goes on."""
        goes_on = not is_only_named(stored, self._clock.now_micros())
        return goes_on and bool(nodes_to_probe(stored, prepared.plan))

    async def _ask_probes(self, stored: StoredRun, prepared: Prepared) -> Sequence[Resolution]:
        doubtful = nodes_to_probe(stored, prepared.plan)
        return await ask_probes(doubtful, stored, prepared.plan, prepared.types, self._machinery.values)

    def _ask_apart(
        self, stored: StoredRun, prepared: Prepared, dead_owner: EngineId | None, probation: Probation
    ) -> None:
        """Ask the probes of a run, and then take it up. Other runs do not wait for that."""
        run_id = stored.run.run_id
        if run_id in self._asking or self.group is None:
            return

        async def ask() -> None:
            try:
                answers = await self._ask_probes(stored, prepared)
                await self.take_over(run_id, dead_owner, probation=probation, answers=answers)
            except Exception as error:  # the next sweep finds the run again, and whatever is wrong with it
                log.info("run_left_alone", extra={"run_id": run_id, "reason": str(error)})
            finally:
                self._asking.pop(run_id, None)

        self._asking[run_id] = self.group.create_task(ask(), name=f"perdure probe {run_id}")


async def _is_claimed(driver: Driver) -> bool:
    try:
        await driver.until_claimed()
    except NotOurs:
        return False
    return True
