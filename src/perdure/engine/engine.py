"""The engine: owns a store, a dispatch and the runs whose leases it holds, and keeps them moving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.dispatch.base import Dispatch
from perdure.dispatch.opening import open_dispatch
from perdure.engine.catalogue import Catalogue, Prepared
from perdure.engine.committer import Committer
from perdure.engine.driver import Driver, NotOurs
from perdure.engine.hub import Hub
from perdure.engine.inputs import check_inputs
from perdure.engine.leases import Heartbeat, describe_process, is_gone
from perdure.engine.machinery import Machinery
from perdure.engine.probation import Probation
from perdure.engine.recovery import Recovery
from perdure.engine.run import Run
from perdure.engine.secrets import environment_secret
from perdure.engine.settings import EngineSettings
from perdure.engine.slots import Slots
from perdure.engine.values import Values
from perdure.errors import EngineStopped, PerdureError, RunIdTaken, RunNotFound, StoreError, TypesMissing
from perdure.graph.declare import RunSettings as WorkflowSettings
from perdure.graph.declare import Workflow, declared_workflows
from perdure.graph.model import Graph
from perdure.ids import DEFAULT_PROJECT, ROOT_BRANCH, Chance, EngineId, Epoch, RunId, Seq, SystemChance
from perdure.journal import events as e
from perdure.journal.evolve import create_run
from perdure.journal.projection import Projection
from perdure.journal.states import MOVING, RunState, RunStatus
from perdure.store.base import Claim, LeaseLost, RunExists, RunFilter, RunSummary, Store
from perdure.store.blobs import open_blobs
from perdure.store.codecs import Codecs, canonical, process_codecs
from perdure.store.opening import DEFAULT_URL, default_blobs_url, open_store

log = logging.getLogger("perdure.engine")

R = TypeVar("R")

LOG_FLUSH_SECONDS = 0.25
STUBBORN_SECONDS = 5
"""How long a stopping engine goes on telling bodies to stop that did not when they were told."""
FIRST_EPOCH = Epoch(1)


class Engine:
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
    ) -> None:
        """`recover=False` leaves runs alone that were not asked for through this engine."""
        self._given_store = store
        self._blobs_url = blobs
        self._workflows = None if workflows is None else list(workflows)
        self._settings = settings or EngineSettings()
        self._given_dispatch = dispatch
        self._name = name
        self._project = project
        self._recovers = recover
        self._codecs = codecs or process_codecs()
        self._drivers: dict[RunId, Driver] = {}
        self._driving: set[asyncio.Task[None]] = set()
        """The tasks of drivers, also of those that have let go of their run and wait for a body to end."""
        self._wanted: set[RunId] = set()
        self._orphans: dict[RunId, EngineId] = {}
        """Runs that were dropped because the store failed, with the name under which they are owned."""
        self._is_stopping = False
        self._stack = AsyncExitStack()
        self.clock = clock or SystemClock()
        self.chance = chance or SystemChance()
        self.engine_id = EngineId(self.chance.new_id())
        self.hub = Hub()
        self.store: Store
        self.values: Values

    async def __aenter__(self) -> Engine:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    # Runs

    async def start(
        self,
        workflow: Workflow[..., R] | Graph,
        /,
        *,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        durability: e.Durability | None = None,
        on_failure: e.OnFailure | None = None,
        timeout: float | timedelta | None = None,
        **more_inputs: Any,
    ) -> Run[R]:
        """Start a run, durably, and return it.

        Idempotent by `run_id`: the same workflow with the same inputs gives the run that is there, anything else raises
        RunIdTaken. Inputs whose names are taken by options go into `inputs`.
        """
        self._require_running()
        now = self.clock.now_micros()
        graph = workflow if isinstance(workflow, Graph) else workflow.graph
        annotations: Mapping[str, Any] = {} if isinstance(workflow, Graph) else workflow.input_types
        given = check_inputs(graph, annotations, {**(inputs or {}), **more_inputs})
        prepared = await self._catalogue.save(workflow, at=now)
        encoded, blobs = await self.values.pack_all(given, where=f"inputs of workflow {prepared.graph.name!r}")
        preset = WorkflowSettings() if isinstance(workflow, Graph) else workflow.settings
        settings = run_settings(
            durability=durability or preset.durability,
            on_failure=on_failure or preset.on_failure,
            timeout=preset.timeout if timeout is None else timeout,
        )
        created = e.RunCreated(
            workflow=prepared.version.workflow,
            version=prepared.version.version,
            graph_hash=prepared.version.graph_hash,
            inputs=encoded,
            settings=settings,
            project_id=self._project,
            source=prepared.source,
        )
        chosen = RunId(run_id or self.chance.new_id())
        annotation = Any if isinstance(workflow, Graph) else workflow.output_type
        run: Run[R] = Run(self, chosen, annotation)
        while True:
            await self._until_joined()
            driver = self._drivers.get(chosen)
            is_there = driver is not None
            if driver is None:
                driver = self._create(chosen, created, prepared, at=now)
                driver.use_blobs(blobs)
            try:
                # Also of a driver that is there: what it holds counts, and may be acknowledged, once it is durable.
                await asyncio.shield(driver.claimed)
            except NotOurs as refusal:
                if not isinstance(refusal.outcome, RunExists):
                    continue  # whether it was created shows when it is tried again
                is_there = True
            if is_there:
                await self._require_same(run, created)
                await self.commanded(chosen)
            return run

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
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> Sequence[RunSummary]:
        """Return runs, newest first."""
        statuses = () if status is None else (status,) if isinstance(status, str) else tuple(status)
        which = RunFilter(status=tuple(RunStatus(given) for given in statuses), workflow=workflow, id_prefix=id_prefix)
        return await self.store.list_runs(which, before=before, limit=limit)

    async def adopt(
        self, run_id: str, dead_owner: EngineId | None = None, *, probation: Probation | None = None
    ) -> Driver | None:
        """Take a run over if nobody living owns it; None if there is nothing to drive or another was first.

        With a `probation`, None also if the run has to wait because it may be one that kills engines.
        """
        self._require_running()
        chosen = RunId(run_id)
        if chosen in self._drivers:
            return self._drivers[chosen]
        stored = await self.store.load_run(chosen)
        if stored is None:
            raise RunNotFound(run_id)
        run = stored.run
        if run.status not in MOVING and not stored.commands:
            return None
        if stored.owner is not None and dead_owner is None:
            owner = next((row for row in await self.store.list_engines() if row.engine_id == stored.owner), None)
            if owner is not None and is_gone(owner):
                dead_owner = owner.engine_id
            elif owner is not None and owner.is_alive:
                return None
        prepared = await self._catalogue.load(chosen, run.workflow, run.version)
        is_ending = run.status in (RunStatus.CANCELLING, RunStatus.FAILING)
        if prepared.missing and not is_ending and all(command.kind != "cancel" for command in stored.commands):
            raise TypesMissing(run_id, prepared.missing)
        await self._until_joined()
        if chosen in self._drivers:  # somebody else here was faster
            return self._drivers[chosen]
        lost = stored.owner is not None and run.status in MOVING
        if probation is not None and not probation.admits(chosen, run.recoveries + lost):
            return None
        steps = {(step.node_id, step.name, step.occurrence): step.result for step in stored.steps}
        driver = Driver(
            projection=Projection(run, stored.nodes, steps),
            plan=prepared.plan,
            types=prepared.types,
            machinery=self._machinery,
            base_seq=run.last_seq,
            claim=Claim(engine_id=self.engine_id, dead=dead_owner),
            seen_epoch=run.epoch,
            on_gone=self._forget,
        )
        at = self.clock.now_micros()
        driver.decider.claim(self.engine_id, Epoch(run.epoch + 1), previous=stored.owner, lost=lost, at=at)
        if driver.projection.run.status is RunStatus.CREATED:
            driver.decider.start(at=at)
        if probation is not None:
            probation.begin(driver, driver.projection.run.recoveries)
        self._drive(driver)
        for command in stored.commands:
            driver.command(command)
        try:
            await asyncio.shield(driver.claimed)
        except NotOurs:
            return None
        return driver

    def driver_of(self, run_id: RunId) -> Driver | None:
        """Return what drives the run, if this engine does."""
        return self._drivers.get(run_id)

    async def commanded(self, run_id: RunId) -> None:
        """A command for this run is in the store, or it was started elsewhere: see to it that somebody takes it up."""
        self._wanted.add(run_id)
        if run_id in self._drivers:
            await self._take_commands()
        else:
            self._sweep_now.set()

    async def news(self, changed: asyncio.Event) -> None:
        """Wait until `changed` is set here, or until something may have changed elsewhere. Raises EngineStopped."""
        self._require_running()
        async with asyncio.TaskGroup() as group:
            elsewhere = group.create_task(self._news_elsewhere(changed))
            await changed.wait()
            elsewhere.cancel()

    # Stopping

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Take nothing more, let running bodies end within the grace period, let go of every run, and close."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._joined.set()  # whoever waits for it is told that the engine stops
        for run_id in self.hub.watched():
            self.hub.changed(run_id)
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        try:
            await self._drain(grace)
        finally:  # whoever loses patience gets a quick end, not half of one
            await self._close()

    async def _drain(self, grace_seconds: float) -> None:
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.drain(grace_seconds)
        if drivers:
            await asyncio.wait([driver.rested for driver in drivers])

    async def _close(self) -> None:
        for driver in list(self._drivers.values()):
            driver.abandon(EngineStopped(f"The engine has stopped before it could let go of run {driver.run_id!r}."))
        for task in self._background:
            task.cancel()
        try:
            await self._end_bodies()
            await self._flush_logs()
        finally:
            await self._stack.aclose()

    async def _end_bodies(self) -> None:
        """Wait for bodies that were told to stop, and tell them again: some swallow the first cancellation."""
        for _ in range(STUBBORN_SECONDS):
            stubborn = [task for task in self._driving if not task.done()]
            if not stubborn:
                return
            await asyncio.wait(stubborn, timeout=1.0)
            for task in stubborn:
                task.cancel()
        log.error("bodies_do_not_stop", extra={"engine_id": self.engine_id})

    # Inside

    async def _open(self) -> None:
        url = self._given_store if isinstance(self._given_store, str) else self._given_store.url
        if isinstance(self._given_store, str):
            self.store = await open_store(url, project_id=self._project, clock=self.clock)
            self._stack.push_async_callback(self.store.close)
        else:
            self.store = self._given_store
        blobs = open_blobs(self._blobs_url or default_blobs_url(url), clock=self.clock)
        self._stack.push_async_callback(blobs.close)
        self.values = Values(self._codecs, blobs, inline_max_bytes=self._settings.inline_max_bytes)
        self._catalogue = Catalogue(self.store, self._codecs, self._workflows)
        self._sweep_now = asyncio.Event()
        self._joined = asyncio.Event()
        self._machinery = self._build_machinery()
        await self._join()
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._background = [
            self._tasks.create_task(work, name=f"perdure {name}")
            for name, work in (
                ("committer", self._machinery.committer.run()),
                ("commands", self._listen()),
                ("heartbeat", self._heartbeat.tick()),
                ("logs", self._keep_logs()),
                ("recovery", self._recovery.run()),
                ("sweep", self._sweep_on_demand()),
            )
        ]

    def _build_machinery(self) -> Machinery:
        settings = self._settings
        dispatch = self._given_dispatch or open_dispatch(threads=settings.threads, processes=settings.processes)
        self._stack.push_async_callback(dispatch.close)
        self._probation = Probation(self.clock, trial_seconds=settings.trial_seconds)
        self._recovery = Recovery(
            self.store,
            self.clock,
            self.chance,
            settings,
            adopt=self._adopt_if_wanted,
            orphans=lambda: tuple(self._orphans.items()),
            probation=self._probation,
            room=lambda: 0 if self._is_stopping else settings.max_recovered_runs - len(self._drivers),
        )
        return Machinery(
            committer=Committer(self.store, self.clock, patience_seconds=settings.patience_seconds),
            slots=Slots({"loop": settings.loop_bodies, "thread": settings.threads, "process": settings.processes}),
            dispatch=dispatch,
            clock=self.clock,
            values=self.values,
            hub=self.hub,
            chance=self.chance,
            secrets=environment_secret,
            may_start=lambda: self._heartbeat.is_fresh(),
        )

    async def _join(self) -> None:
        """Register as an engine and keep the lease from here on."""
        row = describe_process(self.engine_id, self._name)
        await self.store.register_engine(row, ttl_seconds=self._settings.lease_seconds)
        self._stack.push_async_callback(self._leave)
        self._heartbeat = Heartbeat(
            self.engine_id, self._heartbeat_store, self._settings, self.clock, self._lost_lease, self._resume_starting
        )
        if self._settings.heartbeat_in_thread:
            self._heartbeat.start_thread()
        self._joined.set()

    async def _leave(self) -> None:
        await self._heartbeat.stop()
        try:
            await self.store.retire_engine(self.engine_id)
        except StoreError as error:
            log.warning("retire_failed", extra={"error": str(error)})

    async def _heartbeat_store(self) -> Store:
        if not self._settings.heartbeat_in_thread:
            return self.store
        return await open_store(self.store.url, project_id=self._project, clock=self.clock)

    def _lost_lease(self) -> None:
        """Others take this engine for dead: drop every run at once, write nothing, and come back under another name."""
        log.error("lease_lost", extra={"engine_id": self.engine_id, "runs": len(self._drivers)})
        self._joined.clear()
        self._wanted.update(self._drivers)
        for driver in list(self._drivers.values()):
            driver.abandon(NotOurs(LeaseLost()))
        if not self._is_stopping:
            self._background.append(self._tasks.create_task(self._rejoin(), name="perdure rejoin"))

    def _resume_starting(self) -> None:
        """The lease is sure again: what was held back may start."""
        for driver in list(self._drivers.values()):
            driver.happened()

    async def _rejoin(self) -> None:
        await self._heartbeat.stop()
        self.engine_id = EngineId(self.chance.new_id())
        while True:
            try:
                await self._join()
            except StoreError as error:
                log.warning("rejoin_failed", extra={"error": str(error)})
                await self.clock.sleep(self._settings.heartbeat_seconds)
            else:
                break
        self._background.append(self._tasks.create_task(self._heartbeat.tick(), name="perdure heartbeat"))

    def _create(self, run_id: RunId, created: e.RunCreated, prepared: Prepared, *, at: int) -> Driver:
        """Set up a run of our own: created, claimed and started in one transition."""
        run = create_run(run_id, created, at=at, branch_id=ROOT_BRANCH, epoch=Epoch(0))
        driver = Driver(
            projection=Projection(run),
            plan=prepared.plan,
            types=prepared.types,
            machinery=self._machinery,
            base_seq=Seq(0),
            claim=Claim(engine_id=self.engine_id),
            seen_epoch=Epoch(0),
            on_gone=self._forget,
            created=(created, at),
        )
        driver.decider.claim(self.engine_id, FIRST_EPOCH, previous=None, lost=False, at=at)
        driver.decider.start(at=at)
        self._drive(driver)
        return driver

    def _drive(self, driver: Driver) -> None:
        self._require_running()
        work = driver.run()
        try:
            driving = self._tasks.create_task(work, name=f"run {driver.run_id}")
        except RuntimeError:  # a bug of ours has ended one of the engine's tasks, and the group with it
            work.close()
            raise EngineStopped("The engine is going down and takes no more work. Start another one.") from None
        self._drivers[driver.run_id] = driver
        self._driving.add(driving)
        driving.add_done_callback(self._driving.discard)

    def _forget(self, driver: Driver) -> None:
        if self._drivers.get(driver.run_id) is driver:
            del self._drivers[driver.run_id]
            if driver.is_orphaned:
                self._orphans[driver.run_id] = self.engine_id

    async def _adopt_if_wanted(self, run_id: RunId, dead_owner: EngineId | None) -> None:
        if run_id in self._orphans:
            dead_owner = self._orphans[run_id]
        elif not self._recovers and run_id not in self._wanted:
            return
        try:
            await self.adopt(run_id, dead_owner, probation=self._probation)
        except StoreError:
            raise
        except PerdureError:
            self._orphans.pop(run_id, None)
            raise
        if not self._probation.holds_up(run_id):
            self._orphans.pop(run_id, None)

    async def _require_same(self, run: Run[Any], created: e.RunCreated) -> None:
        """A run with this id is there: it must have been started in the same way."""
        there = (await run.load()).run
        if differing := list(_differences(there, created)):
            raise RunIdTaken(run.run_id, differing)

    async def _listen(self) -> None:
        """Take up commands: as soon as news arrive, and now and then in any case."""
        while True:
            try:
                await self.store.wait_for_news(self._settings.poll_seconds)
                if self._drivers:
                    await self._take_commands()
                for run_id in self.hub.watched():
                    self.hub.changed(run_id)
            except StoreError as error:
                log.warning("listening_failed", extra={"error": str(error)})
                await self.clock.sleep(self._settings.poll_seconds)

    async def _take_commands(self) -> None:
        for command in await self.store.pending_commands(self.engine_id):
            driver = self._drivers.get(command.run_id)
            if driver is not None:
                driver.command(command)

    async def _sweep_on_demand(self) -> None:
        while True:
            await self._sweep_now.wait()
            self._sweep_now.clear()
            try:
                await self._recovery.sweep()
            except StoreError as error:
                log.warning("recovery_failed", extra={"error": str(error)})

    async def _news_elsewhere(self, changed: asyncio.Event) -> None:
        """Other processes' changes reach listeners through `_listen`; this only bounds the wait."""
        await self.clock.sleep(self._settings.poll_seconds)
        changed.set()

    async def _keep_logs(self) -> None:
        while True:
            await self.clock.sleep(LOG_FLUSH_SECONDS)
            await self._flush_logs()

    async def _flush_logs(self) -> None:
        lines = self.hub.log_lines
        if not lines:
            return
        batch = [lines.popleft() for _ in range(len(lines))]
        try:
            await self.store.append_logs(batch)
        except PerdureError as error:
            log.warning("log_lines_lost", extra={"count": len(batch), "error": str(error)})

    async def _until_joined(self) -> None:
        """Wait while the lease is lost: nothing is claimed under a name that others take for dead."""
        await self._joined.wait()
        self._require_running()

    def _require_running(self) -> None:
        if self._is_stopping:
            raise EngineStopped("The engine is stopping and takes no more work. Start another one.")


def run_settings(
    *, durability: e.Durability | None, on_failure: e.OnFailure | None, timeout: float | timedelta | None
) -> e.RunSettings:
    """Return the settings of a run. Raises ValueError for one that does not exist."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    chosen = {"durability": durability, "on_failure": on_failure, "timeout_seconds": seconds}
    try:
        return msgspec.convert({key: value for key, value in chosen.items() if value is not None}, e.RunSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"a setting of the run is wrong: {error}") from None


def _differences(there: RunState, created: e.RunCreated) -> Iterable[str]:
    if there.workflow != created.workflow:
        yield "workflow"
    elif there.graph_hash != created.graph_hash:
        yield f"version {there.version} of the workflow"
    for name in sorted(there.inputs.keys() | created.inputs.keys()):
        one, other = there.inputs.get(name), created.inputs.get(name)
        if one is None or other is None or canonical(one) != canonical(other):
            yield f"input {name!r}"
