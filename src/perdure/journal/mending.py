"""What follows when the doctor repairs a run: it goes on on a branch that agrees with the log.

Nothing is taken from the log, and what is recorded as done stays done: nodes keep their keys, their results and their open
questions. What was under way when the damage came is taken up as after any other loss, by whoever claims the run next.
"""

from __future__ import annotations

from collections import deque

import msgspec

from perdure.ids import BranchId, EngineId, Epoch, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.repairing import Repairing
from perdure.journal.states import TERMINAL, WAITING, RunStatus

REPAIRED = "repaired"
"""Why a run moves again that the doctor has looked after."""


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a run of which something recorded does not agree with its log."""

    code: str
    reason: str
    cut: Seq
    """The last event that counts on the branch."""
    branch_id: BranchId
    goes_on: bool = False
    """Whether the run has to move, if by its log it has ended or waits: it comes to that again if there is nothing to do."""
    retried: tuple[NodeId, ...] = ()
    in_doubt: tuple[NodeId, ...] = ()
    """Of those: nodes of which somebody has to say what became of them."""
    fails: tuple[NodeId | None, e.ErrorRecord] | None = None
    """With what the run fails on the branch."""
    cancels: str | None = None
    """Why it is cancelled there."""
    parks: tuple[NodeId | None, str] | None = None
    """Which node somebody has to repair before the run may go on, and why."""
    version: int | None = None
    graph_hash: str = ""


class Mending(Repairing):
    """The decisions that have to do with damage."""

    def mend(
        self, treatment: Treatment, *, engine_id: EngineId, epoch: Epoch, previous: EngineId | None, at: int
    ) -> None:
        """Have the run go on on a branch. Attempts that were running stay so: whoever claims the run next deals with them."""
        self._record(e.RunClaimed(engine_id=engine_id, epoch=epoch, previous=previous), at)
        if treatment.goes_on and self.projection.run.status in TERMINAL:
            self._record(e.RunReopened(reason=REPAIRED), at)
        elif treatment.goes_on and self.projection.run.status in (*WAITING, RunStatus.QUARANTINED):
            self._record(e.RunResumed(reason=REPAIRED), at)
        self._branch_for(treatment, at)
        if treatment.fails is not None:
            self._fail(*treatment.fails, at)
        if treatment.cancels is not None:
            self._record(e.RunCancelling(reason=treatment.cancels), at)
            self._cancel_unstarted("the run was cancelled", at)
        if treatment.parks is not None:
            node_id, reason = treatment.parks
            recoveries = self.projection.run.recoveries
            self._record(e.RunQuarantined(recoveries=recoveries, node_id=node_id, reason=reason, parked=True), at)

    def _branch_for(self, treatment: Treatment, at: int) -> None:
        parent = self.projection.run.branch_id
        created = e.BranchCreated(
            branch_id=treatment.branch_id,
            parent=parent,
            cut=treatment.cut,
            retried=treatment.retried,
            in_doubt=treatment.in_doubt,
            given={node_id: dict(values) for node_id, values in self.projection.given.items()},
            reason=treatment.reason,
        )
        self._record(created, at)
        self._record(e.BranchActivated(branch_id=treatment.branch_id), at)
        recovered = e.RunRecovered(
            reason=treatment.reason,
            code=treatment.code,
            previous_branch=parent,
            branch=treatment.branch_id,
            cut=treatment.cut,
            version=treatment.version,
            graph_hash=treatment.graph_hash,
        )
        self._record(recovered, at)
        self.ready = deque()
        self._survey_again()
