"""What the bodies of one run come to, and what they have recorded on their way: each report is a decision of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.engine.attempts.pauses import pause_micros
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.bodies import STOPPING, Bodies
from perdure.engine.recording.pending import Pending
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver


class Reports:
    """Takes what bodies report to the decider. Whoever was left, or driven out, has nothing to report any more."""

    def __init__(self, driver: Driver, bodies: Bodies, pending: Pending) -> None:
        self._driver = driver
        self._decider = driver.decider
        self._clock = driver.machinery.clock
        self._bodies = bodies
        self._pending = pending

    # How an attempt ends

    def completed(
        self, actor: Actor, outputs: dict[str, e.Encoded], blobs: Sequence[BlobUse], duration_ms: int
    ) -> None:
        driver = self._driver
        if driver.is_gone:
            return
        if not self._bodies.leave(actor, driver.launching.pass_on):
            driver.result_discarded(actor, None)
            return
        self._pending.blobs += blobs
        driver.flow.record(actor.node_id)
        self._decider.attempt_completed(
            actor.node_id, actor.attempt, outputs, duration_ms=duration_ms, at=self._clock.now_micros()
        )
        driver.happened_again()

    def failed(self, actor: Actor, error: e.ErrorRecord, duration_ms: int) -> None:
        """A body has raised something. If a signal has ended what it had started, that signal is heard first, unless the failure
        counts all the same."""
        decide = self._driver.guarded if self._must_not_repeat(actor.node_id) else self._driver.shortly
        decide(lambda: self._failed(actor, error, duration_ms))

    def _failed(self, actor: Actor, error: e.ErrorRecord, duration_ms: int) -> None:
        if actor.stop_reason is not None:  # it was told so since then
            self.stopped(actor)
        elif self._leaves(actor):
            if self.is_excused(actor.node_id):
                reason = f"it failed while its engine stopped: {error.type}: {error.message}"
                self._decider.attempt_lost(actor.node_id, reason=reason, at=self._clock.now_micros(), has_begun=True)
                self._driver.happened()
            else:
                self._record_failure(actor, error, duration_ms)
        actor.report_late()

    def _record_failure(self, actor: Actor, error: e.ErrorRecord, duration_ms: int) -> None:
        driver = self._driver
        was_running = driver.projection.run.status is RunStatus.RUNNING
        actor.record_what_failed()
        self._decider.attempt_failed(
            actor.node_id,
            actor.attempt,
            error,
            duration_ms=duration_ms,
            delay_micros=self._pause_micros(actor.node_id),
            at=self._clock.now_micros(),
        )
        driver.stopping.if_failing(was_running)
        driver.happened()

    def is_excused(self, node_id: NodeId) -> bool:
        """Whether a failure of a body says nothing, because its engine stops. Who ends a process often ends what its bodies have
        started with it: a terminal tells all of them. Of what must not be repeated, a failure is known, and counts; and what is
        lost again and again has failed."""
        lost, limit = self._driver.projection.node(node_id).lost, self._driver.projection.run.settings.max_recoveries
        return self._driver.is_draining and lost < limit and not self._must_not_repeat(node_id)

    def _must_not_repeat(self, node_id: NodeId) -> bool:
        return self._decider.plan.nodes[node_id].policy.once

    def overdue(self, actor: Actor, error: e.ErrorRecord, duration_ms: int) -> None:
        """Leave a body behind that goes on although its time is over."""
        self._driver.guarded(lambda: self._failed(actor, error, duration_ms))

    def unreadable(self, actor: Actor, problem: str, *, has_begun: bool) -> None:
        """What the body needs was stored by another process, and cannot be read in this one. That is no failure of the node:
        the run is let go when nothing else of it can move, and goes on where the value can be read."""
        if not self._leaves(actor):
            return
        self._driver.launching.unreadable[actor.node_id] = problem
        at = self._clock.now_micros()
        self._decider.attempt_lost(actor.node_id, reason=problem, at=at, has_begun=has_begun)
        self._driver.happened()

    def unwound(self, actor: Actor) -> None:
        """A body that only waited has ended: its node is suspended, and goes on when something comes."""
        if self._leaves(actor):
            self._driver.waiting.suspended(actor)
            self._driver.happened()

    def stopped(self, actor: Actor) -> None:
        """A body has ended because it was told to, or is waited for no longer."""
        if not self._leaves(actor):
            return
        driver, at = self._driver, self._clock.now_micros()
        reason = actor.stop_reason or ""
        if driver.projection.run.status in STOPPING or actor.node_id in driver.flow.cut_off:
            self._decider.attempt_cancelled(actor.node_id, actor.attempt, reason=reason, at=at)
        elif driver.flow.is_closed(actor.node_id):
            if not driver.is_draining:  # whoever has the run next completes it
                driver.flow.complete(actor.node_id)
        elif self._decider.is_current(actor.node_id, actor.attempt):
            self._decider.attempt_lost(actor.node_id, reason=reason, at=at, has_begun=actor.has_begun)
        driver.happened()

    def discard(self, actor: Actor, error: Exception | None) -> None:
        """Record that a body has come to something after its attempt had ended."""
        if self._decider.is_current(actor.node_id, actor.attempt):
            return
        at = self._clock.now_micros()
        if error is None:
            self._decider.attempt_completed(actor.node_id, actor.attempt, {}, duration_ms=0, at=at)
        else:
            record = e.ErrorRecord(error_class=e.ErrorClass.UNKNOWN, type=type(error).__name__, message="")
            self._decider.attempt_failed(actor.node_id, actor.attempt, record, duration_ms=0, delay_micros=0, at=at)
        self._driver.happened()

    # What is recorded meanwhile

    async def checkpoint(self, actor: Actor, saved: e.NodeCheckpointed, blobs: Sequence[BlobUse]) -> None:
        """Record how far a body is; return when that is durable, in `sync`."""
        self._driver.require_current(actor)
        self._pending.blobs += blobs
        self._driver.flow.record(actor.node_id)
        self._decider.checkpoint(saved, at=self._clock.now_micros())
        if not saved.suspends:
            actor.leave_behind()
        await self._durable()

    async def step_completed(
        self, actor: Actor, name: str, occurrence: int, result: e.Encoded, blobs: Sequence[BlobUse]
    ) -> None:
        """Record what a step has come to; return when that is durable, in `sync`."""
        self._driver.require_current(actor)
        self._pending.blobs += blobs
        at = self._clock.now_micros()
        self._decider.step_completed(actor.node_id, actor.attempt, name, occurrence, result, at=at)
        await self._durable()

    def _leaves(self, actor: Actor) -> bool:
        """Leave an attempt that has ended, with what it gave until then. False if it was left before, and reports what it has
        been told."""
        if self._driver.is_gone or not self._bodies.leave(actor):
            return False
        self._driver.flow.record(actor.node_id)
        return True

    def _pause_micros(self, node_id: NodeId) -> int:
        backoff = self._decider.plan.nodes[node_id].policy.backoff
        failures = self._driver.projection.node(node_id).failures
        return pause_micros(backoff, failures, self._driver.machinery.chance)

    async def _durable(self) -> None:
        if self._driver.projection.run.settings.durability == "sync":
            await self._driver.stored()
        else:
            self._driver.submit()
