"""What an engine offers to start runs: under their names, and each of them once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.engine.attempts.values import Decode, Values
from perdure.engine.driving.catalogue import Catalogue, Prepared
from perdure.engine.driving.driver import Driver, NotOurs
from perdure.engine.owning.holding import Holding
from perdure.engine.recording.machinery import Machinery
from perdure.engine.runs.run import Run
from perdure.engine.runs.tags import checked_tags
from perdure.engine.starting.beginning import (
    begin,
    checked_run_id,
    chosen_run_id,
    creation,
    differences,
    differences_from_unsaved,
    run_settings,
)
from perdure.engine.starting.choosing import choose
from perdure.engine.starting.inputs import check_inputs
from perdure.errors import LogNotWhole, RunArchived, RunError, RunIdTaken, ValuesDeleted
from perdure.graph.declare import Workflow
from perdure.graph.model import Graph
from perdure.graph.writing import content_hash
from perdure.ids import Chance, EngineId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.forking import Taken
from perdure.journal.states import RunState
from perdure.store.base import Store
from perdure.store.transitions import BlobUse, Claim, RunExists

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
    """What a run results in. Of a graph, or of what is named, nobody can say."""
else:
    from typing import TypeVar

    R = TypeVar("R")


class Starting(ABC):
    """The part of an engine that has to do with runs that begin."""

    clock: Clock
    chance: Chance
    _journal: e.Journal
    _project: str
    _catalogue: Catalogue
    _holding: Holding
    _machinery: Machinery

    @property
    @abstractmethod
    def engine_id(self) -> EngineId: ...

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @property
    @abstractmethod
    def values(self) -> Values: ...

    @abstractmethod
    def _handle(self, run_id: RunId, output_type: Any = Any) -> Run[Any]: ...

    @abstractmethod
    def _require_running(self) -> None: ...

    @abstractmethod
    async def _until_joined(self) -> None: ...

    @abstractmethod
    def _drive(self, driver: Driver) -> None: ...

    @abstractmethod
    async def commanded(self, run_id: RunId) -> None: ...

    async def start(
        self,
        workflow: Workflow[..., R] | Graph | str,
        /,
        *,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        durability: e.Durability | None = None,
        on_failure: e.OnFailure | None = None,
        timeout: float | timedelta | None = None,
        checkpoint_every: float | timedelta | None = None,
        tags: Iterable[str] = (),
        **more_inputs: Any,
    ) -> Run[R]:
        """Start a run, durably, and return it.

        `workflow` is one, or a graph, which is saved if it was not before; or one that was saved, by its name and a version or an
        alias: `"digest@3"`, `"digest@stable"`, `"digest"` for `"digest@latest"`.

        Idempotent by `run_id`: the same workflow with the same inputs gives the run that is there, anything else raises
        RunIdTaken. By an alias it is the run that is there, also if the alias was moved. Inputs whose names are taken by options
        go into `inputs`. The run has its `tags` when this returns. Raises LogNotWhole for `checkpoint_every` if the engine has
        `journal="audit"`, and ValueError for a `run_id` that none can have: of more than 512 characters, with control characters,
        or with `-` at its beginning.
        """
        wanted_tags = checked_tags(tags)
        self._require_running()
        if not isinstance(workflow, Workflow | Graph | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{workflow!r} is no workflow: call it inside a @workflow function, and start that one")
        return await self._start(
            workflow,
            RunId(self.chance.new_id()) if run_id is None else await self._chosen(run_id),
            {**(inputs or {}), **more_inputs},
            may_exist=run_id is not None,
            durability=durability,
            on_failure=on_failure,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
            tags=wanted_tags,
        )

    async def _chosen(self, run_id: str) -> RunId:
        """Return the id that somebody has chosen. A run that is there keeps its own, though none could be called so today."""
        try:
            return chosen_run_id(run_id)
        except ValueError:
            checked = checked_run_id(run_id)
            if await self.store.where_is(checked) is None:
                raise
            return checked

    async def _start(
        self,
        workflow: Workflow[..., R] | Graph | str,
        chosen: RunId,
        inputs: Mapping[str, Any],
        *,
        may_exist: bool = True,
        durability: e.Durability | None = None,
        on_failure: e.OnFailure | None = None,
        timeout: float | timedelta | None = None,
        checkpoint_every: float | timedelta | None = None,
        tags: Sequence[str] = (),
    ) -> Run[R]:
        """As `start`, under an id that was made of others too."""
        now = self.clock.now_micros()
        choice = await choose(workflow, chosen, self._catalogue, self.store, may_exist=may_exist)
        given = check_inputs(choice.graph, choice.input_types, inputs)
        settings = run_settings(
            choice.settings,
            durability=durability,
            on_failure=on_failure,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
            journal=self._journal,
        )
        if settings.journal == "audit" and settings.checkpoint_every_seconds is not None:
            raise LogNotWhole(chosen, "no checkpoints of it can be saved by themselves: leave checkpoint_every out")
        where = f"inputs of workflow {choice.graph.name!r}"

        async def refuse_if_taken() -> None:
            if await self.store.where_is(chosen) is not None:
                await self._require_saved(chosen, choice.graph, (await self.values.pack_all(given, where=where))[0])

        # One that is refused saves nothing. Whoever starts the run from here on is noticed when it is to begin.
        unless = refuse_if_taken if may_exist else None
        prepared = choice.prepared or await self._catalogue.save(choice.program, at=now, unless=unless)
        encoded, blobs = await self.values.pack_all(given, where=where)
        created = creation(prepared, given, encoded, settings, project_id=self._project)
        run: Run[R] = self._handle(chosen, choice.output_type)

        async def start_again() -> Run[R]:
            return await self._start(
                workflow,
                chosen,
                inputs,
                durability=durability,
                on_failure=on_failure,
                timeout=timeout,
                checkpoint_every=checkpoint_every,
                tags=tags,
            )

        try:
            is_there = choice.is_there or not await self.begin_run(
                chosen, created, prepared, blobs, at=now, resolved=choice.resolved
            )
        except RunError:
            version = prepared.version
            if await self.store.load_version(version.workflow, version.version) is not None:
                raise
            self._catalogue.forget(version.workflow, version.version)
            return await start_again()  # the version was deleted since it was last used here
        was_overtaken = is_there and not choice.is_there and choice.resolved is not None
        if was_overtaken and (await run.state()).workflow == created.workflow:
            return await start_again()  # somebody was faster, and the alias may have pointed elsewhere then
        if is_there:
            await self.take_as_begun(chosen, created)
        if tags:
            await self.store.tag_run(chosen, tags)
        return run

    async def begin_run(
        self,
        run_id: RunId,
        created: e.RunCreated,
        prepared: Prepared,
        blobs: Sequence[BlobUse],
        *,
        at: int,
        resolved: e.VersionResolved | None = None,
        taken: Taken | None = None,
    ) -> bool:
        """Create a run durably, perhaps with what another one has done, unless there is one with this id. Return whether that was
        done."""
        was_wanted = run_id in self._holding.wanted
        while True:
            await self._until_joined()
            driver = self._holding.drivers.get(run_id)
            is_there = driver is not None
            if driver is None:
                claim = Claim(engine_id=self.engine_id)
                driver = begin(
                    run_id,
                    created,
                    prepared,
                    self._machinery,
                    claim,
                    on_gone=self._holding.forget,
                    at=at,
                    resolved=resolved,
                    taken=taken,
                )
                self._drive(driver)
                driver.use_blobs(blobs)
            try:
                # Also of a driver that is there: what it holds counts, and may be acknowledged, once it is durable.
                await driver.until_claimed()
            except NotOurs as refusal:
                if not isinstance(refusal.outcome, RunExists):
                    continue  # whether it was created shows when it is tried again
                is_there = True
                # Nobody has asked for the run that is there, unless it is the same.
                if not (was_wanted or self._holding.wanted.is_asked(run_id)):
                    self._holding.wanted.discard(run_id)
            return not is_there

    async def take_as_begun(self, run_id: RunId, created: e.RunCreated) -> None:
        """Have a run that is there already stand for one that was to be begun. Raises RunIdTaken if it was begun differently."""
        await self._require_same(self._handle(run_id), created)
        await self.commanded(run_id)

    async def _start_by_name(
        self, run_id: RunId, workflow: str, inputs: Mapping[str, e.Encoded], decode: Decode
    ) -> None:
        """Start a run for a node of another one, unless that was done before: perhaps by a process in which the workflow had
        another version, or other defaults. What has become of that run since, archived or deleted, makes no difference."""
        known = self._catalogue.workflow(workflow)
        assert known is not None, "a run whose workflows are not here is left to others"
        given = {name: decode(value, known.input_types.get(name, Any)) for name, value in inputs.items()}
        try:
            await self._start(known, run_id, given)
        except RunArchived:
            archived = await self.store.load_archive(run_id)
            if archived is not None and archived.workflow != workflow:
                raise
        except ValuesDeleted:
            return
        except RunIdTaken as taken:
            there = await self._handle(run_id).state()
            is_other = any(f"input {name!r}" in taken.differing for name in given)
            if there.workflow != workflow or is_other:
                raise

    async def _require_saved(self, run_id: RunId, graph: Graph, inputs: Mapping[str, e.Encoded]) -> None:
        """A run with this id is there: it was not started of a graph that was never saved."""
        there = await self._handle(run_id).state()
        graph_hash = content_hash(graph)
        if there.graph_hash == graph_hash:
            return
        if any(saved.graph_hash == graph_hash for saved in await self.store.list_versions(graph.name)):
            return
        raise RunIdTaken(
            run_id, [what async for what in differences_from_unsaved(there, graph.name, inputs, self.values)]
        )

    async def _require_same(self, run: Run[Any], created: e.RunCreated) -> None:
        """A run with this id is there: it must have been started in the same way."""
        there = await self._as_begun(await run.state(), created)
        differing = [what async for what in differences(there, created, self.values)]
        if created.forked_from is not None and await run.forked_from() != created.forked_from:
            differing.append("the run or the place from which it was forked")
        # Whether the inputs of one whose values were deleted are the same cannot be told any more.
        if differing and there.workflow == created.workflow and await self.store.load_deletion(run.run_id) is not None:
            raise ValuesDeleted(run.run_id)
        if differing:
            raise RunIdTaken(run.run_id, differing)

    async def _as_begun(self, there: RunState, created: e.RunCreated) -> RunState:
        """Return a run with the version from which it was started, if that is the one in question: it may follow another now."""
        if there.graph_hash == created.graph_hash or there.audit is not None:
            return there
        for entry in await self.store.load_events(there.run_id, after=Seq(0), limit=1):
            if isinstance(entry.event, e.RunCreated) and entry.event.graph_hash == created.graph_hash:
                return replace(there, version=entry.event.version, graph_hash=created.graph_hash)
        return there
