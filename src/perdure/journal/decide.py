"""What follows from what: given where a run stands and what has just happened, which events come next.

A `Decider` belongs to one run. It records each event into the projection as it decides, so that a decision sees its
own consequences, and hands the events over to be committed. It does no I/O, reads no clock and draws no randomness:
the same projection, plan and happenings give the same events, in a live run, in a test and in a simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from perdure.errors import JournalDamaged
from perdure.graph.model import STREAM_INPUT
from perdure.graph.plan import Flow, NodePlan, Plan
from perdure.ids import BranchId, EngineId, Epoch, NodeId
from perdure.journal import events as e
from perdure.journal.again import Again
from perdure.journal.projection import Projection
from perdure.journal.readiness import Blocked, Ready, is_open, is_read_out, readiness, run_outputs
from perdure.journal.states import (
    ENDED,
    SETTLED,
    WAITING,
    NodeState,
    NodeStatus,
    RunStatus,
    SignalState,
    WaitKind,
    WaitState,
)

IN_DOUBT = "in doubt: "
"""How the reason of a run begins that rests because someone has to say what became of a node."""
RETRY_MICROS = 300_000_000
"""A run in which nothing but a node that is tried again is left stays in memory for so long: shorter pauses are kept exactly,
whatever the clocks of two engines say."""
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
        self._running = 0
        self._suspended: dict[NodeId, None] = {}
        self._delayed: dict[NodeId, None] = {}
        """Scheduled nodes that have to wait for their time."""
        self.falls_asleep = False
        """Whatever is left in memory of the run only waits, and is being suspended with it."""
        self.hibernate_micros = 0
        """How long a run stays where it is for the sake of something that is due then."""
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

    def take_drops(self) -> list[tuple[NodeState, int]]:
        """Return the nodes whose entries nobody needs any more, each from a position on, since the last call."""
        drops, self._drops = self._drops, []
        return drops

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

    def start(self, *, at: int) -> None:
        """Begin: what waits for nothing is scheduled."""
        self._record(e.RunStarted(), at)
        self._look_at_all()

    def resume(self, *, reason: str, at: int) -> None:
        """Go on with a run that rested."""
        self._record(e.RunResumed(reason=reason), at)
        self.falls_asleep = False
        self._go_on()
        self._look_at_all()
        failed = next((node for node in self.projection.nodes.values() if node.status is NodeStatus.FAILED), None)
        if failed is not None and failed.error is not None and self.projection.run.settings.on_failure == "stop":
            self._fail(failed.node_id, failed.error, at)  # it failed while the run was being paused

    def pause(self, *, reason: str, at: int) -> None:
        """Begin nothing more. The run is paused when no body runs any more; what those that run come to still counts."""
        if self.projection.run.status in WAITING:
            self._record(e.RunResumed(reason="to be paused"), at)
        self._record(e.RunPausing(reason=reason), at)
        self._looks.clear()
        self.ready.clear()
        self._conclude(at)

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
        """Start the scheduled attempt of a node, or go on with a suspended one, and return its number."""
        node = self.projection.node(node_id)
        plan = self.plan.nodes[node_id]
        is_anew = self.begins_anew(node_id)
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
            generates=_is_generator(plan),
            anew=is_anew,
        )
        self._record(started, at)
        if plan.readers and node.stream is None:
            self._opened(node_id)
        return node.attempt

    def begins_anew(self, node_id: NodeId) -> bool:
        """Whether what earlier attempts gave after their last checkpoint is of no use: nobody has seen it."""
        plan, node = self.plan.nodes[node_id], self.projection.node(node_id)
        is_held = plan.policy.replay == "hold" and plan.flow is not None and not plan.flow.mapped
        return is_held and node.stream is not None and node.stream.entries > node.stream.checkpointed

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
        else:
            self._cut_off_readers(node_id, at)
            self._look_for_unread(node_id)

    def attempt_cancelled(self, node_id: NodeId, attempt: int, *, reason: str, at: int) -> None:
        """The body was told to stop, and did."""
        if self.is_current(node_id, attempt):
            self._record(e.NodeCancelled(node_id=node_id, attempt=attempt, reason=reason), at)
            self._cut_off_readers(node_id, at)
            self._look_for_unread(node_id)

    def attempt_suspended(
        self,
        node_id: NodeId,
        attempt: int,
        *,
        reason: str,
        at: int,
        goes_on: bool = False,
    ) -> None:
        """The body waits, and is no longer in memory. It goes on when something comes that it waits for; if it waits for nothing
        from outside, with the run."""
        if not self.is_current(node_id, attempt):
            return
        if self.projection.run.status in (RunStatus.FAILING, RunStatus.CANCELLING):
            self.attempt_cancelled(node_id, attempt, reason=reason, at=at)
            return
        suspended = e.NodeSuspended(node_id=node_id, attempt=attempt, reason=reason, goes_on=goes_on)
        self._record(suspended, at)
        self._suspended[node_id] = None
        if self.may_go_on(node_id):
            self.ready.append(node_id)

    def may_go_on(self, node_id: NodeId) -> bool:
        """Whether a suspended node has something to go on for."""
        node = self.projection.node(node_id)
        if node.status is not NodeStatus.SUSPENDED or self.projection.run.status is not RunStatus.RUNNING:
            return False
        return node.due is not None or not (self.falls_asleep or self.projection.waits.of(node_id))

    def _go_on(self) -> None:
        self.ready.extend(filter(self.may_go_on, self._suspended))

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

    def checkpoint(
        self,
        node_id: NodeId,
        attempt: int,
        state: e.Encoded,
        *,
        at: int,
        emitted: int = 0,
        consumed: dict[str, int] | None = None,
    ) -> None:
        """A body has saved how far it is: with how much it had given of its own stream, and read of others, by then."""
        saved = e.NodeCheckpointed(
            node_id=node_id, attempt=attempt, state=state, emitted=emitted, consumed=consumed or {}
        )
        self._record(saved, at)

    # What comes from outside

    def stir(self, *, at: int) -> None:
        """Something has come for a node that waits for it without having said so: let those go on that wait for items."""
        if self.projection.run.status in WAITING and not self._in_doubt():
            self.resume(reason="something came", at=at)
        elif self.falls_asleep:
            self.falls_asleep = False
            self._go_on()

    def wait_opened(self, event: e.AnyWait, *, at: int) -> None:
        """A body waits for something. A signal may have come before."""
        self._record(event, at)
        if isinstance(event, e.SignalAwaited) and (signal := self.projection.waits.untaken(event.signal)) is not None:
            self._settle_wait(_taken(event.node_id, event.wait_id, signal), at)

    def answered(self, wait: WaitState, answer: e.Encoded | None, *, by: str, at: int) -> None:
        """Somebody has answered, or the time for it is over."""
        self._settle_wait(
            e.InteractionResponded(node_id=wait.node_id, interaction_id=wait.wait_id, answer=e.maybe(answer), by=by), at
        )

    def signal_received(self, signal_id: str, name: str, value: e.Encoded, *, at: int) -> None:
        """A signal has come: whoever has waited longest for it gets it, and if nobody does, it is kept."""
        if self.projection.waits.has_signal(signal_id):
            return
        self._record(e.SignalReceived(name=name, signal_id=signal_id, value=value), at)
        waiting = [wait for wait in self.projection.waits.open() if wait.signal == name]
        signal = self.projection.waits.untaken(name)
        if waiting and signal is not None:
            first = min(waiting, key=lambda wait: wait.last_seq)
            self._settle_wait(_taken(first.node_id, first.wait_id, signal), at)

    def time_came(self, wait: WaitState, *, at: int) -> None:
        """The time has come for which a body sleeps, or until which it waits for a signal."""
        if wait.kind is WaitKind.SLEEP:
            self._settle_wait(e.TimerFired(node_id=wait.node_id, timer_id=wait.wait_id), at)
        else:
            self._settle_wait(e.SignalTaken(node_id=wait.node_id, wait_id=wait.wait_id), at)

    def _settle_wait(self, event: e.InteractionResponded | e.TimerFired | e.SignalTaken, at: int) -> None:
        if self.projection.run.status in WAITING:
            self.resume(reason=f"{event.node_id} goes on", at=at)
        self.falls_asleep = False
        self._record(event, at)
        self.settled.append(_wait_of(event))
        self._go_on()

    # What happens to streams

    def entries_recorded(
        self,
        node_id: NodeId,
        attempt: int,
        ranges: tuple[tuple[int, int], ...],
        digest: str,
        *,
        at: int,
        consumed: dict[str, int] | None = None,
    ) -> None:
        """A batch of entries of the node's stream goes to the store with this decision."""
        self._record(
            e.OutboxEnqueued(node_id=node_id, attempt=attempt, ranges=ranges, digest=digest, consumed=consumed or {}),
            at,
        )

    def item_failed(
        self,
        node_id: NodeId,
        attempt: int,
        position: int,
        item_attempt: int,
        error: e.ErrorRecord,
        *,
        final: bool,
        at: int,
    ) -> None:
        """An attempt at one item has failed."""
        self._record(
            e.ItemFailed(
                node_id=node_id,
                attempt=attempt,
                position=position,
                item_attempt=item_attempt,
                error=error,
                final=final,
            ),
            at,
        )

    def must_not_begin_again(self, node_id: NodeId) -> NodeId | None:
        """Return a node that would begin again with this one, must run at most once and has been started, if there is one."""
        for other in self._again.begin_with(node_id):
            if self.plan.nodes[other].policy.once and self.projection.node(other).started_at is not None:
                return other
        return None

    def replay_differs(self, node_id: NodeId, *, reason: str, at: int) -> tuple[NodeId, ...]:
        """A node that is run again gives something else than before: the run goes on on a branch on which nobody has seen
        what it gave. Return the nodes that begin again there."""
        run = self.projection.run
        dropped = tuple(other for other in self._again.begin_with(node_id) if other in self.projection.nodes)
        branch_id = BranchId(run.branch_id + 1)
        created = e.BranchCreated(
            branch_id=branch_id,
            parent=run.branch_id,
            cut=run.last_seq,
            dropped=dropped,
            replayed=node_id,
            reason=reason,
        )
        self._record(created, at)
        self._record(e.BranchActivated(branch_id=branch_id), at)
        self._dropped.difference_update(dropped)
        self.ready = deque(other for other in self.ready if other not in dropped)
        self._survey_again()
        return dropped

    def stream_closed(self, node_id: NodeId, attempt: int, *, at: int, unread: bool = False) -> None:
        """The node's stream has ended well, and all of it is recorded: no attempt at the node follows."""
        stream = self.projection.node(node_id).stream
        assert stream is not None, "only streams are closed"
        self._record(e.OutboxClosed(node_id=node_id, attempt=attempt, entries=stream.entries, unread=unread), at)

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
                if self._suspended:
                    self._suspended.pop(event.node_id, None)
                if self._delayed:
                    self._delayed.pop(event.node_id, None)
        else:
            self.projection.apply(event, at=at)
        self._decided.append((event, at))

    def _count(self, before: NodeStatus, after: NodeStatus) -> None:
        self._live += (after not in ENDED) - (before not in ENDED and before is not NodeStatus.IDLE)
        self._running += (after is NodeStatus.RUNNING) - (before is NodeStatus.RUNNING)
        if after in SETTLED:
            self._unsettled -= 1

    def _settle(self, node_id: NodeId, at: int) -> None:
        """A node is completed or skipped: those that depend on it are to be looked at."""
        self._close_stage(node_id, at)
        plan = self.plan.nodes[node_id]
        for dependent in plan.downstream:
            self._heard(dependent)
        if plan.flow is not None:
            self._look_for_unread(node_id)
            self._drop_read_out(node_id, plan.flow)

    def _opened(self, node_id: NodeId) -> None:
        """The node's stream flows, or there will be none: those that read it are to be looked at."""
        for reader in self.plan.nodes[node_id].readers:
            if node_id in self.plan.nodes[reader].opened_by:
                self._heard(reader)

    def _heard(self, node_id: NodeId) -> None:
        self._waiting[node_id] -= 1
        if self._is_due_for_a_look(node_id):
            self._looks.append(node_id)

    def _drop_read_out(self, node_id: NodeId, flow: Flow) -> None:
        """A node that has to do with streams is settled: some of them may not be needed any more, item by item."""
        # While a generator may give something else than before, nodes that depend on it may begin again with what they read.
        sources = self.plan.nodes if flow.is_generator else (node_id, *(edge.source for edge in flow.live))
        done = [
            source for source in dict.fromkeys(sources) if source not in self._dropped and self._is_read_out(source)
        ]
        if not done:
            return
        again = self._again.may_begin()
        for source in done:
            if again.isdisjoint(self.plan.nodes[source].readers):
                self._dropped.add(source)
                self._drops.append((self.projection.node(source), 0))

    def _is_read_out(self, node_id: NodeId) -> bool:
        return is_read_out(node_id, self.plan, self.projection)

    def is_unread(self, node_id: NodeId) -> bool:
        """Whether a node gives a stream that nobody reads any more, and of which nobody wants the whole."""
        return self._again.is_unread(node_id)

    def _look_for_unread(self, node_id: NodeId) -> None:
        """A node has ended, well or not: streams that it has read may have no reader any more."""
        flow = self.plan.nodes[node_id].flow
        if flow is not None:
            # When a generator is done, fewer may begin again, and inputs may be left by all.
            inputs = self._again.inputs if flow.is_generator else ()
            self.unread.extend(filter(self.is_unread, (node_id, *(edge.source for edge in flow.live), *inputs)))

    def _cut_off_readers(self, node_id: NodeId, at: int) -> None:
        """The node's stream will never be whole, so that nothing can come of those that read it."""
        for reader in self.plan.nodes[node_id].readers:
            node = self.projection.node(reader)
            if node.status is NodeStatus.SCHEDULED:
                reason = f"the stream of {node_id} was cut off"
                self._record(e.NodeCancelled(node_id=reader, attempt=node.attempt, reason=reason), at)
                self._cut_off_readers(reader, at)
                self._look_for_unread(reader)
            elif node.status is NodeStatus.RUNNING:
                self.cut_off.append(reader)

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
                self._opened(node_id)
                self._settle(node_id, at)

    def _schedule(self, node_id: NodeId, at: int, *, due: int | None = None) -> None:
        attempt = self.projection.node(node_id).attempt + 1
        self._record(e.NodeScheduled(node_id=node_id, attempt=attempt, due=due), at)
        if due is not None:
            self._delayed[node_id] = None
        self.ready.append(node_id)

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

    def _rest(self, at: int) -> None:
        """Suspend the run if all that is left of it waits: for answers, signals, a time or somebody's word."""
        in_doubt = self._in_doubt()
        if len(in_doubt) + len(self._suspended) + len(self._delayed) < self._live or self._is_left_to_probes():
            return
        waits = self.projection.waits.open()
        dues = [wait.due for wait in waits if wait.due is not None]
        retries = [self._retried_at(node_id, at) for node_id in self._delayed]
        is_soon = any(due - at <= self.hibernate_micros for due in dues)
        is_soon = is_soon or any(due - at <= max(self.hibernate_micros, RETRY_MICROS) for due in retries)
        dues += retries
        waits_for_input = any(self.plan.nodes[node_id].node.type == STREAM_INPUT for node_id in self._suspended)
        has_reason = waits or in_doubt or self._delayed or waits_for_input
        if is_soon or not has_reason or any(map(self.may_go_on, self._suspended)):
            return
        asked = [wait for wait in waits if wait.kind is WaitKind.ASK]
        reason = _reason(in_doubt, asked, waits, list(self._delayed))
        wake_at = min(dues, default=None)
        self._record(e.RunSuspended(reason=reason, awaiting_input=bool(asked) and not in_doubt, wake_at=wake_at), at)

    def _retried_at(self, node_id: NodeId, at: int) -> int:
        """Return when a node is tried again: no later than it may be, though another clock may have set the time."""
        longest = int(self.plan.nodes[node_id].policy.backoff.cap.total_seconds() * 1_000_000)
        return min(self.projection.node(node_id).due or at, at + longest)

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

    def _survey_again(self) -> None:
        ready, self.ready = self.ready, deque()
        self._stages_open.clear()
        self._looks.clear()
        self._survey()
        self.ready = ready  # the others wait for a place, or for their time
        self._look_at_all()

    def _survey(self) -> None:
        """Derive the counters from the projection: O(V + E), when a run is taken up, or goes on on another branch."""
        nodes = self.projection.nodes
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
        self._once_nodes = [node_id for node_id, plan in self.plan.nodes.items() if plan.policy.once]
        for node_id, plan in self.plan.nodes.items():
            unopened = sum(source not in settled and not is_open(source, self.projection) for source in plan.opened_by)
            self._waiting[node_id] = sum(source not in settled for source in plan.upstream) + unopened
        scheduled = [node for node in nodes.values() if node.status is NodeStatus.SCHEDULED]
        self.ready.extend(node.node_id for node in sorted(scheduled, key=lambda node: node.last_seq))
        self._go_on()
        for stage, members in self.plan.stages.items():
            if any(member in nodes for member in members):
                self._stages_open[stage] = sum(member not in settled for member in members)


