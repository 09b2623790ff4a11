"""Looking after runs whose rows do not agree with their logs: find what is wrong, and have them go on on a branch that does.

A repair is one transition, a claim that lets go of the run at once: whoever takes the run up next goes on with it as with any
other. It is fenced by the epoch and the number of events that were seen, so that of two who repair one run at the same time one
does, and the other finds nothing left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.engine.owning.leases import is_gone
from perdure.engine.recording.committer import Committer
from perdure.engine.recording.offering import Offer
from perdure.engine.recording.pending import Pending
from perdure.engine.recording.tenure import numbered, onto_branch
from perdure.engine.stored.absence import look_for
from perdure.engine.stored.dumping import dump_of, generators_of, readable_graph
from perdure.errors import JournalError, RunDamaged
from perdure.graph.declare import NodeType
from perdure.graph.model import Graph
from perdure.graph.plan import Plan, compile_plan
from perdure.graph.writing import content_hash
from perdure.ids import BranchId, Chance, EngineId, Epoch, RunId, Seq
from perdure.journal.decide import Decider
from perdure.journal.diagnose import Candidate, Chart, Examination, Finding, examine, finding
from perdure.journal.followed import Followed, versions_followed
from perdure.journal.mending import Treatment
from perdure.journal.states import RunState, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import RunDump, StoredRun
from perdure.store.transitions import Claim, Committed, Rejected, Transition

log = logging.getLogger("perdure.doctor")

LOOK_AGAIN_SECONDS = 30.0
"""How long a run is left alone that could not be repaired."""
MOST_GIVEN_UP = 1_000
"""How many such runs are remembered."""
TRIES = 5
"""How often a run is looked at again that others repair, or move, at the same time."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about a run."""

    code: str
    reason: str
    previous_branch: BranchId
    branch: BranchId
    """On which the run goes on."""
    cut: Seq
    """The last event of the previous branch that counts on this one."""
    status: RunStatus
    """In which the run was left."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a run, and what was done about it."""

    run_id: RunId
    findings: tuple[Finding, ...]
    """What is wrong. After a repair, what was."""
    left: tuple[Finding, ...]
    """What is still wrong."""
    notes: tuple[Finding, ...] = ()
    """What may look wrong and is not, and why."""
    repair: Repair | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong, or not any more."""
        return not self.left


Types = Mapping[str, NodeType[..., Any]]


class Examiner:
    """Examines the runs of one store. Writes nothing, and runs no code of any node."""

    def __init__(self, store: Store, types: Callable[[], Types], clock: Clock) -> None:
        """`types` are the node types that are here."""
        self._store = store
        self._types = types
        self._clock = clock

    async def examine(self, run_id: RunId) -> Diagnosis:
        """Return what is wrong with a run. Raises RunNotFound."""
        examined = await self._examine(run_id)
        found = examined.examination
        return Diagnosis(run_id=run_id, findings=found.findings, left=found.findings, notes=found.notes)

    def _is_ours(self, stored: StoredRun) -> bool:
        """Whether this very process is recorded as the owner of a run."""
        return False

    def _drives(self, run_id: RunId) -> bool:
        """Whether it drives it."""
        return False

    async def _examine(self, run_id: RunId) -> _Examined:
        try:
            run = await self._store.load_state(run_id)
            if run is not None and run.audit is not None:
                return await self._examine_rows(run)
            stored = await look_for(self._store, run_id, lambda: self._store.dump_run(run_id))
        except (msgspec.MsgspecError, ValueError) as error:
            unreadable = finding("R2", f"a row of the run cannot be read: {error}", left="nobody can read it")
            return _Examined(stored=None, examination=Examination(findings=(unreadable,)), plan=None, dead=None)
        driver, dead = await self._ownership(stored.stored)
        plan, knows_types = self._plan_of(stored)
        chart = Chart(
            dump=dump_of(stored),
            plan=plan,
            knows_types=knows_types,
            candidates=await self._candidates(stored),
            driver=driver,
            now=self._clock.now_micros(),
        )
        examination = examine(chart)
        if plan is None and examination.fallback is not None:
            plan = examination.fallback.plan
        return _Examined(stored=stored, examination=examination, plan=plan, dead=dead)

    async def _examine_rows(self, run: RunState) -> _Examined:
        """Examine a run whose rows are all that counts: there is no log to repair them by."""
        saved = await self._store.load_version(run.workflow, run.version)
        findings: tuple[Finding, ...] = ()
        if saved is None or readable_graph(saved.graph) is None:
            problem = f"version {run.version} of workflow {run.workflow!r} is not in the store, or cannot be read"
            left = "its log is written on the side, so that no branch can be made from it; bring the version back"
            findings = (finding("E2", problem, left=left),)
        note = finding("G1", "journal='audit'")
        return _Examined(stored=None, examination=Examination(findings=findings, notes=(note,)), plan=None, dead=None)

    async def _ownership(self, stored: StoredRun) -> tuple[str | None, EngineId | None]:
        """Return the living engine that drives a run, if one does; else its owner, if that one is known to be gone."""
        owner = stored.owner
        if owner is None:
            return None, None
        if self._is_ours(stored):
            return (owner, None) if self._drives(stored.run.run_id) else (None, owner)
        row = next((row for row in await self._store.list_engines() if row.engine_id == owner), None)
        if row is not None and is_gone(row):
            return None, owner
        return (row.name or owner, None) if row is not None and row.is_alive else (None, None)

    def _plan_of(self, stored: RunDump) -> tuple[Plan | None, bool]:
        """Return the plan of the run's version, and whether all its node types are here."""
        graph = None if stored.version is None else readable_graph(stored.version.graph)
        return (None, False) if graph is None else self._planned(graph, stored)

    def _planned(self, graph: Graph, stored: RunDump) -> tuple[Plan, bool]:
        types = self._types()
        used = {node.type for node in graph.nodes}
        known = {name: types[name] for name in used if name in types}
        return compile_plan(graph, known, generators=generators_of(stored)), len(known) == len(used)

    async def _candidates(self, stored: RunDump) -> tuple[Candidate, ...]:
        """Return the versions that a run has followed, the last one first, where the one that its row names is gone."""
        if stored.version is not None and readable_graph(stored.version.graph) is not None:
            return ()
        found = [await self._candidate(stored, followed) for followed in reversed(versions_followed(stored.events))]
        return tuple(candidate for candidate in found if candidate is not None)

    async def _candidate(self, stored: RunDump, followed: Followed) -> Candidate | None:
        saved = await self._store.load_version(stored.stored.run.workflow, followed.version)
        graph = None if saved is None else readable_graph(saved.graph)
        if graph is None:
            return None
        return Candidate(
            version=followed.version,
            graph_hash=content_hash(graph),
            plan=self._planned(graph, stored)[0],
            types=frozenset(self._types()),
        )


