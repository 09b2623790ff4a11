"""When what of a run was tried, and when somebody drove it: read from its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from perdure.ids import NodeId
from perdure.journal import events as e

Outcome = Literal["completed", "failed", "lost", "cancelled", "running", "waiting"]


class Span(msgspec.Struct, kw_only=True):
    """One attempt at a node. One that was lost ends with the last sign of life of the engine that ran it."""

    attempt: int
    start: int
    end: int
    outcome: Outcome


class Period(msgspec.Struct, kw_only=True):
    """A time in which one engine drove the run."""

    start: int
    end: int
    was_lost: bool = False
    """Whether it ended because the engine died."""


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


class _Reader:
    def __init__(self) -> None:
        self._spans: dict[NodeId, list[Span]] = {}
        self._open: dict[NodeId, Span] = {}
        self._periods: list[Period] = []

    def read(self, entry: e.Recorded) -> None:
        event, at = entry.event, entry.at
        if isinstance(event, e.RunClaimed) or not self._periods:
            self._begin_period(event, at)
        self._periods[-1].end = max(self._periods[-1].end, at)
        match event:
            case e.NodeStarted():
                span = Span(attempt=event.attempt, start=at, end=at, outcome="running")
                self._spans.setdefault(event.node_id, []).append(span)
                self._open[event.node_id] = span
            case e.NodeCompleted():
                self._close(event.node_id, at, "completed")
            case e.NodeFailed():
                self._close(event.node_id, at, "failed")
            case e.NodeCancelled():
                self._close(event.node_id, at, "cancelled")
            case e.NodeSuspended():
                self._close(event.node_id, at, "waiting")
            case e.BranchCreated():
                for node_id in event.dropped:
                    self._close(node_id, at, "cancelled")
            case e.AttemptLost():
                self._close(event.node_id, self._last_sign_of_life(event.node_id), "lost")
            case _:
                pass

    def result(self, now: int | None) -> Timeline:
        if now is not None and self._periods:
            self._periods[-1].end = max(self._periods[-1].end, now)
        for span in self._open.values():
            span.end = max(span.start, self._periods[-1].end)
            # Nobody drives the run: whoever takes it up will find the attempt lost.
            span.outcome = "running" if now is not None else "lost"
        return Timeline(spans=self._spans, periods=self._periods)

    def _begin_period(self, event: e.AnyEvent, at: int) -> None:
        if isinstance(event, e.RunClaimed) and self._periods:
            if event.epoch == 1:
                return  # the claim belongs to the transition that created the run
            self._periods[-1].was_lost = event.lost
        self._periods.append(Period(start=at, end=at))

    def _close(self, node_id: NodeId, at: int, outcome: Outcome) -> None:
        span = self._open.pop(node_id, None)
        if span is not None:
            span.end = max(span.start, at)
            span.outcome = outcome

    def _last_sign_of_life(self, node_id: NodeId) -> int:
        """Return the end of the period in which the node's open attempt was started."""
        span = self._open.get(node_id)
        if span is None:
            return 0
        return next(period.end for period in reversed(self._periods) if period.start <= span.start)
