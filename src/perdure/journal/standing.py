"""Where a run stands while decisions about it are made: what is live, what waits for what, and what was decided.

Every decision is recorded into the projection at once, so that it sees its own consequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from perdure.graph.plan import Plan
from perdure.ids import NodeId, Seq
from perdure.journal import events as e
from perdure.journal.again import Again
from perdure.journal.projection import Projection
from perdure.journal.readiness import is_open
from perdure.journal.states import (
    ENDED,
    SETTLED,
    CheckpointState,
    NodeState,
    NodeStatus,
    RunStatus,
)


def _counts(before: NodeStatus, after: NodeStatus) -> tuple[int, int, int]:
    return (
        (after not in ENDED) - (before not in ENDED and before is not NodeStatus.IDLE),
        (after is NodeStatus.RUNNING) - (before is NodeStatus.RUNNING),
        int(after in SETTLED),
    )


_COUNTS = {(before, after): _counts(before, after) for before in NodeStatus for after in NodeStatus}
"""By the status of a node before and after: how many more are live, run, and are settled."""


class Standing:
    """What all decisions about a run share."""

    def __init__(self, projection: Projection, plan: Plan, *, decided: Iterable[tuple[e.AnyEvent, int]] = ()) -> None:
        self.projection = projection
        self.plan = plan
        self.ready: deque[NodeId] = deque()
        """Scheduled nodes that have not been started, oldest first."""
        self._looks: deque[NodeId] = deque()
        """Nodes that may be ready, or may have to be skipped."""
        self.leaves_to_probes = False
        """The run is about to be let go: it does not rest while a probe may know what became of a node in doubt. Whoever takes it
        up next asks."""
        self._decided = list(decided)
        self._touched: dict[NodeId, None] = {}
        self._has_branched = False
        self._waiting: dict[NodeId, int] = {}
        self._unsettled = 0
        self._live = 0
        self._running = 0
        self._suspended: dict[NodeId, None] = {}
        self._delayed: dict[NodeId, None] = {}
        """Scheduled nodes that have to wait for their time."""
        self.falls_asleep = False
        """Whatever is left in memory of the run only waits, and is being suspended with it."""
        self.hibernate_micros = 0
        """How long a run stays where it is for the sake of something that is due then."""
        self.periodic = 0
        """How many checkpoints the run has that were saved by themselves."""
        self.saved_seq = Seq(0)
        """Up to here there is nothing that the last checkpoint does not hold."""
        self._saved: list[CheckpointState] = []
        self._stages_open: dict[str, int] = {}
        self.cut_off: deque[NodeId] = deque()
        """Running nodes that read a stream which will never be whole."""
        self.settled: deque[str] = deque()
        """Waits for which something has come, by their ids."""
        self.unread: deque[NodeId] = deque()
        """Running nodes whose streams nobody reads any more."""
        self._drops: list[tuple[NodeState, int]] = []
        self._again = Again(plan, projection)
        self._dropped: set[NodeId] = set()
        self._survey()

    def take(self) -> list[tuple[e.AnyEvent, int]]:
        """Return the events decided since the last call, each with its time."""
        decided, self._decided = self._decided, []
        return decided

    def take_touched(self) -> tuple[NodeState, ...] | None:
        """Return the nodes that something has happened to since the last call, as they stand now; None for all of them, because
        the run has gone on on another branch."""
        touched, self._touched = self._touched, {}
        has_branched, self._has_branched = self._has_branched, False
        return None if has_branched else tuple([self.projection.nodes[node_id] for node_id in touched])

    @property
    def has_drops(self) -> bool:
        """Whether there are entries that nobody needs any more, and that were not taken yet."""
        return bool(self._drops)

    def take_drops(self) -> list[tuple[NodeState, int]]:
        """Return the nodes whose entries nobody needs any more, each from a position on, since the last call."""
        drops, self._drops = self._drops, []
        return drops

    def take_saved(self) -> tuple[CheckpointState, ...]:
        """Return the checkpoints that were saved since the last call."""
        if not self._saved:
            return ()
        saved, self._saved = self._saved, []
        return tuple(saved)

    @property
    def decided(self) -> int:
        """How many events have not been taken yet."""
        return len(self._decided)

    @property
    def has_more(self) -> bool:
        """Whether there are nodes left that may have to be decided about."""
        return bool(self._looks)

    def is_current(self, node_id: NodeId, attempt: int) -> bool:
        """Whether a result of this attempt still counts."""
        node = self.projection.nodes.get(node_id)
        if node is None or node.status is not NodeStatus.RUNNING:
            return False
        return node.attempt == attempt and not node.attempt_ended

    def _record(self, event: e.AnyEvent, at: int) -> None:
        if isinstance(event, e.NodeEvent):
            before, after = self.projection.apply_to_node(event, at=at)
            self._touched[event.node_id] = None
            if before is not after:
                self._count(before, after)
                if self._suspended:
                    self._suspended.pop(event.node_id, None)
                if self._delayed:
                    self._delayed.pop(event.node_id, None)
        else:
            self.projection.apply_to_run(event, at=at)
            self._has_branched = self._has_branched or type(event) is e.BranchCreated
        self._decided.append((event, at))

    def _count(self, before: NodeStatus, after: NodeStatus) -> None:
        live, running, settled = _COUNTS[before, after]
        self._live += live
        self._running += running
        self._unsettled -= settled

    def _heard(self, node_id: NodeId) -> None:
        left = self._waiting[node_id] = self._waiting[node_id] - 1
        if (not left or self.plan.nodes[node_id].waits_for_first) and self._may_be_ready(node_id):
            self._looks.append(node_id)

    def _look_at_all(self) -> None:
        self._looks.extend(filter(self._is_due_for_a_look, self._waiting))

    def _is_due_for_a_look(self, node_id: NodeId) -> bool:
        if self._waiting[node_id] and not self.plan.nodes[node_id].waits_for_first:
            return False
        return self._may_be_ready(node_id)

    def _may_be_ready(self, node_id: NodeId) -> bool:
        state = self.projection.nodes.get(node_id)
        is_idle = state is None or state.status is NodeStatus.IDLE
        return is_idle and self.projection.run.status is RunStatus.RUNNING

    def _schedule(self, node_id: NodeId, at: int, *, due: int | None = None) -> None:
        attempt = self.projection.node(node_id).attempt + 1
        self._record(e.NodeScheduled(node_id=node_id, attempt=attempt, due=due), at)
        if due is not None:
            self._delayed[node_id] = None
        self.ready.append(node_id)

    def _fail(self, node_id: NodeId | None, error: e.ErrorRecord, at: int) -> None:
        self._record(e.RunFailing(node_id=node_id, error=error), at)
        self._cancel_unstarted("the run is failing", at)

    def _cancel_unstarted(self, reason: str, at: int) -> None:
        for node in list(self.projection.nodes.values()):
            if node.status in (NodeStatus.SCHEDULED, NodeStatus.SUSPENDED, NodeStatus.IN_DOUBT):
                self._record(e.NodeCancelled(node_id=node.node_id, attempt=node.attempt, reason=reason), at)
        self.ready.clear()

    def _in_doubt(self) -> list[NodeId]:
        if not self._once_nodes:
            return []
        return [node_id for node_id in self._once_nodes if self.projection.status(node_id) is NodeStatus.IN_DOUBT]

    def may_go_on(self, node_id: NodeId) -> bool:
        """Whether a suspended node has something to go on for."""
        node = self.projection.node(node_id)
        if node.status is not NodeStatus.SUSPENDED or self.projection.run.status is not RunStatus.RUNNING:
            return False
        if node.due is not None or self.falls_asleep:
            return node.due is not None
        return (node.stream is not None and node.stream.wants_items) or not self.projection.waits.of(node_id)

    def _go_on(self) -> None:
        self.ready.extend(filter(self.may_go_on, self._suspended))

    # Stages

    def _open_stage(self, node_id: NodeId, at: int) -> None:
        stage = self.plan.nodes[node_id].node.stage
        if stage is not None and stage not in self._stages_open:
            self._stages_open[stage] = len(self.plan.stages[stage])
            self._record(e.StageStarted(stage=stage), at)

    def _close_stage(self, node_id: NodeId, at: int) -> None:
        stage = self.plan.nodes[node_id].node.stage
        if stage is None:
            return
        self._stages_open[stage] -= 1
        if not self._stages_open[stage]:
            self._record(e.StageCompleted(stage=stage), at)

    # Where the run stands

    def _survey_again(self) -> None:
        ready, self.ready = self.ready, deque()
        self._stages_open.clear()
        self._looks.clear()
        self._survey()
        self.ready = ready  # the others wait for a place, or for their time
        self._go_on()
        self._look_at_all()

    def _survey(self) -> None:
        """Derive the counters from the projection: O(V + E), when a run is taken up, or goes on on another branch."""
        nodes = self.projection.nodes
        if not nodes:
            self._unsettled = len(self.plan.nodes)
            self._live = self._running = 0
            self._suspended, self._delayed = {}, {}
            self._once_nodes = list(self.plan.once)
            self._waiting = dict(self.plan.awaited)
            return
        settled = {node_id for node_id, node in nodes.items() if node.status in SETTLED}
        self._unsettled = len(self.plan.nodes) - len(settled)
        self._live = sum(node.status not in ENDED and node.status is not NodeStatus.IDLE for node in nodes.values())
        self._running = sum(node.status is NodeStatus.RUNNING for node in nodes.values())
        self._suspended = {node_id: None for node_id, node in nodes.items() if node.status is NodeStatus.SUSPENDED}
        self._delayed = {
            node_id: None
            for node_id, node in nodes.items()
            if node.status is NodeStatus.SCHEDULED and node.due is not None
        }
        self._once_nodes = [
            node_id
            for node_id, plan in self.plan.nodes.items()
            # The doctor may leave others in doubt, too.
            if plan.policy.once or self.projection.status(node_id) is NodeStatus.IN_DOUBT
        ]
        for node_id, plan in self.plan.nodes.items():
            unopened = sum(source not in settled and not is_open(source, self.projection) for source in plan.opened_by)
            self._waiting[node_id] = sum(source not in settled for source in plan.upstream) + unopened
        scheduled = [node for node in nodes.values() if node.status is NodeStatus.SCHEDULED]
        self.ready.extend(node.node_id for node in sorted(scheduled, key=lambda node: node.last_seq))
        self._go_on()
        for stage, members in self.plan.stages.items():
            if any(self.projection.status(member) is not NodeStatus.IDLE for member in members):
                self._stages_open[stage] = sum(member not in settled for member in members)
