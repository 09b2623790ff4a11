"""What an engine holds of a run: how much of it is durable, and under which lease the rest is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import msgspec

from perdure.engine.recording.auditing import Audit
from perdure.engine.recording.pending import Portion
from perdure.ids import BranchId, Epoch, EventId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.branching import branch_state
from perdure.journal.states import AuditState, BranchState, RunState
from perdure.journal.steps import StepKey, leaves_behind
from perdure.store.transitions import Claim, Keep, LeaseChange, Release, StepRow, Transition


class Tenure:
    """Begins with a claim, which the first transition writes, and ends with the transition that lets the run go."""

    def __init__(
        self,
        claim: Claim,
        *,
        base_seq: Seq,
        seen_epoch: Epoch,
        seen_branch: BranchId,
        audit: AuditState | None = None,
    ) -> None:
        """`audit` is what the tables say of a run whose log is written on the side, if it is there already."""
        self._audit = Audit(audit)
        self._lease: LeaseChange = claim
        self._seq = base_seq
        self._epoch = seen_epoch
        self._branch_id = seen_branch
        self._run: RunState | None = None
        """The run as the last commit left it, unless that is not known."""

    @property
    def is_kept(self) -> bool:
        """Whether the run is the engine's, durably, and stays so: no transition is needed for the lease itself."""
        return isinstance(self._lease, Keep)

    @property
    def is_certain(self) -> bool:
        """Whether the run is the engine's, durably."""
        return not isinstance(self._lease, Claim)

    def end(self) -> None:
        """Let the run go with the next transition."""
        if isinstance(self._lease, Claim):
            self._lease = msgspec.structs.replace(self._lease, lets_go=True)
        else:
            self._lease = Release()

    def transition(self, portion: Portion, new_id: Callable[[], str]) -> Transition:
        """Return what takes the run from where it is durable to where a portion of decisions leaves it."""
        recorded = numbered(portion, self._seq, self._epoch, self._branch_id, new_id)
        run = portion.run
        if run.settings.journal == "audit":
            run = msgspec.structs.replace(run, audit=self._audit.after(recorded))
        return Transition(
            run_id=run.run_id,
            epoch=self._epoch,
            base_seq=self._seq,
            run=run,
            events=recorded,
            nodes=portion.nodes,
            steps=_step_rows(recorded) if portion.steps is None else steps_on_branch(portion.steps, portion.run),
            past_steps=portion.past_steps,
            branches=() if portion.steps is None else branch_rows(recorded),
            items=portion.items,
            drops=portion.drops,
            waits=portion.waits,
            signals=portion.signals,
            checkpoints=portion.checkpoints,
            blobs=portion.blobs,
            commands=portion.commands,
            lease=self._lease,
            only_steps=self.is_kept and run.audit is None and self._changes_only_steps(run),
        )

    def committed(self, transition: Transition) -> bool:
        """Note that a transition is durable; True if it has let the run go."""
        self._run = transition.run
        self._seq = transition.run.last_seq
        self._epoch = transition.run.epoch
        self._branch_id = transition.run.branch_id
        lease = transition.lease
        if isinstance(lease, Claim):
            self._lease = Keep()
            return lease.lets_go
        return isinstance(lease, Release)

    def _changes_only_steps(self, after: RunState) -> bool:
        """Whether nothing about the run itself has changed but how far its log goes."""
        return self._run is not None and msgspec.structs.replace(self._run, last_seq=after.last_seq) == after


def numbered(
    portion: Portion, base_seq: Seq, epoch: Epoch, branch_id: BranchId, new_id: Callable[[], str]
) -> tuple[e.Recorded, ...]:
    """Give the events their places, after the one at `base_seq`, which was recorded in this epoch and on this branch. What comes
    before a claim belongs to the epoch before it, and what comes before a branch to the one that is left for it."""
    recorded: list[e.Recorded] = []
    for seq, (event, at) in enumerate(portion.decided, start=base_seq + 1):
        if type(event) is e.RunClaimed:
            epoch = event.epoch
        elif type(event) is e.BranchActivated:
            branch_id = event.branch_id
        recorded.append(
            e.Recorded(seq=Seq(seq), id=EventId(new_id()), branch_id=branch_id, epoch=epoch, at=at, event=event)
        )
    return tuple(recorded)


def _step_rows(recorded: Sequence[e.Recorded]) -> tuple[StepRow, ...]:
    """Return the rows of memoised steps that were taken, and that their nodes have not left behind since."""
    taken: dict[NodeId, list[StepRow]] = {}
    for entry in recorded:
        event = entry.event
        if type(event) is e.StepCompleted:
            taken.setdefault(event.node_id, []).append(_step_row(event, entry))
        elif taken and leaves_behind(event):
            taken.pop(event.node_id, None)
    return tuple(chain.from_iterable(taken.values()))


def _step_row(step: e.StepCompleted, entry: e.Recorded) -> StepRow:
    return StepRow(
        node_id=step.node_id,
        branch_id=entry.branch_id,
        name=step.name,
        occurrence=step.occurrence,
        result=step.result,
        seq=entry.seq,
    )


def steps_on_branch(steps: Mapping[StepKey, e.Encoded], run: RunState) -> tuple[StepRow, ...]:
    """Return the rows of all memoised steps that a branch keeps."""
    return tuple(
        StepRow(
            node_id=node_id,
            branch_id=run.branch_id,
            name=name,
            occurrence=occurrence,
            result=result,
            seq=run.last_seq,
        )
        for (node_id, name, occurrence), result in steps.items()
    )


def branch_rows(recorded: Sequence[e.Recorded]) -> tuple[BranchState, ...]:
    """Return the rows of the branches that were created."""
    return tuple(
        branch_state(entry.event, seq=entry.seq, at=entry.at)
        for entry in recorded
        if isinstance(entry.event, e.BranchCreated)
    )


def onto_branch(row: RunState, portion: Portion, recorded: tuple[e.Recorded, ...], claim: Claim) -> Transition:
    """Return what takes a run that nobody drives from how its row is to a branch, with what every branch brings: rows of nodes,
    steps and waits."""
    return Transition(
        run_id=row.run_id,
        epoch=row.epoch,
        base_seq=row.last_seq,
        run=portion.run,
        events=recorded,
        nodes=portion.nodes,
        steps=steps_on_branch(portion.steps or {}, portion.run),
        branches=branch_rows(recorded),
        waits=portion.waits,
        lease=claim,
    )
