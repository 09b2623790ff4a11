"""The runs that an engine holds: those it drives, those it has dropped and may still own, and those it leaves to others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from perdure.engine.driving.driver import Driver
from perdure.engine.owning.background import BODIES_OF
from perdure.engine.owning.wanted import Wanted
from perdure.errors import PerdureError, RunNotReadable
from perdure.ids import EngineId, NodeId, RunId
from perdure.journal.states import SETTLED
from perdure.store.shapes import StoredRun

log = logging.getLogger("perdure.engine")


class Holding:
    """Knows of each run what it is to this engine."""

    def __init__(self, *, engine_id: Callable[[], EngineId], on_rest: Callable[[Driver, bool], None]) -> None:
        """`on_rest` is told when a run was let go, and whether somebody here has asked for it since."""
        self._engine_id = engine_id
        self._on_rest = on_rest
        self.drivers: dict[RunId, Driver] = {}
        self.wanted = Wanted(self.drivers)
        self._orphans: dict[RunId, EngineId] = {}
        """Runs that were dropped although they may be this engine's, with the name under which they are owned."""
        self._not_readable: dict[RunId, tuple[frozenset[NodeId], RunNotReadable]] = {}
        """Runs that should move, with nodes whose values this process cannot read: they are left to others, until those have
        got past these nodes."""
        self._driving: set[asyncio.Task[None]] = set()
        """The tasks of drivers, also of those that have let go of their run and wait for a body to end. They belong to no task
        group: a body that does not end must not keep the engine from ending."""

    # Those it drives

    def drive(self, driver: Driver) -> None:
        """Keep a run in motion until it is let go."""
        self.wanted.add(driver.run_id)
        self.drivers[driver.run_id] = driver
        driving = asyncio.get_running_loop().create_task(driver.run(), name=f"{BODIES_OF}{driver.run_id}")
        self._driving.add(driving)
        driving.add_done_callback(self._driven)

    def _driven(self, driving: asyncio.Task[None]) -> None:
        self._driving.discard(driving)
        if not driving.cancelled() and (bug := driving.exception()) is not None:
            log.error("driver_died", extra={"task": driving.get_name(), "error": repr(bug)})

    def forget(self, driver: Driver) -> None:
        """Take note that a driver has let go of its run."""
        run_id = driver.run_id
        if self.drivers.get(run_id) is not driver:
            return
        del self.drivers[run_id]
        if driver.is_orphaned:
            self._orphans[run_id] = self._engine_id()
        elif driver.has_rested or driver.not_readable is not None:
            is_asked = driver.hearing.has_untaken or self.wanted.is_asked(run_id)
            self.no_longer_ours(run_id)
            if driver.not_readable is not None:
                log.warning("run_not_readable", extra={"run_id": run_id, "problems": driver.not_readable.problems})
                self._not_readable[run_id] = (driver.unreadable_nodes, driver.not_readable)
            if is_asked:
                self.wanted.ask(run_id)
            self._on_rest(driver, is_asked)
        elif self.wanted.is_asked(run_id):
            self._on_rest(driver, True)  # it was told something here, which whoever has it may not hear

    def abandon_all(self, problem: Callable[[RunId], PerdureError]) -> None:
        """Drop every run at once and write nothing."""
        for driver in list(self.drivers.values()):
            driver.abandon(problem(driver.run_id))

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """The tasks of drivers that have not ended."""
        return self._driving

    # Those it does not

    def no_longer_ours(self, run_id: RunId) -> None:
        """The run has ended, rests, or is somebody else's."""
        self._orphans.pop(run_id, None)
        self._not_readable.pop(run_id, None)
        self.wanted.discard(run_id)

    def orphans(self) -> Sequence[tuple[RunId, EngineId]]:
        """Return the runs that were dropped and may be this engine's, with the name under which it owns them."""
        return tuple(self._orphans.items())

    def owned_as(self, run_id: RunId) -> EngineId | None:
        """Return under which name this engine may own a run that it has dropped."""
        return self._orphans.get(run_id)

    def seen_owned_by(self, run_id: RunId, owner: EngineId | None) -> None:
        """A run is no orphan of ours if it was not written, or if somebody else has it."""
        if self._orphans.get(run_id) != owner:
            self._orphans.pop(run_id, None)

    def is_left_alone(self, run_id: RunId) -> bool:
        """Whether the run was left to others because it could not be read here."""
        return run_id in self._not_readable

    def left_alone(self, stored: StoredRun) -> RunNotReadable | None:
        """Return why a run is left to others, unless those have got past what could not be read here."""
        run_id = stored.run.run_id
        nodes, problem = self._not_readable.get(run_id, (frozenset[NodeId](), None))
        if problem is None:
            return None
        if nodes <= {node.node_id for node in stored.nodes if node.status in SETTLED}:
            del self._not_readable[run_id]
            return None
        return RunNotReadable(run_id, problem.problems)  # each may be raised by itself

    def try_again(self, run_id: RunId) -> None:
        """Leave a run to others no longer: it follows other code."""
        self._not_readable.pop(run_id, None)
