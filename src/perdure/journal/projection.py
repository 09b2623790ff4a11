"""A run in memory: what its events so far add up to.

The records in it are immutable and made by `evolve`; the projection only holds the latest of each, so that applying
an event costs the same in a run of ten nodes and of ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.errors import JournalDamaged
from perdure.ids import ROOT_BRANCH, BranchId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.branching import branched, restored_nodes, restored_run
from perdure.journal.evolve import create_run, evolve_node, evolve_run
from perdure.journal.lineage import places_gone_back_to
from perdure.journal.states import ENDED, NodeState, NodeStatus, RunState
from perdure.journal.steps import StepKey, Steps, leaves_behind
from perdure.journal.waiting import OPENING, SETTLING, Waits

Given = Mapping[NodeId, Mapping[str, e.Encoded]]
_NOTED = OPENING | SETTLING | {e.StepCompleted, e.NodeCheckpointed, e.TriggerCursorAdvanced}
"""Events of which more is kept than what becomes of their node."""


class Projection:
    """The state of one run on its current branch."""

    def __init__(
        self,
        run: RunState,
        nodes: Iterable[NodeState] = (),
        steps: Mapping[StepKey, e.Encoded] | None = None,
        waits: Waits | None = None,
        given: Given | None = None,
        last_branch: BranchId = ROOT_BRANCH,
    ) -> None:
        self.run = run
        self.nodes: dict[NodeId, NodeState] = {node.node_id: node for node in nodes}
        self.steps = Steps(steps)
        self.waits = waits or Waits()
        self.given: Given = given if given is not None else {}
        """By node, and then by handle: what nodes are given in the place of what edges and properties say."""
        self.last_branch = max(last_branch, run.branch_id)
        """The largest number of a branch that was ever created, also if the run never was on it."""
        self.pasts: dict[Seq, Projection] = {}
        """The run as it was at places to which it goes back, by the last event of each."""
        self._created: tuple[e.BranchCreated, Seq, int] | None = None
        """A branch on which the run is not yet. One that it never goes on on changes nothing."""

    def remember(self) -> None:
        """Keep the run as it is at this place, because it will go back to it."""
        waits = Waits(self.waits, self.waits.signals)
        self.pasts[self.run.last_seq] = Projection(self.run, self.nodes.values(), self.steps, waits, self.given)

    @property
    def next_branch(self) -> BranchId:
        """The number of the branch that is created next."""
        return BranchId(self.last_branch + 1)

    def node(self, node_id: NodeId) -> NodeState:
        """Return the node's state; one that nothing happened to is idle."""
        state = self.nodes.get(node_id)
        return state if state is not None else NodeState(node_id=node_id, branch_id=self.run.branch_id)

    def status(self, node_id: NodeId) -> NodeStatus:
        """Return the status of a node."""
        state = self.nodes.get(node_id)
        return NodeStatus.IDLE if state is None else state.status

    def apply(self, event: e.AnyEvent, *, at: int) -> Seq:
        """Add the next event of the log and return its number. An illegal one changes nothing and raises."""
        if isinstance(event, e.NodeEvent):
            self.apply_to_node(event, at=at)
        else:
            self.apply_to_run(event, at=at)
        return self.run.last_seq

    def apply_to_run(self, event: e.Event, *, at: int) -> None:
        """As `apply`, for what happens to the run itself."""
        seq = Seq(self.run.last_seq + 1)
        if type(event) is e.BranchActivated:
            self._go_on_on_branch(event)
        elif type(event) is e.BranchCreated:
            self._created = (event, seq, at)
            self.last_branch = max(self.last_branch, event.branch_id)
        elif type(event) is e.SignalReceived:
            self.waits.received(event, seq=seq, at=at)
        self.run = evolve_run(self.run, event, seq=seq, at=at)

    def apply_to_node(self, event: e.NodeEvent, *, at: int) -> tuple[NodeStatus, NodeStatus]:
        """As `apply`, for what happens to a node; return its status before and after."""
        run, node_id = self.run, event.node_id
        seq = Seq(run.last_seq + 1)
        # As `node`, without a call: every event passes here.
        before = self.nodes.get(node_id) or NodeState(node_id=node_id, branch_id=run.branch_id)
        after = evolve_node(before, event, seq=seq, at=at)
        if type(event) in _NOTED:
            self._note(event, seq, at)
        elif after.status in ENDED and self.waits.are_open:
            self.waits.withdraw(node_id, seq=seq, at=at)
        self.run = evolve_run(run, event, seq=seq, at=at)
        self.nodes[node_id] = after
        return before.status, after.status

    def _note(self, event: e.NodeEvent, seq: Seq, at: int) -> None:
        if isinstance(event, e.StepCompleted):
            self.steps.completed(event)
        elif isinstance(event, e.NodeCheckpointed | e.TriggerCursorAdvanced):
            if leaves_behind(event):
                self.steps.left_behind(event.node_id)
                self.waits.checkpointed(event.node_id, seq=seq)
        elif isinstance(event, e.WaitOpened):
            self.waits.opened(event, self.run.branch_id, seq=seq, at=at)
        else:
            self.waits.settled(event, seq=seq, at=at)

    def _go_on_on_branch(self, activated: e.BranchActivated) -> None:
        if self._created is not None and self._created[0].branch_id == activated.branch_id:
            self._branch(*self._created)
            self._created = None

    def _branch(self, event: e.BranchCreated, seq: Seq, at: int) -> None:
        if event.restored:
            self._restore(event, seq, at)
            return
        self.nodes = branched(self.nodes, event, seq=seq, at=at)
        self.given = event.given
        self.steps.branch(event)
        self.waits.branch(event)

    def _restore(self, event: e.BranchCreated, seq: Seq, at: int) -> None:
        then = self.pasts.get(event.cut)
        if then is None:
            raise JournalDamaged(
                self.run.run_id, f"branch {event.branch_id} goes back to {event.cut}, which is not known"
            )
        self.run = restored_run(then.run, self.run, event)
        self.nodes = restored_nodes(then.nodes, self.nodes, event, seq=seq, at=at)
        self.given = event.given
        self.steps.restore(then.steps, event)
        self.waits.restore(then.waits, event)


def fold(run_id: RunId, log: Iterable[e.Recorded]) -> Projection:
    """Return what a whole log adds up to. Raises if it is not the log of a run that obeyed the law."""
    events = list(log)
    places, entries = places_gone_back_to(events), iter(events)
    first = next(entries, None)
    if first is None or not isinstance(first.event, e.RunCreated):
        raise JournalDamaged(run_id, "the log does not begin with RunCreated")
    projection = Projection(create_run(run_id, first.event, at=first.at, branch_id=first.branch_id, epoch=first.epoch))
    for entry in entries:
        if entry.seq != projection.run.last_seq + 1:
            raise JournalDamaged(run_id, f"event {projection.run.last_seq + 1} is missing before {entry.seq}")
        if projection.run.last_seq in places:
            projection.remember()
        projection.apply(entry.event, at=entry.at)
    return projection
