"""What happens to the streams of a run: items that fail, streams that end, begin again or are cut off.

It decides through the run's `Decider`, as everything does, and sees to it that what a node has given is recorded before anything
else that happens to it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

from perdure.clock import Clock
from perdure.engine.driving.actor import Actor, ClosingActor
from perdure.engine.driving.bodies import Bodies
from perdure.engine.driving.sending import InputActor
from perdure.engine.driving.triggering import TriggerActor
from perdure.engine.recording.pending import Pending
from perdure.engine.streams.outbox import Outbox
from perdure.engine.streams.streams import Streams
from perdure.errors import AttemptOver, ReplayDiffers
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.decide import Decider
from perdure.journal.states import NodeStatus, RunStatus

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver


class Flowing:
    """The side of a driver that has to do with streams."""

    def __init__(
        self, decider: Decider, streams: Streams, bodies: Bodies, pending: Pending, clock: Clock, driver: Driver
    ) -> None:
        self._decider = decider
        self._streams = streams
        self._bodies = bodies
        self._pending = pending
        self._clock = clock
        self._driver = driver
        self.cut_off: set[NodeId] = set()
        """Nodes that are told to stop because a stream that they read will never be whole."""

    def record(self, node_id: NodeId) -> None:
        """Decide that what a node has given so far goes to the store, before something else happens to it."""
        if self._decider.plan.nodes[node_id].flow is not None:
            self._streams.record(node_id, self._decider, at=self._clock.now_micros())

    def is_closed(self, node_id: NodeId) -> bool:
        """Whether all that a node gives is recorded, so that no body of it runs again: whoever has the run completes it."""
        stream = self._decider.projection.node(node_id).stream
        return stream is not None and stream.is_closed

    def item_failed(
        self,
        actor: Actor,
        position: int,
        item_attempt: int,
        error: e.ErrorRecord,
        *,
        final: bool,
        fails_node: bool = False,
    ) -> None:
        """Record that an attempt at one item of a node has failed."""
        self._driver.require_current(actor)
        at = self._clock.now_micros()
        self._decider.item_failed(
            actor.node_id, actor.attempt, position, item_attempt, error, final=final, fails_node=fails_node, at=at
        )
        self._driver.submit()

    def stream_ended(self, actor: Actor) -> None:
        """Record that a node's stream has ended well. Its readers hear of it when that is durable."""
        if self.is_closed(actor.node_id):
            return
        self._driver.require_current(actor)
        self.record(actor.node_id)
        at = self._clock.now_micros()
        self._decider.stream_closed(actor.node_id, actor.attempt, unread=actor.is_unread, at=at)
        self._pending.acts.append(self._streams.outbox(actor.node_id).close)
        self._driver.submit()

    def replay_differs(self, actor: Actor, position: int) -> tuple[Outbox, Outbox]:
        """A generator that was run again has given something else than before: go on on a branch, where nobody has seen what
        it gave. Return its stream up to here, and the one that it has on the branch."""
        self._driver.require_current(actor)
        if self._decider.projection.run.status not in (RunStatus.RUNNING, RunStatus.PAUSING):
            raise AttemptOver(actor.node_id, actor.attempt)
        if (repeated := self._decider.must_not_begin_again(actor.node_id)) is not None:
            raise ReplayDiffers(
                actor.node_id, position, f"{repeated!r}, which must run at most once, has worked with that"
            )
        at = self._clock.now_micros()
        self._streams.record_all(self._decider, at=at)
        before = self._streams.outbox(actor.node_id)
        reason = f"{actor.node_id} gave something else at item {position} than in an earlier attempt"
        dropped = self._decider.replay_differs(actor.node_id, reason=reason, at=at)
        self._streams.forget(actor.node_id)
        self.cut_off.discard(actor.node_id)
        self.begin_again(dropped)
        self._driver.happened()
        return before, self._streams.outbox(actor.node_id)

    def begin_again(self, dropped: Collection[NodeId]) -> None:
        """Let go of what is in memory of nodes that begin again on a branch."""
        self._bodies.drop(dropped, "what it was given is no longer so")
        for node_id in dropped:
            self._streams.forget(node_id)
            self.cut_off.discard(node_id)

    def input_received(self, node_id: NodeId, input_id: str, cursor: e.Encoded | None) -> None:
        """Record that something has come from outside, in one with its entry."""
        self.record(node_id)
        self._decider.input_received(node_id, input_id, cursor, at=self._clock.now_micros())

    def is_ending(self, node_id: NodeId) -> bool:
        """Whether the attempt at a node is being ended, so that it takes nothing any more."""
        return any(actor.unwinding is not None or actor.stop_reason is not None for actor in self._bodies.at(node_id))

    def close_input(self, node_id: NodeId) -> None:
        """Record that no more items come for an input, or from a trigger."""
        for actor in self._bodies.at(node_id):
            if isinstance(actor, InputActor | TriggerActor):
                self.stream_ended(actor)
                actor.close()

    def take_up_closed(self) -> None:
        """Go on with nodes whose streams are whole, but that have not been completed."""
        for node in list(self._decider.projection.nodes.values()):
            if node.status is NodeStatus.RUNNING and node.stream is not None and node.stream.is_closed:
                self.complete(node.node_id)

    def complete(self, node_id: NodeId) -> None:
        """Go on with a node whose stream is whole, when that is durable: also while the run is being paused."""
        plan, node = self._decider.plan.nodes[node_id], self._decider.projection.node(node_id)
        actor = ClosingActor(self._driver, plan, self._driver.launching.type_of(node_id), node.attempt)
        self._bodies.add(actor, None)
        self._pending.acts.append(functools.partial(self._bodies.launch, actor))

    def stop_cut_off(self, node_id: NodeId) -> None:
        """Have a body stopped that reads a stream which was cut off, when that is durable."""
        self.cut_off.add(node_id)
        self._pending.acts.append(lambda: self._bodies.stop_one(node_id, "a stream that it reads was cut off"))
