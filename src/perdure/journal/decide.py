"""What follows from what: given where a run stands and what has just happened, which events come next.

A `Decider` belongs to one run. It records each event into the projection as it decides, so that a decision sees its
own consequences, and hands the events over to be committed. It does no I/O, reads no clock and draws no randomness:
the same projection, plan and happenings give the same events, in a live run, in a test and in a simulation.
"""

from __future__ import annotations

from perdure.errors import JournalDamaged
from perdure.ids import EngineId, Epoch, NodeId
from perdure.journal import events as e
from perdure.journal.checkpoints import Checkpointing
from perdure.journal.forking import Forking
from perdure.journal.mending import Mending
from perdure.journal.readiness import Blocked, Ready, readiness, run_outputs
from perdure.journal.states import (
    NodeState,
    NodeStatus,
    RunStatus,
)
from perdure.journal.streaming import is_generator
from perdure.journal.switching import Switching

RUN_TIMEOUT = "RunTimeout"
"""The type of the error of a run that was driven for longer than it may be."""
RESOURCE_RETRIES = 2
"""An attempt that ran out of memory is tried again this often even where no retries were asked for."""


class Decider(Forking, Mending, Switching, Checkpointing):
    """Decides for one run. `take` hands over what was decided since the last call.

    Whatever happens is recorded at once. What follows from it for other nodes is decided by `proceed`, in portions if the
    caller likes: ten thousand nodes may wait for one. A run that is lost between two portions is none the worse for it,
    because whoever claims it looks at every node again.
    """

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

    def conclude(self, *, at: int) -> None:
        """End the run, or rest it, unless something about its nodes is left to be decided."""
        if not self._looks:
            self._conclude(at)

    # What happens to the run

    def claim(self, engine_id: EngineId, epoch: Epoch, *, previous: EngineId | None, lost: bool, at: int) -> None:
        """Take the run over; attempts that were running are lost with their engine.

        A run that was lost too often without progress is quarantined here, in the claim's own transition: an engine
        that is killed by the run never reaches a handler that could count.
        """
        self._record(e.RunClaimed(engine_id=engine_id, epoch=epoch, previous=previous, lost=lost), at)
        run = self.projection.run
        orphans = [node for node in self.projection.nodes.values() if _is_orphan(node)]
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

    def resolve_version(self, resolved: e.VersionResolved, *, at: int) -> None:
        """Take note of what an alias meant when the run was started."""
        self._record(resolved, at)

    def start(self, *, at: int) -> None:
        """Begin: what waits for nothing is scheduled."""
        self._record(e.RunStarted(), at)
        self._look_at_all()

    def cancel(self, *, reason: str, at: int) -> None:
        """Stop: what has not started is cancelled at once, what runs when its body has ended."""
        self._record(e.RunCancelling(reason=reason), at)
        self._cancel_unstarted("the run was cancelled", at)

    def time_out(self, *, at: int) -> None:
        """The run has taken longer than it was given."""
        seconds = self.projection.run.settings.timeout_seconds
        error = e.ErrorRecord(
            error_class=e.ErrorClass.UNKNOWN, type=RUN_TIMEOUT, message=f"the run took longer than {seconds:g} s"
        )
        self._fail(None, error, at)

    # What happens to attempts

    def start_attempt(self, node_id: NodeId, *, at: int, is_trigger: bool = False) -> int:
        """Start the scheduled attempt of a node, or go on with a suspended one, and return its number."""
        node = self.projection.node(node_id)
        plan = self.plan.nodes[node_id]
        is_anew = node.stream is not None and self.begins_anew(node_id)
        if is_anew:
            assert node.stream is not None, "only a stream begins anew"
            self._drops.append((node, node.stream.checkpointed))
        if node.status is NodeStatus.SUSPENDED:
            self._record(e.NodeResumed(node_id=node_id, attempt=node.attempt, anew=is_anew), at)
            return node.attempt
        started = e.NodeStarted(
            node_id=node_id,
            attempt=node.attempt,
            streams=plan.flow is not None,
            generates=plan.flow is not None and is_generator(plan),
            anew=is_anew,
        )
        self._record(started, at)
        if is_trigger and node.attempt == 1:
            self._record(e.TriggerRegistered(node_id=node_id, trigger_type=plan.node.type, config=plan.node.data), at)
        if plan.readers and node.stream is None:
            self._opened(node_id)
        return node.attempt

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
        else:
            self._cut_off_readers(node_id, at)
            self._look_for_unread(node_id)

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

    def checkpoint(self, saved: e.NodeCheckpointed, *, at: int) -> None:
        """A body has saved how far it is: with how much it had given of its own stream, and read of others, by then."""
        self._record(saved, at)

    def step_completed(
        self, node_id: NodeId, attempt: int, name: str, occurrence: int, result: e.Encoded, *, at: int
    ) -> None:
        """A step inside a body has its result."""
        self._record(
            e.StepCompleted(node_id=node_id, attempt=attempt, name=name, occurrence=occurrence, result=result), at
        )

    # Consequences

    def _settle(self, node_id: NodeId, at: int) -> None:
        """A node is completed or skipped: those that depend on it are to be looked at."""
        self._close_stage(node_id, at)
        plan = self.plan.nodes[node_id]
        for dependent in plan.downstream:
            self._heard(dependent)
        if plan.flow is not None:
            self._look_for_unread(node_id)
            self._drop_read_out(node_id, plan.flow)

    def _follow(self, node_id: NodeId, answer: Ready | Blocked, at: int) -> None:
        """Schedule a node that is ready, or skip one that never will be."""
        self._open_stage(node_id, at)
        match answer:
            case Ready():
                self._schedule(node_id, at)
            case Blocked(reason=reason):
                self._record(e.NodeSkipped(node_id=node_id, reason=reason), at)
                self._opened(node_id)
                self._settle(node_id, at)

    def _may_retry(self, node_id: NodeId, error: e.ErrorRecord) -> bool:
        policy = self.plan.nodes[node_id].policy
        if (
            not error.retryable
            or policy.once
            or self.projection.run.status not in (RunStatus.RUNNING, RunStatus.PAUSING)
        ):
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

    def _quarantine(self, node_id: NodeId | None, at: int) -> None:
        run = self.projection.run
        where = f" at node {node_id!r}" if node_id else ""
        reason = f"lost {run.recoveries} times without progress{where}"
        self._record(e.RunQuarantined(recoveries=run.recoveries, node_id=node_id, reason=reason), at)

    def _conclude(self, at: int) -> None:
        """End the run, or rest it, if nothing in it can move."""
        run = self.projection.run
        if self._live:
            if run.status is RunStatus.PAUSING and not self._running:
                self._record(e.RunPaused(), at)
            elif run.status is RunStatus.RUNNING and not self._running:
                self._rest(at)
            return
        match run.status:
            case RunStatus.PAUSING:
                self._record(e.RunPaused(), at)
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

    def _elapsed_ms(self, at: int) -> int:
        started = self.projection.run.started_at
        return (at - started) // 1_000 if started is not None else 0


def _is_orphan(node: NodeState) -> bool:
    """Whether an attempt is lost with its engine. Of a stream that was closed, all that was to come is recorded."""
    return node.status is NodeStatus.RUNNING and not (node.stream is not None and node.stream.is_closed)
