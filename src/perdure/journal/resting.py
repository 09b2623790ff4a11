"""What follows from waiting: bodies that are suspended, runs that rest, and what comes from outside and lets them go on."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.graph.model import FED
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.states import (
    WAITING,
    NodeStatus,
    RunStatus,
    SignalState,
    WaitKind,
    WaitState,
)
from perdure.journal.streaming import Streaming

SLEEPS = "sleeps"
"""The reason of a run that rests because all that is left of it sleeps."""
IN_DOUBT = "in doubt: "
"""How the reason of a run begins that rests because someone has to say what became of a node."""
RETRY_MICROS = 300_000_000
"""A run in which nothing but a node that is tried again is left stays in memory for so long: shorter pauses are kept exactly,
whatever the clocks of two engines say."""


class Resting(Streaming):
    """The decisions that have to do with waiting."""

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

    # Bodies that wait

    def attempt_suspended(
        self,
        node_id: NodeId,
        attempt: int,
        *,
        reason: str,
        at: int,
        goes_on: bool = False,
        wants_items: bool = False,
    ) -> None:
        """The body waits, and is no longer in memory. It goes on when something comes that it waits for; if it waits for nothing
        from outside, or not only for that, with the run."""
        if not self.is_current(node_id, attempt):
            return
        if self.projection.run.status in (RunStatus.FAILING, RunStatus.CANCELLING):
            self.attempt_cancelled(node_id, attempt, reason=reason, at=at)
            return
        suspended = e.NodeSuspended(
            node_id=node_id, attempt=attempt, reason=reason, goes_on=goes_on, wants_items=wants_items
        )
        self._record(suspended, at)
        self._suspended[node_id] = None
        if self.may_go_on(node_id):
            self.ready.append(node_id)

    # What comes from outside

    def stir(self, node_id: NodeId, *, at: int) -> None:
        """Something has come for a node without its having said that it waits for that: let it go on, with all that wait for
        items."""
        if self.projection.run.status in WAITING:
            self.resume(reason="something came", at=at)
        elif self.falls_asleep:
            self.falls_asleep = False
            self._go_on()
        is_running = self.projection.run.status is RunStatus.RUNNING
        if is_running and self.projection.status(node_id) is NodeStatus.SUSPENDED:
            self.ready.append(node_id)

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

    def signal_received(self, signal_id: str, name: str, value: e.Encoded, *, sent_at: int, at: int) -> None:
        """A signal has come: whoever has waited longest for it gets it, and if nobody does, it is kept. For those whose time was
        over when it was sent, it comes too late, though nobody may have been there to tell them so."""
        if self.projection.waits.has_signal(signal_id):
            return
        for wait in self.projection.waits.open():
            if wait.signal == name and wait.due is not None and wait.due <= min(sent_at, at):
                self.time_came(wait, at=at)
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

    # Runs that wait

    def _rest(self, at: int) -> None:
        """Suspend the run if all that is left of it waits: for answers, signals, a time or somebody's word."""
        if not (self._suspended or self._delayed or self._once_nodes):
            return
        in_doubt = self._in_doubt()
        if len(in_doubt) + len(self._suspended) + len(self._delayed) < self._live or self._is_left_to_probes():
            return
        waits = self.projection.waits.open()
        dues = [wait.due for wait in waits if wait.due is not None]
        is_soon = any(due - at <= self.hibernate_micros for due in dues) or self.is_retried_soon(at=at)
        dues += [self._retried_at(node_id, at) for node_id in self._delayed]
        waits_for_input = any(self.plan.nodes[node_id].node.type in FED for node_id in self._suspended)
        has_reason = waits or in_doubt or self._delayed or waits_for_input
        if is_soon or not has_reason or any(map(self.may_go_on, self._suspended)):
            return
        asked = [wait for wait in waits if wait.kind is WaitKind.ASK]
        reason = _reason(in_doubt, asked, waits, list(self._delayed))
        wake_at = min(dues, default=None)
        self._record(e.RunSuspended(reason=reason, awaiting_input=bool(asked) and not in_doubt, wake_at=wake_at), at)

    def is_retried_soon(self, *, at: int) -> bool:
        """Whether a node is tried again so soon that the run stays in memory for it."""
        soon = at + max(self.hibernate_micros, RETRY_MICROS)
        return any(self._retried_at(node_id, at) <= soon for node_id in self._delayed)

    def _retried_at(self, node_id: NodeId, at: int) -> int:
        """Return when a node is tried again: no later than it may be, though another clock may have set the time."""
        longest = int(self.plan.nodes[node_id].policy.backoff.cap.total_seconds() * 1_000_000)
        return min(self.projection.node(node_id).due or at, at + longest)

    def _is_left_to_probes(self) -> bool:
        return self.leaves_to_probes and any(self.plan.nodes[node_id].policy.probe for node_id in self._in_doubt())


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
        return SLEEPS
    return "retries " + ", ".join(delayed) if delayed else "waits for items"
