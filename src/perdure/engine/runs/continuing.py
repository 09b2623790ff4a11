"""Whether a run can go on on another version of its workflow, as its user asks for it."""

from __future__ import annotations

import msgspec

from perdure.engine.driving.catalogue import Prepared
from perdure.engine.runs.told import Told
from perdure.errors import CannotContinue, GraphError, JournalDamaged, VersionNotFound
from perdure.graph.plan import Plan
from perdure.graph.validate import validate
from perdure.graph.writing import content_hash
from perdure.ids import Seq
from perdure.journal.compatible import Compatibility, compatibility
from perdure.journal.events import RunCreated
from perdure.journal.projection import Projection
from perdure.journal.states import RunState
from perdure.journal.waiting import Waits
from perdure.store.shapes import StoredRun


class Continuing(Told):
    """The side of a run that may follow another version."""

    async def compatibility(self, version: int) -> Compatibility:
        """Return whether the run can go on on a version of its workflow, node by node and with reasons, and do nothing.

        Raises VersionNotFound if there is no such version.
        """
        stored = await self.load()
        return await self._outlook(stored, await self._prepared_on(stored.run, version))

    async def fallback(self) -> Compatibility:
        """Return on which version (`other`) a run can go on whose own is not in the store, and do nothing: one that says the
        same, or else the one that it was started with, if all that has happened could have happened there.

        Raises CannotContinue, with all reasons, if there is none.
        """
        stored = await self.load()
        run = stored.run
        initial = await self._initial_version(run)
        saved = await self._engine.store.list_versions(run.workflow)
        version = next((found.version for found in saved if found.graph_hash == run.graph_hash), initial)
        if version not in {found.version for found in saved}:
            raise CannotContinue(self.run_id, run.workflow, version, ["it is not in the store."])
        report = await self._outlook(stored, await self._prepared_on(run, version))
        if not report.is_possible:
            raise CannotContinue(self.run_id, run.workflow, version, report.reasons)
        return report

    async def _outlook(self, stored: StoredRun, other: Prepared) -> Compatibility:
        run, one = stored.run, await self._own_plan(stored.run)
        projection = Projection(run, stored.nodes, {}, Waits(stored.waits, stored.signals), stored.given)
        types = other.types.keys()
        report = compatibility(projection, one, other.plan, version=other.version.version, types=types)
        faults = () if other.missing else validate(other.graph, other.types)
        return msgspec.structs.replace(report, problems=(*report.problems, *map(str, faults)))

    async def _own_plan(self, run: RunState) -> Plan | None:
        """Return what the run follows; None if it is not in the store, or not as the run knows it."""
        try:
            own = await self._engine.prepared(run)
        except (JournalDamaged, GraphError):
            return None
        return own.plan if content_hash(own.graph) == run.graph_hash else None

    async def _prepared_on(self, run: RunState, version: int) -> Prepared:
        if await self._engine.store.load_version(run.workflow, version) is None:
            raise VersionNotFound(run.workflow, version)
        return await self._engine.prepared(msgspec.structs.replace(run, version=version))

    async def _initial_version(self, run: RunState) -> int:
        if run.audit is not None:
            return run.audit.version
        for entry in await self._engine.store.load_events(self.run_id, after=Seq(0), limit=1):
            if isinstance(entry.event, RunCreated):
                return entry.event.version
        return run.version
