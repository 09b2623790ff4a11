"""The bodies of one run: which of them are about to begin, which run, and how they are told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from perdure.dispatch.base import SlotKind
from perdure.engine.driving.actor import Actor
from perdure.engine.recording.machinery import Machinery
from perdure.ids import NodeId
from perdure.journal.projection import Projection
from perdure.journal.states import RunStatus

STOPPING = {RunStatus.CANCELLING: "the run was cancelled", RunStatus.FAILING: "the run is failing"}
"""Why bodies of a run in this status are told to stop, and none begins."""


PAUSING = "the run was paused"


class Held(NamedTuple):
    """A slot that a run has."""

    kind: SlotKind
    turn_began: float | None = None
    """Since when the run has had it while others waited, one body after the other."""


class Bodies:
    """Keeps the attempts that are recorded as started, each with the slot that it holds until it is left."""

    def __init__(
        self,
        projection: Projection,
        machinery: Machinery,
        *,
        is_interrupted: Callable[[], bool],
        on_stopped: Callable[[Actor], None],
    ) -> None:
        """`is_interrupted` tells that the run's task is cancelled: then there is no group any more that a body could be in."""
        self._projection = projection
        self._machinery = machinery
        self._is_interrupted = is_interrupted
        self._on_stopped = on_stopped
        self._held: dict[Actor, Held | None] = {}
        self._running: dict[NodeId, Actor] = {}
        self._starting: list[Actor] = []
        """Those whose start is not on its way to the store yet."""
        self._held_back: list[Actor] = []
        """Those that wait until the run's task has begun, or until the engine is sure of its lease."""
        self._stop_reason: str | None = None
        """Why all were told to stop, if they were: none is launched after that."""
        self.group: asyncio.TaskGroup | None = None
        """Where the bodies' tasks belong, from the moment there may be any."""

    def __contains__(self, actor: object) -> bool:
        """Whether the attempt counts: it was not left."""
        return actor in self._held

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> Iterator[Actor]:
        """Return the attempts whose bodies were launched."""
        return iter(self._running.values())

    @property
    def has_unprepared(self) -> bool:
        """Whether there are some that could be made ready while their start is written."""
        return bool(self._starting)

    # Starting

    def add(self, actor: Actor, slot: Held | None) -> None:
        """Keep an attempt whose start was recorded, with its slot if it has one."""
        self._held[actor] = slot

    def expect(self, actor: Actor) -> None:
        """Note that a body is launched when the record of its start is durable."""
        self._starting.append(actor)

    def prepare(self, *, alone: bool) -> bool:
        """Make ready those whose start is on its way to the store. A single one, if nothing else is on its way, has its task from
        here on, which waits until it is launched: True if it runs on the loop, and the engine has no other body at work."""
        starting, self._starting = self._starting, []
        for actor in starting:
            actor.prepare()
        if not alone or len(starting) != 1 or self.group is None or self._is_interrupted():
            return False
        (actor,) = starting
        if actor not in self._held or actor.task is not None:
            return False
        actor.wait_for_launch()
        self._begin(actor, self.group)
        return actor.is_on_loop and self._machinery.slots.in_use == 1

    def launch(self, actor: Actor) -> None:
        """Begin, unless it no longer counts, everything was told to stop, or the engine is not sure of its lease."""
        if actor not in self._held or self._is_interrupted():  # whatever is left of the run is about to be let go
            return
        if self.group is None:
            self._held_back.append(actor)
            return
        if not self._machinery.may_start():
            # The commit took so long that the run may be another engine's by now, and a body cannot be fenced.
            self._held_back.append(actor)
            return
        reason = self._stop_reason or STOPPING.get(self._projection.run.status)
        if reason is None and self._projection.run.status is RunStatus.PAUSING:
            reason = PAUSING
        if reason is not None and (actor.runs_code or reason != PAUSING):
            self._stop_unbegun(actor, reason)
            return
        if not actor.go_ahead():
            self._begin(actor, self.group)
        self._running[actor.node_id] = actor

    def launch_held_back(self) -> None:
        """Begin what was held back, if that is possible by now."""
        if self._held_back:
            held_back, self._held_back = self._held_back, []
            for actor in held_back:
                self.launch(actor)

    # Stopping

    def stop(self, reason: str) -> None:
        """Tell all to stop, and launch no more."""
        self._stop_reason = reason
        held_back, self._held_back = self._held_back, []
        for actor in held_back:
            self._stop_unbegun(actor, reason)
        for actor in list(self._running.values()):
            if reason == PAUSING and not actor.runs_code:
                continue
            self._tell(actor, reason)
            if not actor.has_begun:
                self._on_stopped(actor)

    def leave_behind(self) -> None:
        """Wait no longer for those that were told to stop and have not."""
        for actor in list(self._running.values()):
            if actor.stop_reason is not None:
                self._on_stopped(actor)

    def leave(self, actor: Actor, pass_on: Callable[[Held, Actor], None] | None = None) -> bool:
        """The attempt no longer counts, and its slot is passed on, or free once there is a place for another body. False if it
        did not count before."""
        if actor not in self._held:
            return False
        slot = self._held.pop(actor)
        self._running.pop(actor.node_id, None)
        actor.give_up_launch()
        if slot is None or pass_on is None:
            self._vacate(slot)
        else:
            pass_on(slot, actor)
        return True

    def drop(self, node_ids: Collection[NodeId], reason: str) -> None:
        """Let go of the attempts at some nodes: they no longer count, and are told so."""
        gone = frozenset(node_ids)
        for actor in [actor for actor in self._held if actor.node_id in gone]:
            is_running = self._running.get(actor.node_id) is actor
            self.leave(actor)
            if is_running:
                self._tell(actor, reason)

    def drain(self) -> None:
        """Have none begin with a further item."""
        for actor in self._held:
            actor.drain()

    @property
    def all_wait(self) -> bool:
        """Whether no body does anything but wait."""
        return all(actor.is_idle for actor in self._held)

    def at(self, node_id: NodeId) -> list[Actor]:
        """Return the attempt at a node, if there is one."""
        return [actor for actor in self._held if actor.node_id == node_id]

    def tell_unread(self, node_id: NodeId) -> None:
        """Tell the body of a node that nobody reads its stream any more, also before it is launched."""
        for actor in self.at(node_id):
            actor.end_unread()

    def stop_one(self, node_id: NodeId, reason: str) -> None:
        """Tell the body of one node to stop."""
        if (actor := self._running.get(node_id)) is not None:
            self._tell(actor, reason)
            if not actor.has_begun:
                self._on_stopped(actor)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all go: somebody else may be running them again by now."""
        for actor in self._running.values():
            self._tell(actor, actor.stop_reason or "the run is driven elsewhere")
        self._running.clear()
        for actor in self._held:
            actor.give_up_launch()
        held, self._held = list(self._held.values()), {}
        for slot in held:
            # Not at once: a thread counts as lost when the task of its body has heard that it is cancelled.
            loop.call_soon(self._vacate, slot)

    def _begin(self, actor: Actor, group: asyncio.TaskGroup) -> None:
        actor.task = group.create_task(actor.run(), name=f"{self._projection.run.run_id}/{actor.node_id}")

    def _stop_unbegun(self, actor: Actor, reason: str) -> None:
        actor.stop_reason = reason
        self._on_stopped(actor)

    @staticmethod
    def _tell(actor: Actor, reason: str) -> None:
        actor.stop_reason = reason
        assert actor.task is not None
        actor.task.cancel()

    def _vacate(self, slot: Held | None) -> None:
        if slot is not None:
            self._machinery.dispatch.vacate(slot.kind, self._machinery.slots.release)
