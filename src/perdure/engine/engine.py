"""The engine: owns a store, a dispatch and the runs whose leases it holds, and keeps them moving."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, get_args

from perdure.clock import Clock, SystemClock
from perdure.dispatch.base import Dispatch
from perdure.dispatch.opening import open_dispatch
from perdure.engine.attempts.loglines import LogKeeper
from perdure.engine.attempts.secrets import environment_secret
from perdure.engine.attempts.slots import Slots
from perdure.engine.attempts.values import Values
from perdure.engine.attempts.warmth import Warmth
from perdure.engine.driving.catalogue import Catalogue, Prepared
from perdure.engine.driving.driver import Driver, NotOurs
from perdure.engine.driving.switching import Switcher
from perdure.engine.garbage import collect_early
from perdure.engine.keeping.files import Keeping
from perdure.engine.keeping.retention import Retention
from perdure.engine.owning.background import end_bodies, kept_up
from perdure.engine.owning.doctoring import Diagnosis, Doctor
from perdure.engine.owning.holding import Holding
from perdure.engine.owning.listening import Listening
from perdure.engine.owning.membership import Membership
from perdure.engine.owning.probation import Probation
from perdure.engine.owning.recovery import Recovery
from perdure.engine.owning.takeovers import Takeovers
from perdure.engine.recording.committer import Committer
from perdure.engine.recording.hub import Hub
from perdure.engine.recording.machinery import Machinery
from perdure.engine.recording.trail import Trail
from perdure.engine.runs.run import Run
from perdure.engine.runs.starts import Starting
from perdure.engine.runs.telling import Telling, chosen_statuses
from perdure.engine.settings import EngineSettings
from perdure.engine.starting.versions import Versions
from perdure.errors import (
    EngineStopped,
    RunNotReadable,
)
from perdure.graph.declare import Workflow, declared_workflows
from perdure.graph.model import Graph
from perdure.ids import DEFAULT_PROJECT, Chance, EngineId, RunId, SystemChance
from perdure.journal import events as e
from perdure.journal.states import MOVING, WAITING, RunState
from perdure.store.base import Store
from perdure.store.blobs import open_blobs
from perdure.store.codecs import Codecs, process_codecs
from perdure.store.opening import DEFAULT_URL, default_blobs_url, open_store
from perdure.store.shapes import RunFilter, RunSummary
from perdure.store.transitions import LeaseLost

log = logging.getLogger("perdure.engine")

RUNS_PER_PAGE = 200


class Engine(Keeping, Retention, Starting, Telling, Versions):
    """Starts runs, drives them, and takes over those that others have left behind.

        async with Engine("sqlite:///perdure.db") as engine:
            run = await engine.start(digest, url="…", run_id="digest-1")
            print(await run.result())

    Leaving the block drains: running bodies get a grace period, leases are let go, nothing is lost.
    """

    def __init__(
        self,
        store: str | Store = DEFAULT_URL,
        *,
        workflows: Iterable[Workflow[..., Any]] | None = None,
        blobs: str | None = None,
        codecs: Codecs | None = None,
        settings: EngineSettings | None = None,
        dispatch: Dispatch | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        name: str = "",
        project: str = DEFAULT_PROJECT,
        recover: bool = True,
        journal: e.Journal = "log",
    ) -> None:
        """`recover=False` leaves runs alone that were not asked for through this engine.

        With `journal="audit"`, runs that are started here are recorded in their tables alone, and keep to that wherever they go
        on. Their events are written on the side: one that cannot be written is lost, and what needs a whole log is refused.
        """
        if journal not in get_args(e.Journal):
            raise ValueError(f"journal={journal!r} is none: it is 'log' or 'audit'")
        self._journal: e.Journal = journal
        self._given_store = store
        self._blobs_url = blobs
        self._workflows = None if workflows is None else list(workflows)
        self._settings = settings or EngineSettings()
        self._given_dispatch = dispatch
        self._name = name
        self._project = project
        self._recovers = recover
        self._codecs = codecs or process_codecs()
        self._holding = Holding(engine_id=lambda: self._membership.engine_id, on_rest=self._rested)
        self._doctor: Doctor
        self._opened_by: int | None = None
        """The process that opened the engine, which is the only one that can use it."""
        self._is_open = False
        """Whether all of it is at work."""
        self._is_stopping = False
        """Whether it takes nothing more."""
        self._is_ending = False
        """Whether somebody waits for its end."""
        self._end = asyncio.Event()
        """Set when whoever stops the engine is done."""
        self._stops_at = 0.0
        """When the grace period of whoever stops the engine is over, by the clock's `monotonic`."""
        self._is_closed = False
        self._stack = AsyncExitStack()
        self.clock = clock or SystemClock()
        self.chance = chance or SystemChance()
        self.hub = Hub()
        self._store: Store
        self._values: Values

    @property
    def engine_id(self) -> EngineId:
        """The name under which the engine owns runs: another one after it has lost its lease."""
        self._require_open()
        return self._membership.engine_id

    @property
    def store(self) -> Store:
        """Where the runs are kept. Raises EngineStopped unless the engine is open."""
        self._require_open()
        return self._store

    @property
    def values(self) -> Values:
        """How values are kept. Raises EngineStopped unless the engine is open."""
        self._require_open()
        return self._values

    async def __aenter__(self) -> Engine:
        if self._opened_by is not None:
            raise EngineStopped(
                "This engine has been opened before, and an engine can be opened once. Make another one."
            )
        self._opened_by = os.getpid()
        try:
            await self._open()
        except BaseException:
            self._is_closed = True
            await self._stack.aclose()
            raise
        self._is_open = True
        if self._is_stopping:  # somebody has called `drain` meanwhile
            self._membership.prepare_to_leave()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    # Runs

    async def get(self, run_id: str) -> Run[Any]:
        """Return the run with this id, whoever drives it."""
        stored = await Run[Any](self, RunId(run_id)).state()
        declared = declared_workflows().get(stored.workflow)
        return Run(self, stored.run_id, Any if declared is None else declared.output_type)

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        id_prefix: str | None = None,
        tag: str | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> Sequence[RunSummary]:
        """Return runs, newest first. Raises ValueError for a status that does not exist."""
        which = RunFilter(status=chosen_statuses(status), workflow=workflow, id_prefix=id_prefix, tag=tag)
        return await self.store.list_runs(which, before=before, limit=limit)

    async def adopt(
        self,
        run_id: str,
        dead_owner: EngineId | None = None,
        *,
        probation: Probation | None = None,
    ) -> Driver | None:
        """Take a run over if nobody living owns it; None if there is nothing to drive or another was first.

        With a `probation`, as recovery has one, None also if the run has to wait because it may be one that kills engines, or
        because probes are asked first; and nobody waits for the claim, which may fail later: a run whose row somebody else
        holds would hold up all others.
        """
        self._require_open()
        return await self._takeovers.take_over(RunId(run_id), dead_owner, probation=probation)

    async def prepared(self, run: RunState) -> Prepared:
        """Return what a run follows, its graph and plan, whatever has become of its node types."""
        return await self._catalogue.read(run.run_id, run.workflow, run.version)

    async def graph_of(self, run: RunState) -> Graph:
        """Return the graph that a run follows."""
        return await self._catalogue.graph(run.run_id, run.workflow, run.version)

    async def deliver(
        self,
        run_id: str,
        node: str,
        data: Any,
        *,
        id: str,  # noqa: A002 -- as people say it
        cursor: str | int | None = None,
    ) -> bool:
        """Give something to a trigger of a run that is an inbox: see `Run.deliver`."""
        return await Run[Any](self, RunId(run_id)).deliver(node, data, id=id, cursor=cursor)

    async def doctor(self, run_id: str | None = None, *, fix: bool = False) -> Sequence[Diagnosis]:
        """Compare what is recorded of runs with what their logs say, and return what is wrong with each: of one run, or of all
        that have something wrong. With `fix`, have them go on on branches that agree with their logs.

        Nothing is taken from a log, no node that is recorded as done runs again, and asking twice repairs once.
        """
        if run_id is not None:
            return [await self._diagnose(RunId(run_id), fix=fix)]
        found: list[Diagnosis] = []
        before: tuple[int, str] | None = None
        while page := await self.store.list_runs(RunFilter(), before=before, limit=RUNS_PER_PAGE):
            before = (page[-1].created_at, page[-1].run_id)
            for run in page:
                diagnosis = await self._diagnose(run.run_id, fix=fix)
                if diagnosis.findings:
                    found.append(diagnosis)
        return found

    async def _diagnose(self, run_id: RunId, *, fix: bool) -> Diagnosis:
        self._require_running()
        if not fix:
            return await self._doctor.examine(run_id)
        await self._until_joined()
        diagnosis = await self._doctor.heal(run_id)
        if diagnosis.repair is not None:
            self.hub.changed(run_id)
            if self._recovers:
                await self.commanded(run_id)
        return diagnosis

    async def write_trail(self, seconds: float) -> None:
        """Have the events written that wait on the side, as far as that can be done within some time."""
        await self._trail.flush(seconds)

    async def not_readable(self, run_id: RunId) -> RunNotReadable | None:
        """Return why this engine leaves a run to others that nobody drives and that should move, if it does."""
        if not self._holding.is_left_alone(run_id):
            return None
        stored = await self.store.load_run(run_id)
        return None if stored is None or stored.owner is not None else self._holding.left_alone(stored)

    def _handle(self, run_id: RunId, output_type: Any = Any) -> Run[Any]:
        return Run(self, run_id, output_type)

    def driver_of(self, run_id: RunId) -> Driver | None:
        """Return what drives the run, if this engine does."""
        return self._holding.drivers.get(run_id)

    async def commanded(self, run_id: RunId) -> None:
        """A command for this run is in the store, or somebody here waits for it: see to it that somebody takes it up."""
        before = self._holding.drivers.get(run_id)
        was_claimed = before is not None and before.is_claimed
        if before is not None:
            await self._listening.take_commands()
        driver = self._holding.drivers.get(run_id)
        if driver is None:  # or it was let go before it could hear of the command
            self._holding.wanted.ask(run_id)
            self._listening.take_up_soon()
        elif driver is not before or not was_claimed:
            # What is said to a run is found by its owner, which this engine may not have been.
            self._holding.wanted.ask(run_id)
            self._listening.give_more(driver)

    async def fed(self, run_id: RunId) -> None:
        """An item for this run is in the store. Those who drive the run take it up; otherwise it wakes the run, unless that was
        told to rest, or this engine could not drive it."""
        if run_id in self._holding.drivers:
            await self.commanded(run_id)
            return
        run = await self.store.load_state(run_id)  # after the item is there: whoever lets it go on sees that
        if run is None or run.status not in (*MOVING, *WAITING):
            return
        if self._catalogue.knows_types_of(await self.graph_of(run)):
            await self.commanded(run_id)

    async def news(self, changed: asyncio.Event) -> None:
        """Wait until `changed` is set here, or until something may have changed elsewhere. Raises EngineStopped."""
        self._require_running()
        async with asyncio.TaskGroup() as group:
            elsewhere = group.create_task(self._news_elsewhere(changed))
            await changed.wait()
            elsewhere.cancel()

    # Stopping

    def drain(self, grace_seconds: float | None = None) -> None:
        """Take nothing more, and tell all runs that running bodies have the grace period to end: `stop` waits for that.

        What bodies raise from here on is taken for a consequence of whatever ends the program, so a handler of signals that calls
        it should do so at once, on the loop (`add_signal_handler`).
        """
        if self._is_stopping or self._is_closed or self._opened_by != os.getpid():
            return  # it is not open, or another process's
        self._is_stopping = True
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        self._stops_at = self.clock.monotonic() + grace
        if self._is_open:
            self._tell_of_stopping(grace)

    def _tell_of_stopping(self, grace: float) -> None:
        self._membership.prepare_to_leave()  # whoever waits for the lease is told that the engine stops
        for run_id in self.hub.watched():
            self.hub.changed(run_id)
        for driver in list(self._holding.drivers.values()):
            driver.guarded(functools.partial(driver.drain, grace))

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Take nothing more, let running bodies end within the grace period, let go of every run, and close.

        Bodies that do not end when they are told to are left behind. A grace period that began with `drain` goes on. Whoever
        stops an engine that somebody else is stopping waits for the same end.
        """
        if self._is_closed or self._opened_by != os.getpid():
            return
        if self._is_ending:
            await self._end.wait()
            return
        self._is_ending = True
        try:
            self.drain(grace_seconds)
            await self._until_let_go()
        finally:  # whoever loses patience gets a quick end, not half of one
            try:
                await self._close()
            finally:
                self._end.set()

    async def _until_let_go(self) -> None:
        drivers = list(self._holding.drivers.values())
        if drivers:
            async with asyncio.TaskGroup() as group:
                resting = group.create_task(asyncio.wait([driver.rested for driver in drivers]))
                # A run is let go by a commit: there is nothing to wait for if a bug has ended whoever commits.
                await asyncio.wait((resting, self._committing), return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()

    async def _close(self) -> None:
        self._holding.abandon_all(
            lambda run_id: EngineStopped(f"The engine has stopped before it could let go of run {run_id!r}.")
        )
        for task in self._background:
            task.cancel()
        self._takeovers.stop()
        try:
            await self._membership.leave()  # first, so that others need not wait for bodies that do not end
            await end_bodies(self._holding.tasks)
            await self._logs.flush()
            await self._trail.close(self._stops_at - self.clock.monotonic())
        finally:
            self._is_closed = True
            await self._stack.aclose()

    # Inside

    async def _open(self) -> None:
        url = self._given_store if isinstance(self._given_store, str) else self._given_store.url
        if isinstance(self._given_store, str):
            self._store = await open_store(url, project_id=self._project, clock=self.clock)
            self._stack.push_async_callback(self._store.close)
        else:
            self._store = self._given_store
        blobs = open_blobs(self._blobs_url or default_blobs_url(url), clock=self.clock)
        self._stack.push_async_callback(blobs.close)
        self._stack.callback(self._close_files)
        self._values = Values(
            self._codecs,
            blobs,
            inline_max_bytes=self._settings.inline_max_bytes,
            patience_seconds=self._settings.patience_seconds,
        )
        self._catalogue = Catalogue(self._store, self._codecs, self._workflows)
        self._logs = LogKeeper(self.hub.log_lines, self._store, self.clock)
        self._trail = Trail(self._store, self.clock, on_written=self.hub.changed)
        self._membership = Membership(
            self._store,
            self.clock,
            self.chance,
            self._settings,
            name=self._name,
            project_id=self._project,
            on_lost=self._lost_lease,
            on_fresh=self._resume_starting,
        )
        self._machinery = self._build_machinery()
        self._doctor = Doctor(
            self._store,
            self._catalogue.types,
            self.clock,
            self._machinery.committer,
            self.chance,
            engine_id=lambda: self._membership.engine_id,
            drives=lambda run_id: run_id in self._holding.drivers,
        )
        self._switcher = Switcher(
            self._catalogue,
            self.clock,
            self._machinery.committer,
            self.chance,
            engine_id=lambda: self._membership.engine_id,
        )
        self._listening = Listening(
            self._store,
            self.clock,
            self._settings,
            self.hub,
            self._recovery,
            self._holding.drivers,
            engine_id=lambda: self._membership.engine_id,
            may_wake=self._may_take_up,
        )
        self._takeovers = Takeovers(
            self._store,
            self._machinery,
            self._holding,
            self._catalogue,
            self._doctor,
            self._switcher,
            self._listening,
            engine_id=lambda: self._membership.engine_id,
            require_running=self._require_running,
            until_joined=self._until_joined,
            drive=self._drive,
        )
        asyncio.get_running_loop().call_soon(collect_early)  # while the database is at work
        await self._membership.join()
        self._stack.push_async_callback(self._membership.leave)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._takeovers.group = self._tasks
        self._committing = self._tasks.create_task(self._machinery.committer.run(), name="perdure committer")
        self._background = [
            self._committing,
            *(
                self._tasks.create_task(kept_up(name, work, self.clock), name=f"perdure {name}")
                for name, work in (
                    *(() if self._settings.archive_after_days is None else (("archive", self._archive_in_time),)),
                    *(() if self._settings.compact_longer_than is None else (("compact", self._compact_in_time),)),
                    ("commands", self._listening.hear_news),
                    ("more commands", self._listening.hear_more),
                    ("heartbeat", self._membership.keep),
                    ("logs", self._logs.run),
                    ("recovery", self._recovery.run),
                    ("sweep", self._listening.sweep_on_demand),
                    ("trail", self._trail.run),
                    ("waking", self._listening.wake_in_time),
                )
            ),
        ]

    def _build_machinery(self) -> Machinery:
        settings = self._settings
        dispatch = self._given_dispatch or open_dispatch(threads=settings.threads, processes=settings.processes)
        self._stack.push_async_callback(dispatch.close)
        self._probation = Probation(self.clock, trial_seconds=settings.trial_seconds)
        self._recovery = Recovery(
            self._store,
            self.clock,
            self.chance,
            settings,
            adopt=self._adopt_if_wanted,
            orphans=self._holding.orphans,
            wanted=self._holding.wanted,
            probation=self._probation,
            room=self._room,
        )
        warmth = Warmth()
        slots = Slots(
            {
                "loop": settings.loop_bodies,
                "thread": settings.threads,
                "process": settings.processes,
                "free": sys.maxsize,
            },
            on_shortage=warmth.make_room,
        )
        return Machinery(
            store=self._store,
            committer=Committer(
                self._store,
                self.clock,
                patience_seconds=settings.patience_seconds,
                on_audited=self._trail.add,
            ),
            slots=slots,
            warmth=warmth,
            dispatch=dispatch,
            clock=self.clock,
            values=self._values,
            hub=self.hub,
            chance=self.chance,
            start_run=self._start_by_name,
            secrets=environment_secret,
            may_start=self._membership.is_fresh,
            hibernate_after=settings.hibernate_after,
            is_crowded=lambda: len(self._holding.drivers) > settings.warm_runs or slots.are_waited_for,
        )

    def _room(self) -> int:
        """How many runs may be taken up from a listing."""
        return self._settings.max_recovered_runs - len(self._holding.drivers) if self._may_take_up() else 0

    def _may_take_up(self) -> bool:
        """Whether any run that others have left is to be driven here. One who takes only what was asked for needs none if
        nothing was."""
        return not self._is_stopping and (
            self._recovers or self._holding.wanted.has_undriven or self._watches_undriven()
        )

    def _watches_undriven(self) -> bool:
        return any(run_id not in self._holding.drivers for run_id in self.hub.watched())

    def _lost_lease(self) -> None:
        """Others take this engine for dead: drop every run at once and write nothing."""
        log.error("lease_lost", extra={"engine_id": self._membership.engine_id, "runs": len(self._holding.drivers)})
        self._holding.abandon_all(lambda _: NotOurs(LeaseLost()))

    def _resume_starting(self) -> None:
        """The lease is sure again: what was held back may start."""
        self._machinery.slots.offer()
        for driver in list(self._holding.drivers.values()):
            driver.happened()

    def _drive(self, driver: Driver) -> None:
        self._require_running()
        if self._committing.done():  # a bug of ours has ended it, and the engine with it
            raise EngineStopped("The engine is going down and takes no more work. Start another one.")
        self._holding.drive(driver)

    def _rested(self, driver: Driver, is_asked: bool) -> None:
        """A run was let go: what was said to it too late is looked for, and it is taken up again if somebody has asked for it."""
        self._listening.look_soon(is_timed=driver.projection.run.wake_at is not None)
        if is_asked:
            self._listening.take_up_soon()

    async def _adopt_if_wanted(self, run_id: RunId, dead_owner: EngineId | None) -> None:
        owned_as = self._holding.owned_as(run_id)
        is_ours = self._recovers or run_id in self._holding.wanted or owned_as is not None
        is_ours = is_ours or self.hub.is_watched(run_id)  # also one that rests: somebody here waits for it
        if not is_ours:
            return
        if self._takeovers.is_asking(run_id):
            self._holding.wanted.ask(run_id)  # what was read of it may be older than what it was told
            return
        await self.adopt(run_id, owned_as or dead_owner, probation=self._probation)

    async def _news_elsewhere(self, changed: asyncio.Event) -> None:
        """Other processes' changes are heard by `Listening`; this only bounds the wait."""
        await self.clock.sleep(self._settings.poll_seconds)
        changed.set()

    async def _until_joined(self) -> None:
        """Wait while the lease is lost: nothing is claimed under a name that others take for dead."""
        await self._membership.until_joined()
        self._require_running()

    def _require_running(self) -> None:
        self._require_open()
        if self._is_stopping:
            raise EngineStopped("The engine is stopping and takes no more work. Start another one.")

    def _require_open(self) -> None:
        if self._opened_by is None:
            raise EngineStopped("This engine is not open. Use it in a block: `async with Engine(…) as engine:`.")
        if self._opened_by != os.getpid():
            raise EngineStopped(
                "This engine was opened by another process, of which this one is a fork: connections and leases do not "
                "follow. Open another engine here."
            )
        if self._is_closed:
            raise EngineStopped("This engine has stopped. Open another one: `async with Engine(…) as engine:`.")
