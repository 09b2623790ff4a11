"""What follows from what: given where a run stands and what has just happened, which events come next.

A `Decider` belongs to one run. It records each event into the projection as it decides, so that a decision sees its
own consequences, and hands the events over to be committed. It does no I/O, reads no clock and draws no randomness:
the same projection, plan and happenings give the same events, in a live run, in a test and in a simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from perdure.errors import JournalDamaged
from perdure.graph.plan import Plan
from perdure.ids import EngineId, Epoch, NodeId
from perdure.journal import events as e
from perdure.journal.projection import Projection
from perdure.journal.readiness import Blocked, Ready, readiness, run_outputs
from perdure.journal.states import ENDED, SETTLED, NodeStatus, RunStatus

IN_DOUBT = "in doubt: "
"""How the reason of a run begins that rests because someone has to say what became of a node."""
RESOURCE_RETRIES = 2
"""An attempt that ran out of memory is tried again this often even where no retries were asked for."""


class Decider:
    """Decides for one run. `take` hands over what was decided since the last call.

    Whatever happens is recorded at once. What follows from it for other nodes is decided by `proceed`, in portions if the
    caller likes: ten thousand nodes may wait for one. A run that is lost between two portions is none the worse for it,
    because whoever claims it looks at every node again.
    """

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
        self._waiting: dict[NodeId, int] = {}
        self._unsettled = 0
        self._live = 0
        self._stages_open: dict[str, int] = {}
        self._survey()

    def take(self) -> list[tuple[e.AnyEvent, int]]:
        """Return the events decided since the last call, each with its time."""
        decided, self._decided = self._decided, []
        return decided

    @property
    def decided(self) -> int:
        """How many events have not been taken yet."""
        return len(self._decided)

    @property
    def has_more(self) -> bool:
        """Whether there are nodes left that may have to be decided about."""
        return bool(self._looks)

    def proceed(self, *, at: int, most: int | None = None) -> bool:
        """Decide what follows, about `most` nodes at most. True if there is more to decide, False if that was all."""
        while self._looks:
            node_id = self._looks.popleft()
            if not self._is_due_for_a_look(node_id):
                continue
            answer = readiness(self.plan.nodes[node_id], self.projection)
            if answer is None:  # it is too early, and it will be looked at again
                continue
            if most == 0:
                self._looks.appendleft(node_id)
                return True
            self._follow(node_id, answer, at)
            most = None if most is None else most - 1
        self._conclude(at)
        return False

    # What happens to the run

    def claim(self, engine_id: EngineId, epoch: Epoch, *, previous: EngineId | None, lost: bool, at: int) -> None:
        """Take the run over; attempts that were running are lost with their engine.

        A run that was lost too often without progress is quarantined here, in the claim's own transition: an engine
        that is killed by the run never reaches a handler that could count.
        """
        self._record(e.RunClaimed(engine_id=engine_id, epoch=epoch, previous=previous, lost=lost), at)
        run = self.projection.run
        orphans = [node for node in self.projection.nodes.values() if node.status is NodeStatus.RUNNING]
        is_ending = run.status in (RunStatus.FAILING, RunStatus.CANCELLING)  # no body of it will run again
        if lost and not is_ending and run.recoveries > run.settings.max_recoveries:
            for node in orphans:
                self._record(e.AttemptLost(node_id=node.node_id, attempt=node.attempt, reason="engine lost"), at)
                self._after_lost(node.node_id, at)
            self._quarantine(orphans[0].node_id if orphans else None, at)
            return
        for node in orphans:
            self.attempt_lost(node.node_id, reason="engine lost", at=at)
        if self.projection.run.status is RunStatus.RECOVERING:
            self._record(e.RunRecovered(reason="engine lost", lost_attempts=len(orphans)), at)
        self._look_at_all()

    def start(self, *, at: int) -> None:
        """Begin: what waits for nothing is scheduled."""
        self._record(e.RunStarted(), at)
        self._look_at_all()

    def resume(self, *, reason: str, at: int) -> None:
        """Go on with a run that rested."""
        self._record(e.RunResumed(reason=reason), at)
        self._look_at_all()

    def cancel(self, *, reason: str, at: int) -> None:
        """Stop: what has not started is cancelled at once, what runs when its body has ended."""
        self._record(e.RunCancelling(reason=reason), at)
        self._cancel_unstarted("the run was cancelled", at)

    def time_out(self, *, at: int) -> None:
        """The run has taken longer than it was given."""
        seconds = self.projection.run.settings.timeout_seconds
        error = e.ErrorRecord(
            error_class=e.ErrorClass.UNKNOWN, type="RunTimeout", message=f"the run took longer than {seconds:g} s"
        )
        self._fail(None, error, at)

    # What happens to attempts

    def start_attempt(self, node_id: NodeId, *, at: int) -> int:
        """Start the scheduled attempt of a node and return its number."""
        node = self.projection.node(node_id)
        self._record(e.NodeStarted(node_id=node_id, attempt=node.attempt), at)
        return node.attempt

    def is_current(self, node_id: NodeId, attempt: int) -> bool:
        """Whether a result of this attempt still counts."""
        node = self.projection.node(node_id)
        return node.status is NodeStatus.RUNNING and node.attempt == attempt and not node.attempt_ended

    def attempt_completed(
        self, node_id: NodeId, attempt: int, outputs: dict[str, e.Encoded], *, duration_ms: int, at: int
    ) -> None:
        """The body returned: its outputs are the node's, and dependents may be ready."""
        if not self.is_current(node_id, attempt):
            self._record(e.AttemptResultDiscarded(node_id=node_id, attempt=attempt, outcome="completed"), at)
            return
        self._record(e.NodeCompleted(node_id=node_id, attempt=attempt, outputs=outputs, duration_ms=duration_ms), at)
        self._settle(node_id, at)

    def attempt_failed(
        self, node_id: NodeId, attempt: int, error: e.ErrorRecord, *, duration_ms: int, delay_micros: int, at: int
    ) -> None:
        """The body raised: it is tried again after `delay_micros` if the budget allows, else the node has failed."""
        if not self.is_current(node_id, attempt):
            self._record(e.AttemptResultDiscarded(node_id=node_id, attempt=attempt, outcome="failed"), at)
            return
        final = not self._may_retry(node_id, error)
        self._record(
            e.NodeFailed(node_id=node_id, attempt=attempt, error=error, final=final, duration_ms=duration_ms), at
        )
        if not final:
            self._schedule(node_id, at, due=at + delay_micros if delay_micros else None)
        elif self.projection.run.status is RunStatus.RUNNING and self.projection.run.settings.on_failure == "stop":
            self._fail(node_id, error, at)

    def attempt_cancelled(self, node_id: NodeId, attempt: int, *, reason: str, at: int) -> None:
        """The body was told to stop, and did."""
        if self.is_current(node_id, attempt):
            self._record(e.NodeCancelled(node_id=node_id, attempt=attempt, reason=reason), at)

    def attempt_lost(self, node_id: NodeId, *, reason: str, at: int, has_begun: bool = True) -> None:
        """Nobody will ever bring the attempt's result. The next one follows, unless the node must not be repeated and its body
        may have begun."""
        node = self.projection.node(node_id)
        self._record(e.AttemptLost(node_id=node_id, attempt=node.attempt, reason=reason), at)
        if self.projection.run.status in (RunStatus.FAILING, RunStatus.CANCELLING):
            self._record(e.NodeCancelled(node_id=node_id, attempt=node.attempt, reason=reason), at)
        else:
            self._after_lost(node_id, at, has_begun=has_begun)

    def resolve(self, node_id: NodeId, event: e.NodeResolved, *, at: int) -> None:
        """A probe or a person has said what became of an attempt in doubt."""
        self._record(event, at)
        match event.resolution:
            case "done":
                self._settle(node_id, at)
            case "retry":
                self.ready.append(node_id)
            case "fail":
                error = event.error or e.ErrorRecord(
                    error_class=e.ErrorClass.UNKNOWN, type="InDoubt", message="resolved as failed"
                )
                if self.projection.run.settings.on_failure == "stop":
                    self._fail(node_id, error, at)

    def checkpoint(self, node_id: NodeId, attempt: int, state: e.Encoded, *, at: int) -> None:
        """A body has saved how far it is."""
        self._record(e.NodeCheckpointed(node_id=node_id, attempt=attempt, state=state), at)

    def step_completed(
        self, node_id: NodeId, attempt: int, name: str, occurrence: int, result: e.Encoded, *, at: int
    ) -> None:
        """A step inside a body has its result."""
        self._record(
            e.StepCompleted(node_id=node_id, attempt=attempt, name=name, occurrence=occurrence, result=result), at
        )

    # Consequences

    def _record(self, event: e.AnyEvent, at: int) -> None:
        if isinstance(event, e.NodeEvent):
            before, after = self.projection.apply_to_node(event, at=at)
            if before is not after:
                self._count(before, after)
        else:
            self.projection.apply(event, at=at)
        self._decided.append((event, at))

    def _count(self, before: NodeStatus, after: NodeStatus) -> None:
        self._live += (after not in ENDED) - (before not in ENDED and before is not NodeStatus.IDLE)
        if after in SETTLED:
            self._unsettled -= 1

    def _settle(self, node_id: NodeId, at: int) -> None:
        """A node is completed or skipped: those that depend on it are to be looked at."""
        self._close_stage(node_id, at)
        for dependent in self.plan.nodes[node_id].downstream:
            self._waiting[dependent] -= 1
            if self._is_due_for_a_look(dependent):
                self._looks.append(dependent)

    def _look_at_all(self) -> None:
        self._looks.extend(filter(self._is_due_for_a_look, self._waiting))

    def _is_due_for_a_look(self, node_id: NodeId) -> bool:
        if self._waiting[node_id] and not self.plan.nodes[node_id].waits_for_first:
            return False
        return self.projection.status(node_id) is NodeStatus.IDLE and self.projection.run.status is RunStatus.RUNNING

    def _follow(self, node_id: NodeId, answer: Ready | Blocked, at: int) -> None:
        """Schedule a node that is ready, or skip one that never will be."""
        self._open_stage(node_id, at)
        match answer:
            case Ready():
                self._schedule(node_id, at)
            case Blocked(reason=reason):
                self._record(e.NodeSkipped(node_id=node_id, reason=reason), at)
                self._settle(node_id, at)

    def _schedule(self, node_id: NodeId, at: int, *, due: int | None = None) -> None:
        attempt = self.projection.node(node_id).attempt + 1
        self._record(e.NodeScheduled(node_id=node_id, attempt=attempt, due=due), at)
        self.ready.append(node_id)

    def _may_retry(self, node_id: NodeId, error: e.ErrorRecord) -> bool:
        policy = self.plan.nodes[node_id].policy
        if not error.retryable or policy.once or self.projection.run.status is not RunStatus.RUNNING:
            return False
        budget = policy.retries
        if error.error_class is e.ErrorClass.RESOURCE:
            budget = max(budget, RESOURCE_RETRIES)
        return self.projection.node(node_id).failures < budget

    def _after_lost(self, node_id: NodeId, at: int, *, has_begun: bool = True) -> None:
        if has_begun and self.plan.nodes[node_id].policy.once:
            attempt = self.projection.node(node_id).attempt
            self._record(e.NodeInDoubt(node_id=node_id, attempt=attempt), at)
        else:
            self._schedule(node_id, at)

    def _fail(self, node_id: NodeId | None, error: e.ErrorRecord, at: int) -> None:
        self._record(e.RunFailing(node_id=node_id, error=error), at)
        self._cancel_unstarted("the run is failing", at)

    def _cancel_unstarted(self, reason: str, at: int) -> None:
        for node in list(self.projection.nodes.values()):
            if node.status in (NodeStatus.SCHEDULED, NodeStatus.SUSPENDED, NodeStatus.IN_DOUBT):
                self._record(e.NodeCancelled(node_id=node.node_id, attempt=node.attempt, reason=reason), at)
        self.ready.clear()

    def _quarantine(self, node_id: NodeId | None, at: int) -> None:
        run = self.projection.run
        where = f" at node {node_id!r}" if node_id else ""
        reason = f"lost {run.recoveries} times without progress{where}"
        self._record(e.RunQuarantined(recoveries=run.recoveries, node_id=node_id, reason=reason), at)

    def _conclude(self, at: int) -> None:
        """End the run, or rest it, if nothing in it can move."""
        run = self.projection.run
        if self._live:
            if run.status is RunStatus.RUNNING and self._only_doubt_is_left() and not self._is_left_to_probes():
                self._record(e.RunSuspended(reason=IN_DOUBT + ", ".join(self._in_doubt())), at)
            return
        match run.status:
            case RunStatus.RUNNING if not self._unsettled:
                outputs = run_outputs(self.plan, self.projection)
                self._record(e.RunCompleted(outputs=outputs, duration_ms=self._elapsed_ms(at)), at)
            case RunStatus.RUNNING:
                failed = next(
                    (node for node in self.projection.nodes.values() if node.status is NodeStatus.FAILED), None
                )
                if failed is None or failed.error is None:
                    raise JournalDamaged(run.run_id, "nothing in the run can move, and nothing has failed")
                self._record(e.RunFailing(node_id=failed.node_id, error=failed.error), at)
                self._record(e.RunFailed(node_id=failed.node_id, error=failed.error), at)
            case RunStatus.FAILING:
                assert run.error is not None
                self._record(e.RunFailed(node_id=run.failed_node, error=run.error), at)
            case RunStatus.CANCELLING:
                self._record(e.RunCancelled(reason=run.reason), at)
            case _:
                pass

    def _only_doubt_is_left(self) -> bool:
        in_doubt = len(self._in_doubt())
        return bool(in_doubt) and in_doubt == self._live

    def _is_left_to_probes(self) -> bool:
        return self.leaves_to_probes and any(self.plan.nodes[node_id].policy.probe for node_id in self._in_doubt())

    def _in_doubt(self) -> list[NodeId]:
        if not self._once_nodes:
            return []
        return [node_id for node_id in self._once_nodes if self.projection.status(node_id) is NodeStatus.IN_DOUBT]

    def _elapsed_ms(self, at: int) -> int:
        started = self.projection.run.started_at
        return (at - started) // 1_000 if started is not None else 0

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

    def _survey(self) -> None:
        """Derive the counters from the projection: O(V + E), once, when a run is taken up."""
        nodes = self.projection.nodes
        settled = {node_id for node_id, node in nodes.items() if node.status in SETTLED}
        self._unsettled = len(self.plan.nodes) - len(settled)
        self._live = sum(node.status not in ENDED and node.status is not NodeStatus.IDLE for node in nodes.values())
        self._once_nodes = [node_id for node_id, plan in self.plan.nodes.items() if plan.policy.once]
        for node_id, plan in self.plan.nodes.items():
            self._waiting[node_id] = sum(source not in settled for source in plan.upstream)
        scheduled = [node for node in nodes.values() if node.status is NodeStatus.SCHEDULED]
        self.ready.extend(node.node_id for node in sorted(scheduled, key=lambda node: node.last_seq))
        for stage, members in self.plan.stages.items():
            if any(member in nodes for member in members):
                self._stages_open[stage] = sum(member not in settled for member in members)