def _wait_of(event: e.InteractionResponded | e.TimerFired | e.SignalTaken) -> str:
    match event:
        case e.InteractionResponded(interaction_id=wait_id) | e.TimerFired(timer_id=wait_id):
            return wait_id
        case e.SignalTaken(wait_id=wait_id):
            return wait_id


def _taken(node_id: NodeId, wait_id: str, signal: SignalState) -> e.SignalTaken:
    return e.SignalTaken(node_id=node_id, wait_id=wait_id, signal_id=signal.signal_id, value=signal.value)


def _reason(
    in_doubt: Sequence[NodeId], asked: Sequence[WaitState], waits: Sequence[WaitState], delayed: Sequence[NodeId]
) -> str:
    """Say in a few words what a run waits for."""
    if in_doubt:
        return IN_DOUBT + ", ".join(in_doubt)
    if asked:
        prompt = asked[0].question.prompt if asked[0].question is not None else ""
        more = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
        return f"asks {prompt!r}{more}"
    if signals := dict.fromkeys(wait.signal for wait in waits if wait.signal is not None):
        return "waits for " + ", ".join(f"signal {name!r}" for name in signals)
    if suspended := [wait.node_id for wait in waits if wait.kind is WaitKind.SUSPEND]:
        return "suspended at " + ", ".join(suspended)
    if waits:
        return "sleeps"
    return "retries " + ", ".join(delayed) if delayed else "waits for items"


def _is_generator(plan: NodePlan) -> bool:
    return plan.flow is not None and plan.flow.is_generator


def _is_orphan(node: NodeState) -> bool:
    """Whether an attempt is lost with its engine. Of a stream that was closed, all that was to come is recorded."""
    return node.status is NodeStatus.RUNNING and not (node.stream is not None and node.stream.is_closed)
