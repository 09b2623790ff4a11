"""Forks: other runs that take over what a run has done, as its user asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.engine.driving.catalogue import Prepared
from perdure.engine.runs.restores import Restores
from perdure.engine.starting.beginning import chosen_run_id, creation
from perdure.engine.starting.inputs import check_inputs, stream_inputs
from perdure.engine.stored.past import stored_at
from perdure.errors import CannotContinue, RunNotFound, TypesMissing
from perdure.graph.declare import declared_workflows
from perdure.graph.policy import duration, is_duration
from perdure.graph.writing import content_hash
from perdure.ids import RunId, Seq
from perdure.journal.compatible import differing_nodes
from perdure.journal.events import Encoded, Origin, RunCreated, RunSettings
from perdure.journal.forking import Taken, taken_over
from perdure.journal.projection import Projection
from perdure.journal.states import RunState
from perdure.store.shapes import StoredRun
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.runs.run import Run


class Forks(Restores):
    """The side of a run from which others are forked."""

    async def fork(
        self,
        *,
        run_id: str | None = None,
        at: str | int | None = None,
        inputs: Mapping[str, Any] | None = None,
        version: int | None = None,
        timeout: float | timedelta | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Run[Any]:
        """Begin another run, which takes over what this one has done, and return it. This one stays as it is, and may move
        meanwhile.

        Nodes that are completed here do not run there; everything else begins. `at` is a checkpoint or the number of an event:
        what was done later is not taken over. With other `inputs`, by name, neither is what depends on them; with another saved
        `version` of the workflow, neither are nodes that differ there, and what depends on them. It has the settings of this one,
        but for a `timeout` that is given: None is no limit. Idempotent by `run_id`, as `engine.start` is: a run of that id that
        was begun otherwise raises RunIdTaken.

        Raises ValueError for a timeout that is none, WrongInputs, PlaceNotFound, VersionNotFound, CannotContinue if what the run
        followed at that place is not there, TypesMissing if code of nodes is not here, BlobMissing if a value that it would take
        over is gone, and LogNotWhole for a place of a run with `journal="audit"`.
        """
        chosen = chosen_run_id(self._engine.chance.new_id() if run_id is None else run_id)
        place = await self._place_of(chosen) if at is None and run_id is not None else at
        stored = await self._source(place, is_repeated=at is None)
        prepared = await self._prepared_on(stored.run, stored.run.version if version is None else version)
        if prepared.missing:
            raise TypesMissing(self.run_id, prepared.missing.types, workflows=prepared.missing.workflows)
        settings = _with_timeout(stored.run.settings, timeout)
        created, blobs = await self._created(stored.run, prepared, inputs or {}, settings)
        changed = [name for name, value in created.inputs.items() if stored.run.inputs.get(name) != value]
        own = await self._engine.prepared(stored.run)
        if place is not None and content_hash(own.graph) != stored.run.graph_hash:
            reasons = [f"version {stored.run.version} is not what the run has followed there"]
            raise CannotContinue(self.run_id, stored.run.workflow, prepared.version.version, reasons)
        known = [found for found in stored.nodes if found.node_id in prepared.plan.nodes]
        source = Projection(stored.run, known, given=stored.given)
        others = differing_nodes(source, own.plan, prepared.plan)
        taken = taken_over(source, prepared.plan, changed, others)
        blobs += await self._shared(taken, created.inputs.values())
        now = self._engine.clock.now_micros()
        if not await self._engine.begin_run(chosen, created, prepared, blobs, at=now, taken=taken):
            await self._engine.take_as_begun(chosen, created)
        return await self._engine.get(chosen)

    async def forked_from(self) -> Origin | None:
        """Return the run from which this one was forked, and the last event of it that counts; None if it was started."""
        run = await self.state()
        if run.audit is not None:
            return run.audit.forked_from
        first = await self._engine.store.load_events(self.run_id, after=Seq(0), limit=1)
        created = first[0].event if first else None
        return created.forked_from if isinstance(created, RunCreated) else None

    async def _source(self, place: str | int | None, *, is_repeated: bool) -> StoredRun:
        """Return the run as it is to be forked. Where its log does not tell what it was, a fork that was made before and is asked
        for again is recognised by its place and by what never changes."""
        stored = await self.load() if place is None or is_repeated else None
        if place is None and stored is not None:
            return stored
        if stored is not None and stored.run.audit is not None and isinstance(place, int):
            return msgspec.structs.replace(stored, run=msgspec.structs.replace(stored.run, last_seq=Seq(place)))
        return await stored_at(self._engine.store, self.run_id, place or 0)

    async def _place_of(self, run_id: RunId) -> Seq | None:
        """Return the place from which a run was forked that is there: who asks for it again means the same one."""
        with suppress(RunNotFound):
            there = await Forks(self._engine, run_id).forked_from()
            return there.seq if there is not None and there.run_id == self.run_id else None
        return None

    async def _created(
        self, run: RunState, prepared: Prepared, wished: Mapping[str, Any], settings: RunSettings
    ) -> tuple[RunCreated, tuple[BlobUse, ...]]:
        values = self._engine.values
        declared = declared_workflows().get(run.workflow)
        annotations: Mapping[str, Any] = {} if declared is None else declared.input_types
        names = {declared.name for declared in prepared.graph.inputs} | stream_inputs(prepared.graph).keys()
        unchanged = {name: value for name, value in run.inputs.items() if name in names and name not in wished}
        known = {name: await values.unpack(value, annotations.get(name, Any)) for name, value in unchanged.items()}
        given = check_inputs(prepared.graph, annotations, {**known, **wished})
        others = {name: value for name, value in given.items() if name not in unchanged}
        encoded, blobs = await values.pack_all(others, where=f"inputs of workflow {run.workflow!r}")
        created = creation(prepared, given, {**unchanged, **encoded}, settings, project_id=run.project_id)
        origin = Origin(run_id=self.run_id, seq=run.last_seq)
        return msgspec.structs.replace(created, source=run.source, forked_from=origin), tuple(blobs)

    async def _shared(self, taken: Taken, inputs: Iterable[Encoded]) -> tuple[BlobUse, ...]:
        """Return the blobs to which what is taken over refers: they stay as long as the fork does. Until that is recorded, the
        run from which they come may be deleted or archived, so that nothing refers to them: they count as put just now."""
        values = self._engine.values
        outputs = (value for found in taken.outputs.values() for value in found.values())
        given = (value for found in taken.given.values() for value in found.values())
        refs = {ref for value in (*outputs, *given, *inputs) for ref in await values.all_references(value)}
        for ref in refs:
            await values.blobs.refresh(ref.digest, ref.size)
        return tuple(BlobUse(digest=ref.digest, size=ref.size) for ref in refs)


def _with_timeout(settings: RunSettings, timeout: float | timedelta | msgspec.UnsetType | None) -> RunSettings:
    if timeout is msgspec.UNSET:
        return settings
    if timeout is None:
        return msgspec.structs.replace(settings, timeout_seconds=None)
    if not is_duration(timeout, above=timedelta(0)):
        raise ValueError(
            f"timeout={timeout!r} is no time above zero, in seconds or as a timedelta, nor None for no limit"
        )
    return msgspec.structs.replace(settings, timeout_seconds=duration(timeout).total_seconds())
