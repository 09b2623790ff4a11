"""Which nodes of one run begin, and when: each waits for its time and its place, and is recorded before its body starts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.dispatch.base import SlotKind
from perdure.engine.attempts.slots import Grant
from perdure.engine.driving.actor import Actor, ClosingActor
from perdure.engine.driving.bodies import Bodies, Held
from perdure.engine.driving.programs import Program
from perdure.engine.driving.queue import Queue
from perdure.engine.recording.pending import Pending
from perdure.engine.recording.tenure import Tenure
from perdure.graph.declare import NodeType
from perdure.ids import NodeId
from perdure.journal.states import NodeStatus, RunStatus

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

TURN_SECONDS = 0.1
"""How long a run goes on with the same slot, one body after the other, while others wait for one. What ends and what begins is
one transition then; in turns with the others, it would be two."""

_STARTABLE = frozenset((NodeStatus.SCHEDULED, NodeStatus.SUSPENDED))


class Launching:
    """Starts what the decider has found ready. It is what waits for slots on behalf of the run."""

    def __init__(self, driver: Driver, program: Program, tenure: Tenure, bodies: Bodies, pending: Pending) -> None:
        self._driver = driver
        self._decider = driver.decider
        self._projection = driver.projection
        self._machinery = driver.machinery
        self._program = program
        self._tenure = tenure
        self._bodies = bodies
        self._pending = pending
        self._queue = Queue(driver.later, on_due=driver.happened)
        self._kept: list[Held] = []
        """Slots of bodies that have just ended, for those that follow from that."""
        self._has_settled = False
        self.unreadable: dict[NodeId, str] = {}
        """Nodes that are left to whoever can read what they need, with what is wrong."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to begin, also not for its time."""
        return self._queue.is_empty

    @property
    def has_queued(self) -> bool:
        """Whether something would begin if there were a place."""
        return bool(self._queue.waiting())

    def begin_ready(self) -> None:
        """Start what is ready, as far as there are places."""
        if self._decider.ready:
            self._queue_ready()
        for kind in self._queue.waiting():
            self._begin_queued(kind)
        if self._kept:
            self._give_back()

    def pass_on(self, slot: Held, ended: Actor) -> None:
        """Keep the slot of a body that has ended for what follows from that. It is given back if it is owed, if there is no place
        for another body, or if others wait and this run has had its turn."""
        kind, slots, dispatch = slot.kind, self._machinery.slots, self._machinery.dispatch
        if slots.is_owed(kind) or not dispatch.has_place(kind):
            dispatch.vacate(kind, slots.release)
        elif not slots.is_waited_for(kind):
            self._kept.append(Held(kind))
        else:
            turn_began = ended.began if slot.turn_began is None else slot.turn_began
            if self._machinery.clock.monotonic() - turn_began <= TURN_SECONDS:
                self._kept.append(Held(kind, turn_began))
            else:
                slots.release(kind)

    def slot_granted(self, kind: SlotKind) -> Grant:
        """Use a place that has become free, or say why not."""
        if not self._is_running() or not self._queue.of(kind):
            return Grant.UNNEEDED
        if not self._machinery.may_start():
            return Grant.NOT_YET
        held = len(self._bodies)
        try:
            self._begin(self._queue.of(kind).popleft(), Held(kind))
        except Exception as bug:  # of ours: it ends this run, and harms no other
            is_held = len(self._bodies) > held  # then it is given back with the rest
            self._driver.failed(bug)
            return Grant.TAKEN if is_held else Grant.UNNEEDED
        self._driver.guarded(lambda: self._use_slots(kind))
        return Grant.TAKEN

    def take_settled(self) -> bool:
        """Return whether something has begun since the last call that is over already, or rests: the run may do so with it."""
        has_settled, self._has_settled = self._has_settled, False
        return has_settled

    def abandon(self) -> None:
        """Wait for nothing any more."""
        self._give_back()
        self._queue.abandon()
        self._machinery.slots.forget(self)

    def type_of(self, node_id: NodeId) -> NodeType[..., Any]:
        return self._program.node(node_id).node_type

    def may_trail(self, node_id: NodeId) -> bool:
        """Whether bodies of a node need not wait until what came before them is durable."""
        policy = self._program.plan.nodes[node_id].policy
        return policy.pure or (self._projection.run.settings.durability != "sync" and not policy.once)

    def _is_running(self) -> bool:
        driver = self._driver
        return not (driver.is_gone or driver.is_draining) and self._projection.run.status is RunStatus.RUNNING

    def _use_slots(self, kind: SlotKind) -> None:
        self._begin_queued(kind)
        if self._has_settled:
            self._driver.happened()
        self._driver.submit()

    def _queue_ready(self) -> None:
        ready = self._decider.ready
        while ready:
            node_id = ready.popleft()
            if node_id in self.unreadable:
                continue
            node = self._projection.node(node_id)
            due = node.due if node.status is NodeStatus.SCHEDULED else None
            delay = 0.0
            if due is not None:
                # The time was set by the clock of whoever decided it, which may be hours ahead of this one.
                longest = self._program.plan.nodes[node_id].policy.backoff.cap.total_seconds()
                delay = min((due - self._machinery.clock.now_micros()) / 1_000_000, longest)
            self._queue.add(node_id, self._program.node(node_id).kind, delay_seconds=delay)

    def _begin_queued(self, kind: SlotKind) -> None:
        queued = self._queue.of(kind)
        while queued and self._is_running() and self._machinery.may_start():
            slot = self._kept_slot(kind)
            if slot is None and not self._machinery.slots.acquire(kind, self):
                return
            held = len(self._bodies)
            try:
                self._begin(queued.popleft(), slot or Held(kind))
            except BaseException:  # a bug of ours, which ends this run
                if len(self._bodies) == held:  # else it is given back with the rest
                    self._machinery.slots.release(kind)
                raise

    def _kept_slot(self, kind: SlotKind) -> Held | None:
        for index, slot in enumerate(self._kept):
            if slot.kind == kind:
                return self._kept.pop(index)
        return None

    def _give_back(self) -> None:
        kept, self._kept = self._kept, []
        for slot in kept:
            self._machinery.slots.release(slot.kind)

    def _begin(self, node_id: NodeId, slot: Held) -> None:
        """Record the start of an attempt; its body begins when that is durable, or at once if it may run early."""
        node = self._projection.node(node_id)
        if node.status not in _STARTABLE:
            self._machinery.slots.release(slot.kind)
            return
        program = self._program.node(node_id)
        if node.stream is not None and self._decider.begins_anew(node_id):
            self._driver.streams.begin_anew(node_id)
        attempt = self._decider.start_attempt(node_id, at=self._machinery.clock.now_micros(), is_trigger=program.is_fed)
        is_closed = node.stream is not None and node.stream.is_closed
        actor_type = ClosingActor if is_closed else program.actor
        actor = actor_type(self._driver, program.plan, program.node_type, attempt)
        if actor.settle_at_once():
            self._has_settled = True
            self._machinery.slots.release(slot.kind)
            return
        if program.plan.readers:
            actor.is_unread = self._decider.is_unread(node_id)
        self._bodies.add(actor, slot)
        if program.is_source and not is_closed:
            self._driver.source_began()
        was_suspended = node.status is NodeStatus.SUSPENDED
        if not actor.has_effects or (not was_suspended and self._may_run_early(node_id)):
            self._bodies.launch(actor)
        else:
            self._bodies.expect(actor)
            self._pending.acts.append(partial(self._bodies.launch, actor))

    def _may_run_early(self, node_id: NodeId) -> bool:
        if not self.may_trail(node_id) or not self._tenure.is_certain:
            return False
        # What it has given before is compared with what it gives, or removed: that has to be stored first.
        return self._program.plan.nodes[node_id].flow is None or self._projection.node(node_id).attempt == 1
