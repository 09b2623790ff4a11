"""When what of a run was tried, and when somebody drove it: read from its log, or from its rows where that may have gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.states import NodeState, NodeStatus, RunState

Outcome = Literal["completed", "failed", "lost", "cancelled", "running", "waiting"]
Ending = Literal["stopped", "died", "rested", "paused", "completed", "failed", "cancelled"]

_OF_AN_ITEM = re.compile(r"[^ ]*\d+/")
"""How the name of a wait begins that was made in a call for one item: others may be at work meanwhile."""


_OUTCOMES: Mapping[NodeStatus, Outcome] = {
    NodeStatus.COMPLETED: "completed",
    NodeStatus.FAILED: "failed",
    NodeStatus.CANCELLED: "cancelled",
    NodeStatus.SUSPENDED: "waiting",
}


class Span(msgspec.Struct, kw_only=True):
    """A part of an attempt at a node: its body was at work, or it waited for something from outside.

    An attempt that was lost ends with the last sign of life of the engine that ran it. What a body has done before it waited
    has the outcome of its attempt.
    """

    attempt: int
    start: int
    end: int
    outcome: Outcome


class Period(msgspec.Struct, kw_only=True):
    """A time in which one engine drove the run."""

    start: int
    end: int
    ending: Ending = "stopped"
    """Why it ended, if another one follows."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when. Times are microseconds since 1970."""

    spans: Mapping[NodeId, Sequence[Span]]
    periods: Sequence[Period]


def timeline_of(log: Iterable[e.Recorded], *, now: int | None) -> Timeline:
    """Read a log. `now` is the present if an engine is driving the run, else None."""
    reader = _Reader()
    for entry in log:
        reader.read(entry)
    return reader.result(now)


def timeline_of_rows(run: RunState, nodes: Iterable[NodeState], *, now: int | None) -> Timeline:
    """Read what the rows of a run tell, which is the last attempt at each node. `now` is as in `timeline_of`."""
    begun = [node for node in nodes if node.started_at is not None]
    if run.started_at is None:
        return Timeline(spans={}, periods=())
    times = (time for node in begun for time in (node.started_at, node.ended_at) if time is not None)
    end = max(run.started_at, *times, run.ended_at or 0, now or 0)
    spans = {
        node.node_id: [
            Span(
                attempt=node.attempt,
                start=node.started_at,
                end=max(node.started_at, end if node.ended_at is None else node.ended_at),
                outcome=_OUTCOMES.get(node.status, "running" if now is not None else "lost"),
            )
        ]
        for node in begun
        if node.started_at is not None
    }
    return Timeline(spans=spans, periods=[Period(start=run.started_at, end=end)])