class Doctor(Examiner):
    """Repairs what can be repaired."""

    def __init__(
        self,
        store: Store,
        types: Callable[[], Types],
        clock: Clock,
        committer: Committer,
        chance: Chance,
        *,
        engine_id: Callable[[], EngineId],
        drives: Callable[[RunId], bool],
    ) -> None:
        """`drives` says which runs this engine itself drives."""
        super().__init__(store, types, clock)
        self._committer = committer
        self._chance = chance
        self._engine_id = engine_id
        self._is_driven = drives
        self._given_up: dict[RunId, tuple[float, list[str]]] = {}
        """Runs that cannot be repaired: since when that is known, and why."""

    async def heal(self, run_id: RunId) -> Diagnosis:
        """Repair what can be repaired, and return what was wrong and what still is. Raises RunNotFound."""
        examined = await self._examine(run_id)
        findings = examined.examination.findings
        repair: Repair | None = None
        for _ in range(TRIES):
            if (treatment := examined.examination.treatment) is None:
                break
            repair = await self._repair(examined, treatment) or repair
            examined = await self._examine(run_id)
        left, notes = examined.examination.findings, examined.examination.notes
        return Diagnosis(run_id=run_id, findings=findings, left=left, notes=notes, repair=repair)

    async def require_healthy(self, run_id: RunId) -> bool:
        """Repair a run that is to be taken up; return whether that was needed. Raises RunDamaged if it stays as it is, and looks
        again only after a while: its log may be long, and every sweep comes to it."""
        now = self._clock.monotonic()
        since, problems = self._given_up.pop(run_id, (float("-inf"), list[str]()))
        if now - since < LOOK_AGAIN_SECONDS:
            self._given_up[run_id] = (since, problems)
            raise RunDamaged(run_id, problems)
        diagnosis = await self.heal(run_id)
        if diagnosis.left:
            problems = [f"{found.code}: {found.problem} ({found.left})" for found in diagnosis.left]
            self._give_up(run_id, now, problems)
            raise RunDamaged(run_id, problems)
        if diagnosis.repair is not None:
            log.warning("run_repaired", extra={"run_id": run_id, "reason": diagnosis.repair.reason})
        return diagnosis.repair is not None

    def _give_up(self, run_id: RunId, since: float, problems: list[str]) -> None:
        self._given_up[run_id] = (since, problems)
        while len(self._given_up) > MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def _is_ours(self, stored: StoredRun) -> bool:
        return stored.owner == self._engine_id()

    def _drives(self, run_id: RunId) -> bool:
        return self._is_driven(run_id)

    async def _repair(self, examined: _Examined, treatment: Treatment) -> Repair | None:
        """Write the repair; None if others were faster. Raises RunDamaged if it cannot be written."""
        assert examined.stored is not None
        row = examined.stored.stored.run
        try:
            transition = self._transition(examined, treatment, row)
        except JournalError as error:
            raise RunDamaged(row.run_id, [f"{treatment.reason}; it cannot be repaired: {error}"]) from error
        outcome = await Offer(transition).committed_by(self._committer)
        if isinstance(outcome, Rejected):
            raise RunDamaged(row.run_id, [f"{treatment.reason}; the store refuses the repair: {outcome.problem}"])
        if not isinstance(outcome, Committed):
            return None
        created = transition.branches[0]
        assert created.parent is not None
        return Repair(
            code=treatment.code,
            reason=treatment.reason,
            previous_branch=created.parent,
            branch=created.branch_id,
            cut=treatment.cut,
            status=transition.run.status,
        )

    def _transition(self, examined: _Examined, treatment: Treatment, row: RunState) -> Transition:
        """Return what takes a run from how its row is to a branch that agrees with its log."""
        folded, stored = examined.examination.folded, examined.stored
        assert folded is not None, "there is no treatment without a log"
        assert stored is not None, "nor without rows"
        assert examined.plan is not None, "nor without a graph"
        seq, epoch, branch_id = folded.run.last_seq, folded.run.epoch, folded.run.branch_id
        decider = Decider(folded, examined.plan)
        at = self._clock.now_micros()
        engine_id = self._engine_id()
        decider.mend(
            treatment,
            engine_id=engine_id,
            epoch=Epoch(max(epoch, row.epoch) + 1),
            previous=stored.stored.owner,
            at=at,
        )
        decider.conclude(at=at)
        portion = Pending(decider).cut()
        recorded = numbered(portion, seq, epoch, branch_id, self._chance.new_id)
        return msgspec.structs.replace(
            onto_branch(row, portion, recorded, Claim(engine_id=engine_id, dead=examined.dead, lets_go=True)),
            repins=(row.version, row.graph_hash) != (portion.run.version, portion.run.graph_hash),
        )


class _Examined(msgspec.Struct, frozen=True, kw_only=True):
    """An examination with what a repair needs."""

    stored: RunDump | None
    examination: Examination
    plan: Plan | None
    dead: EngineId | None
    """The run's owner, if that is known to be gone."""
