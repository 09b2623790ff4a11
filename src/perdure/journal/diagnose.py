"""What is wrong with a run as it is recorded, by comparing its rows with what its log says, and what is to be done about it.

The log is what counts: it is folded, and whatever the rows say otherwise is a finding, named after the catalogue in `ailments`.
The treatment is always the same in kind, a branch that agrees with the log (`mending`), and differs in what follows on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from perdure.errors import JournalError
from perdure.errors.base import quoted
from perdure.graph.plan import Plan
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.again import has_begun
from perdure.journal.ailments import CATALOGUE
from perdure.journal.compatible import compatibility
from perdure.journal.dump import Dump
from perdure.journal.evolve import PROGRESS
from perdure.journal.mending import Treatment
from perdure.journal.projection import Projection, fold
from perdure.journal.states import (
    ENDED,
    MOVING,
    SETTLED,
    WAITING,
    NodeState,
    NodeStatus,
    RunStatus,
    WaitKind,
    WaitStatus,
)

LONG_MICROS = 7 * 86_400_000_000
"""A question that is open for longer than this has been open for long."""
_SHOWN = 3
"""How many differences are told."""
_MOVES = frozenset((RunStatus.CREATED, RunStatus.RUNNING, RunStatus.RECOVERING))
_PINNED = frozenset(("version", "graph_hash"))
_FIXED = frozenset(("run_id", "project_id", "workflow", "inputs", "settings", "source", "created_at"))
"""What is never written again: a difference in it stays."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A version with which a run could go on."""

    version: int
    graph_hash: str
    plan: Plan
    types: frozenset[str]
    """The node types that are known."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What a diagnosis looks at."""

    dump: Dump
    plan: Plan | None
    """Of the version that the run's row names; None if that is gone."""
    knows_types: bool
    """Whether the plan was made with all node types at hand, so that it knows their policies."""
    candidates: tuple[Candidate, ...]
    """If the version that the row names is gone: those that the run has followed by its log and that are there, the one that it
    follows first."""
    driver: str | None
    """The engine that drives the run, if a living one does."""
    now: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was seen of a run. What it is called, and whether it is an issue, is in the catalogue."""

    code: str
    problem: str
    node_id: NodeId | None = None
    remedy: str = ""
    left: str = ""
    """Why the doctor does nothing about it by itself, if so."""

    @property
    def is_issue(self) -> bool:
        return CATALOGUE[self.code].is_issue

    @property
    def explanation(self) -> str:
        return CATALOGUE[self.code].explanation


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    """What may look wrong and is not."""
    treatment: Treatment | None = None
    folded: Projection | None = None
    """The run as its log has it."""
    fallback: Candidate | None = None
    """The version with which the run can go on, where the one that its row names is gone."""


def examine(chart: Chart) -> Examination:
    """Return everything that is wrong with a run, by the catalogue, and what is to be done about it."""
    dump = chart.dump
    try:
        folded = fold(dump.run.run_id, dump.events)
    except JournalError as error:
        return Examination(findings=(finding("R2", str(error), left="nobody can tell what it should be"),))
    if folded.run.last_seq < dump.run.last_seq:
        problem = f"the log ends with event {folded.run.last_seq}, the run has recorded {dump.run.last_seq}"
        return Examination(findings=(finding("R2", problem, left="what is gone cannot be told"),))
    case = _Case(chart, folded)
    found, treatment = case.found()
    return Examination(
        findings=tuple(found),
        notes=tuple(case.notes()),
        treatment=treatment,
        folded=folded,
        fallback=case.fallback,
    )


class _Case:
    """One run under examination."""

    def __init__(self, chart: Chart, folded: Projection) -> None:
        self._chart = chart
        self._dump = chart.dump
        self._row = chart.dump.run
        self._folded = folded
        self._log = folded.run
        self._asked = [wait for wait in folded.waits.open() if wait.kind is WaitKind.ASK]
        self._is_gone = chart.plan is None or chart.dump.version_hash is None
        self.fallback = self._first_that_fits() if self._is_gone else None
        self._plan = chart.plan if self.fallback is None else self.fallback.plan

    def found(self) -> tuple[list[Finding], Treatment | None]:
        findings: list[Finding] = []
        treatment: Treatment | None = None
        if (version := self._version_gone()) is not None:
            findings.append(version)
            if version.left:
                return [*findings, *(found for found, _ in self._mismatch())], None
            treatment = self._treatment("E2", version.problem)
        for found, treated in self._mismatch():
            findings.append(found)
            treatment = None if treated is None else treated
        if treatment is None:
            return findings, None
        if self._chart.driver is not None:
            left = f"engine {self._chart.driver} drives it: stop that engine, or wait until it has let go of the run"
            return [msgspec.structs.replace(found, left=found.left or left) for found in findings], None
        if self._is_repaired_in_vain():
            left = "it was repaired too often without getting on: somebody else writes to its rows"
            return [msgspec.structs.replace(found, left=found.left or left) for found in findings], None
        return findings, self._pinned(treatment)

    # The version

    def _version_gone(self) -> Finding | None:
        if not self._is_gone:
            return None
        row, candidates = self._row, self._chart.candidates
        problem = f"version {row.version} of workflow {row.workflow!r} is not in the store, or cannot be read"
        if not candidates:
            left = "the version with which the run was started is not there either"
            return finding("E2", problem, left=left)
        if self.fallback is None:
            reasons = "; ".join(self._reasons_against(candidates[0])[:_SHOWN])
            return finding("E2", problem, left=f"version {candidates[0].version} does not fit: {reasons}")
        return finding("E2", problem, remedy=f"It goes on with version {self.fallback.version}, {self._which()}.")

    def _first_that_fits(self) -> Candidate | None:
        return next((found for found in self._chart.candidates if not self._reasons_against(found)), None)

    def _reasons_against(self, candidate: Candidate) -> Sequence[str]:
        """Return why what has happened could not have happened on a version."""
        if candidate.graph_hash == self._log.graph_hash:
            return ()
        report = compatibility(self._folded, None, candidate.plan, version=candidate.version, types=candidate.types)
        return () if report.is_possible else report.reasons

    def _which(self) -> str:
        """Say which one of its versions a run goes on with."""
        created = self._dump.events[0].event
        if isinstance(created, e.RunCreated) and self.fallback is not None and self.fallback.version == created.version:
            return "with which it was started"
        is_own = self.fallback is not None and self.fallback.graph_hash == self._log.graph_hash
        return "which it follows by its log" if is_own else "which it has followed before"

    def _pinned(self, treatment: Treatment) -> Treatment:
        candidate = self.fallback
        if candidate is None:
            return treatment
        return msgspec.structs.replace(treatment, version=candidate.version, graph_hash=candidate.graph_hash)

    # What the rows say and the log does not

    def _mismatch(self) -> Iterator[tuple[Finding, Treatment | None]]:
        """Yield the one thing that says most about how the rows and the log differ, if they do."""
        for look in (self._jump, self._nothing_awaited, self._awaited_unseen, self._all_done, self._failed, self._rows):
            if (seen := look()) is not None:
                yield seen
                return

    def _jump(self) -> tuple[Finding, Treatment | None] | None:
        events = self._dump.events
        place = next((i for i in reversed(range(len(events))) if isinstance(events[i].event, e.JumpRequested)), None)
        if place is None:
            return None
        jump = events[place].event
        assert isinstance(jump, e.JumpRequested)
        if _is_jump_open(events[place:]):
            return self._dropped_jump(jump, place)
        activated = next(entry.event for entry in events[place:] if isinstance(entry.event, e.BranchActivated))
        assert isinstance(activated, e.BranchActivated)
        if self._row.branch_id == self._log.branch_id or activated.branch_id != self._log.branch_id:
            return None
        problem = (
            f"the run's row is on branch {self._row.branch_id}; by its log the jump to {jump.node_id!r} was made, "
            f"on branch {activated.branch_id}"
        )
        found = finding("D2", problem, node_id=jump.node_id, remedy="The jump is kept, and the row is put right.")
        return found, self._treatment("D2", problem)

    def _dropped_jump(self, jump: e.JumpRequested, place: int) -> tuple[Finding, Treatment | None]:
        events = self._dump.events
        before = place
        while before and isinstance(events[before - 1].event, e.RunReopened | e.RunResumed | e.RunClaimed):
            before -= 1
        has_gone_on = any(isinstance(entry.event, e.NodeEvent) for entry in events[place:])
        cut = self._log.last_seq if has_gone_on or not before else events[before - 1].seq
        problem = f"the jump to {jump.node_id!r} of event {events[place].seq} was never made"
        remedy = (
            f"The jump is dropped: ask for it again, `perdure jump {quoted(self._row.run_id)} {quoted(jump.node_id)}`."
        )
        treatment = self._treatment("D2", problem, cut=Seq(cut))
        was = fold(self._row.run_id, events[:before]).run if before else self._log
        if not has_gone_on and self._log.status is RunStatus.RUNNING:
            treatment = msgspec.structs.replace(
                treatment,
                fails=None if was.status is not RunStatus.FAILED or was.error is None else (was.failed_node, was.error),
                cancels=was.reason if was.status is RunStatus.CANCELLED else None,
                parks=(was.failed_node, was.reason) if was.status is RunStatus.QUARANTINED else None,
            )
        return finding("D2", problem, node_id=jump.node_id, remedy=remedy), treatment

    def _nothing_awaited(self) -> tuple[Finding, Treatment | None] | None:
        row = self._row.status
        if row not in WAITING:
            return None
        nodes = self._folded.nodes.values()
        is_unasked = row is RunStatus.AWAITING_INPUT and not self._asked
        may_go_on = [node for node in nodes if node.status is NodeStatus.SUSPENDED and node.due is not None]
        if not (is_unasked or may_go_on):
            return None
        node_id = may_go_on[0].node_id if may_go_on else None
        answered = f": {node_id!r} has what it asked for" if node_id is not None else ""
        problem = f"it is {_words(row)}, and by its log nobody is asked anything{answered}"
        goes_on = self._log.status in (RunStatus.COMPLETED, *WAITING)
        return finding("A1", problem, node_id=node_id), self._treatment("A1", problem, goes_on=goes_on)

    def _awaited_unseen(self) -> tuple[Finding, Treatment | None] | None:
        if self._row.status not in _MOVES or self._log.status not in WAITING:
            return None
        waits = self._asked or self._folded.waits.open()
        node_id = waits[0].node_id if waits else None
        what = f": {node_id!r} has asked" if self._asked else ""
        problem = f"it is {_words(self._row.status)}, and by its log it waits{what}"
        return finding("A2", problem, node_id=node_id), self._treatment("A2", problem, goes_on=True)

    def _all_done(self) -> tuple[Finding, Treatment | None] | None:
        is_told = self._log.status in (RunStatus.RUNNING, RunStatus.COMPLETED)
        if self._row.status not in _MOVES or not is_told or self._plan is None or not self._is_complete(self._plan):
            return None
        ended = "its end is" if self._log.status is RunStatus.COMPLETED else "its end is not"
        problem = f"it is {_words(self._row.status)}, and by its log every node of it is done; {ended} recorded"
        return finding("A3", problem), self._treatment("A3", problem, goes_on=True)

    def _is_complete(self, plan: Plan) -> bool:
        """Whether nothing is left to do: every node completed, with its outputs, or skipped; nothing asked, no stream open."""
        states = [self._folded.node(node_id) for node_id in plan.nodes]
        return not self._asked and all(
            node.status in SETTLED
            and (node.outputs is not None or node.status is NodeStatus.SKIPPED)
            and (node.stream is None or node.stream.is_closed or node.status is NodeStatus.SKIPPED)
            for node in states
        )

    # Nodes that have failed

    def _failed(self) -> tuple[Finding, Treatment | None] | None:
        log = self._log
        if self._row.status not in _MOVES or log.status not in (RunStatus.RUNNING, RunStatus.FAILING, RunStatus.FAILED):
            return None
        failed = [node for node in self._folded.nodes.values() if node.status is NodeStatus.FAILED]
        if log.status is RunStatus.RUNNING and not (failed and self._is_at_an_end()):
            return None
        error = log.error or next((node.error for node in failed if node.error is not None), None)
        node_id = log.failed_node or (failed[0].node_id if failed else None)
        where = f"{node_id!r} has failed" if node_id is not None else "it has failed"
        told = f": {error.type}: {error.message}" if error is not None else ""
        kind = f" ({error.error_class.value})" if error is not None else ""
        problem = f"it is {_words(self._row.status)}, and by its log {where}{kind}{told}"
        if log.status is RunStatus.FAILING or not failed:
            return finding("A4", problem, node_id=node_id), self._treatment("A4", problem)
        if self._plan is None or not self._chart.knows_types:
            left = "what may be repeated is told by the code of its nodes, which is not here: name it with --import"
            return finding("A4", problem, node_id=node_id, left=left), None
        treatment, remedy = self._by_class(failed, self._plan, problem)
        return finding("A4", problem, node_id=node_id, remedy=remedy), treatment

    def _is_at_an_end(self) -> bool:
        """Whether a failure should have ended the run."""
        is_live = any(
            node.status not in ENDED and node.status is not NodeStatus.IDLE for node in self._folded.nodes.values()
        )
        return self._log.settings.on_failure == "stop" or not is_live

    def _by_class(self, failed: Sequence[NodeState], plan: Plan, problem: str) -> tuple[Treatment, str]:
        treatment = self._treatment("A4", problem)
        for node in failed:
            if node.error is not None and node.error.error_class is e.ErrorClass.BUG:
                if self._log.status is RunStatus.FAILED:
                    return treatment, "The run has failed. When the code is mended, `perdure retry` goes on with it."
                return (
                    msgspec.structs.replace(treatment, fails=(node.node_id, node.error)),
                    "The run fails. When the code is mended, `perdure retry` goes on with it.",
                )
        stopped = [
            node for node in self._folded.nodes.values() if node.status in (NodeStatus.FAILED, NodeStatus.CANCELLED)
        ]
        doubted = tuple(node.node_id for node in stopped if _is_doubtful(node, plan))
        treatment = msgspec.structs.replace(
            treatment, goes_on=True, retried=tuple(node.node_id for node in stopped), in_doubt=doubted
        )
        to_repair = next((node for node in failed if _is_to_repair(node) and node.node_id not in doubted), None)
        if to_repair is not None:
            error = to_repair.error
            reason = "" if error is None else f"{to_repair.node_id} is to be repaired: {error.type}: {error.message}"
            remedy = (
                f"The run is quarantined. Repair it and `perdure resume {quoted(self._row.run_id)}`, or go back with "
                f"other values: `perdure jump {quoted(self._row.run_id)} {quoted(to_repair.node_id)} -i …`."
            )
            return msgspec.structs.replace(treatment, parks=(to_repair.node_id, reason)), remedy
        if doubted:
            return (
                treatment,
                f"{doubted[0]!r} is in doubt: `perdure resolve {quoted(self._row.run_id)} {quoted(doubted[0])} done|retry|fail`.",
            )
        return treatment, "It is tried again."

    # All else

    def _rows(self) -> tuple[Finding, Treatment | None] | None:
        differences = [*self._differences()]
        if not differences:
            return None
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        problem = "; ".join(differences[:_SHOWN]) + more
        fixed = [name for name in _FIXED if getattr(self._row, name) != getattr(self._log, name)]
        if fixed:
            return finding("R1", problem, left=f"{', '.join(sorted(fixed))} of a run is never written again"), None
        return finding("R1", problem), self._treatment("R1", problem)

    def _differences(self) -> Iterator[str]:
        ignored = _PINNED if self._is_gone else frozenset[str]()
        yield from _unlike("the run", self._log, self._row, ignored)
        stored = {node.node_id: node for node in self._dump.current_nodes}
        for node_id in sorted(self._folded.nodes.keys() | stored.keys()):
            yield from _unlike_rows(f"node {node_id!r}", self._folded.nodes.get(node_id), stored.get(node_id))
        waits = {wait.wait_id: wait for wait in self._dump.waits}
        folded = {wait.wait_id: wait for wait in self._folded.waits}
        for wait_id in sorted(folded.keys() | waits.keys()):
            yield from _unlike_rows(f"wait {wait_id!r}", folded.get(wait_id), waits.get(wait_id))
        if dict(self._folded.steps) != self._dump.steps:
            yield "the steps are not those of the log"

    # What is no issue

    def notes(self) -> Iterator[Finding]:
        """Yield what may look wrong and is not."""
        for wait in self._asked:
            is_old = self._chart.now - wait.opened_at > LONG_MICROS
            yield finding("B2" if is_old else "B1", f"{wait.wait_id!r} is open", node_id=wait.node_id)
        is_left = self._log.status in MOVING and self._chart.driver is None
        for node in self._folded.nodes.values() if is_left else ():
            if node.status is NodeStatus.RUNNING:
                yield finding("C1", f"{node.node_id!r} has begun, and nobody drives the run", node_id=node.node_id)
        for stage in self._open_stages() if is_left else ():
            yield finding("C2", f"stage {stage!r} has begun, and nobody drives the run")
        activated = self._dump.activated
        for branch in self._dump.branches:
            if branch.parent is not None and branch.branch_id not in activated:
                yield finding("D1", f"the run never was on branch {branch.branch_id}")
        if is_left:
            yield finding("F1", "the run should move, and nobody drives it")

    def _open_stages(self) -> list[str]:
        stages: dict[str, bool] = {}
        for entry in self._dump.events:
            if isinstance(entry.event, e.StageStarted):
                stages[entry.event.stage] = True
            elif isinstance(entry.event, e.StageCompleted):
                stages[entry.event.stage] = False
        return [stage for stage, is_open in stages.items() if is_open]

    # The treatment

    def _treatment(self, code: str, reason: str, *, goes_on: bool = False, cut: Seq | None = None) -> Treatment:
        created = [branch.branch_id for branch in self._dump.branches]
        created += [entry.event.branch_id for entry in self._dump.events if isinstance(entry.event, e.BranchCreated)]
        return Treatment(
            code=code,
            reason=f"{code}: {reason}",
            cut=self._log.last_seq if cut is None else cut,
            branch_id=BranchId(max((self._row.branch_id, self._log.branch_id, *created)) + 1),
            goes_on=goes_on,
        )

    def _is_repaired_in_vain(self) -> bool:
        repairs = 0
        for entry in self._dump.events:
            if type(entry.event) in PROGRESS:
                repairs = 0
            elif isinstance(entry.event, e.RunRecovered) and entry.event.branch is not None:
                repairs += 1
        return repairs > self._row.settings.max_recoveries


def _is_doubtful(node: NodeState, plan: Plan) -> bool:
    """Whether nobody knows what came of a node that was stopped or has failed, and it must not simply be repeated."""
    policy = plan.nodes[node.node_id].policy
    if node.status is NodeStatus.CANCELLED:
        return policy.once and has_begun(node)
    is_unknown = node.error is None or node.error.error_class is e.ErrorClass.UNKNOWN
    return policy.once or (is_unknown and not policy.pure)


def _is_to_repair(node: NodeState) -> bool:
    to_repair = (e.ErrorClass.CONFIGURATION, e.ErrorClass.INPUT)
    return node.error is not None and node.error.error_class in to_repair


def _is_jump_open(log: Sequence[e.Recorded]) -> bool:
    """Whether the last jump that this part of a log asks for was not made."""
    is_open = False
    for entry in log:
        if isinstance(entry.event, e.JumpRequested):
            is_open = True
        elif isinstance(entry.event, e.BranchActivated):
            is_open = False
    return is_open


def finding(code: str, problem: str, *, node_id: NodeId | None = None, remedy: str = "", left: str = "") -> Finding:
    """Return something that was seen, with the remedy of the catalogue unless there is more to say."""
    return Finding(code=code, problem=problem, node_id=node_id, remedy=remedy or CATALOGUE[code].remedy, left=left)


def _unlike_rows(what: str, folded: msgspec.Struct | None, stored: msgspec.Struct | None) -> Iterator[str]:
    if folded is None or stored is None:
        yield f"{what} has {'no row' if stored is None else 'a row and no events'}"
    else:
        yield from _unlike(what, folded, stored, frozenset())


def _unlike(what: str, folded: msgspec.Struct, stored: msgspec.Struct, ignored: frozenset[str]) -> Iterator[str]:
    for name in folded.__struct_fields__:
        expected, found = getattr(folded, name), getattr(stored, name)
        if name not in ignored and expected != found:
            yield f"{what}: {name} is {_brief(found)}, by the log {_brief(expected)}"


def _brief(value: Any) -> str:
    told = value.value if isinstance(value, RunStatus | NodeStatus | WaitStatus) else repr(value)
    return told if len(told) <= 60 else f"{told[:57]}…"


def _words(status: RunStatus) -> str:
    return status.value.replace("_", " ")