class _Reader:
    def __init__(self) -> None:
        self._spans: dict[NodeId, list[Span]] = {}
        self._open: dict[NodeId, Span] = {}
        self._waits: dict[NodeId, set[str]] = {}
        """What bodies wait for that are still in memory."""
        self._periods: list[Period] = []

    def read(self, entry: e.Recorded) -> None:
        event, at = entry.event, entry.at
        if isinstance(event, e.RunDeleted):
            return  # nothing has happened in the run: it had ended, perhaps years ago
        if isinstance(event, e.RunClaimed) or not self._periods:
            self._begin_period(event, at)
        self._periods[-1].end = max(self._periods[-1].end, at)
        match event:
            case e.NodeStarted():
                self._begin(event.node_id, event.attempt, at, "running")
            case e.NodeCompleted():
                self._close(event.node_id, at, "completed")
            case e.NodeFailed():
                self._close(event.node_id, at, "failed")
            case e.NodeCancelled():
                self._close(event.node_id, at, "cancelled")
            case e.BranchCreated():
                for node_id in list(self._open) if event.restored else event.dropped:
                    self._close(node_id, at, "cancelled")
            case e.AttemptLost():
                self._close(event.node_id, self._last_sign_of_life(event.node_id), "lost")
            case e.RunSuspended():
                self._periods[-1].ending = "rested"
            case e.RunPaused():
                self._periods[-1].ending = "paused"
            case e.RunCompleted():
                self._periods[-1].ending = "completed"
            case e.RunFailed():
                self._periods[-1].ending = "failed"
            case e.RunCancelled():
                self._periods[-1].ending = "cancelled"
            case e.RunResumed() | e.RunReopened():
                self._periods[-1].ending = "stopped"
            case _:
                self._read_wait(event, at)

    def _read_wait(self, event: e.AnyEvent, at: int) -> None:
        match event:
            case e.NodeSuspended():
                self._switch(event.node_id, at, "waiting")
            case e.NodeResumed():
                self._switch(event.node_id, at, "running")
            case e.InteractionRequested() | e.TimerSet() | e.SignalAwaited() if not _OF_AN_ITEM.match(event.name):
                self._waits.setdefault(event.node_id, set()).add(_wait_id(event))
                self._switch(event.node_id, at, "waiting")
            case e.InteractionResponded() | e.TimerFired() | e.SignalTaken():
                waits = self._waits.get(event.node_id, set())
                waits.discard(_wait_id(event))
                if not waits:
                    self._switch(event.node_id, at, "running")
            case _:
                pass

    def result(self, now: int | None) -> Timeline:
        if now is not None and self._periods:
            self._periods[-1].end = max(self._periods[-1].end, now)
        for node_id, span in list(self._open.items()):
            end = max(span.start, self._periods[-1].end)
            # What was done before a wait is done. If nobody drives the run, whoever takes it up will find other attempts lost.
            self._close(
                node_id, end, "completed" if span.outcome == "waiting" else "lost" if now is None else "running"
            )
        return Timeline(spans=self._spans, periods=self._periods)

    def _begin_period(self, event: e.AnyEvent, at: int) -> None:
        if isinstance(event, e.RunClaimed) and self._periods:
            if event.epoch == 1:
                return  # the claim belongs to the transition that created the run
            if event.lost:
                self._periods[-1].ending = "died"
        # A run that rests or has ended stays so, unless it is resumed: somebody has only told it something.
        rests = self._periods and self._periods[-1].ending not in ("stopped", "died")
        self._periods.append(Period(start=at, end=at, ending=self._periods[-1].ending if rests else "stopped"))

    def _begin(self, node_id: NodeId, attempt: int, at: int, outcome: Outcome) -> None:
        span = Span(attempt=attempt, start=at, end=at, outcome=outcome)
        self._spans.setdefault(node_id, []).append(span)
        self._open[node_id] = span

    def _switch(self, node_id: NodeId, at: int, outcome: Outcome) -> None:
        """The body waits, or goes on, as the same attempt."""
        span = self._open.get(node_id)
        if span is not None and span.outcome != outcome:
            span.end = max(span.start, at)
            self._begin(node_id, span.attempt, at, outcome)

    def _close(self, node_id: NodeId, at: int, outcome: Outcome) -> None:
        self._waits.pop(node_id, None)
        last = self._open.pop(node_id, None)
        if last is None:
            return
        last.end = max(last.start, at)
        for span in self._spans[node_id]:
            if span.attempt == last.attempt and span.outcome == "running":
                span.outcome = outcome

    def _last_sign_of_life(self, node_id: NodeId) -> int:
        """Return the end of the period in which the node's open attempt was at work last."""
        span = self._open.get(node_id)
        if span is None:
            return 0
        return next(period.end for period in reversed(self._periods) if period.start <= span.start)


def _wait_id(event: e.AnyWait | e.InteractionResponded | e.TimerFired | e.SignalTaken) -> str:
    match event:
        case e.InteractionRequested() | e.InteractionResponded():
            return event.interaction_id
        case e.TimerSet() | e.TimerFired():
            return event.timer_id
        case e.SignalAwaited() | e.SignalTaken():
            return event.wait_id
