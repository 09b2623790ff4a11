"""How fast the nodes of a run get on that work item by item: read from the log, batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from perdure.ids import NodeId
from perdure.journal import events as e

RECENT_SECONDS = 10
"""Of a node at work, what it has done in this time counts."""
LEAST_MICROS = 1_000
"""What was done in less time has no rate that means anything."""

_SECOND = 1_000_000


class _Track(msgspec.Struct):
    """What is known of one node."""

    started_at: int
    last_at: int
    """When something was last recorded of the attempt."""
    generates: bool
    items: int = 0
    active_micros: int = 0
    """How long earlier attempts took, each from its start to the last thing that was recorded of it."""
    recent: deque[tuple[int, int]] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_SECONDS + 1))
    """Seconds in which something was done, and how much."""

    def add(self, count: int, at: int) -> None:
        self.items += count
        self.last_at = max(self.last_at, at)
        second = at // _SECOND
        if self.recent and self.recent[-1][0] >= second:
            second, before = self.recent.pop()
            count += before
        self.recent.append((second, count))


class Pace:
    """Hears the log of a run. What it keeps of a node has a bound, however many items there are."""

    def __init__(self, log: Iterable[e.Recorded] = ()) -> None:
        self._tracks: dict[NodeId, _Track] = {}
        self._triggers: set[NodeId] = set()
        for entry in log:
            self.hear(entry.event, at=entry.at)

    def hear(self, event: e.AnyEvent, *, at: int) -> None:
        """Take in the next event."""
        match event:
            case e.NodeStarted(streams=True):
                self._start(event, at)
            case e.OutboxEnqueued():
                if (track := self._tracks.get(event.node_id)) is not None:
                    track.add(sum(count for _, count in event.ranges), at)
            case e.TriggerRegistered():
                self._triggers.add(event.node_id)
            case e.BranchCreated():
                for node_id in event.dropped:
                    self._tracks.pop(node_id, None)
                if event.replayed is not None and (track := self._tracks.get(event.replayed)) is not None:
                    self._tracks[event.replayed] = _Track(started_at=at, last_at=at, generates=track.generates)
            case _:
                pass

    def generates(self, node_id: NodeId) -> bool:
        """Whether the body of a node is a generator."""
        track = self._tracks.get(node_id)
        return track is not None and track.generates

    def is_trigger(self, node_id: NodeId) -> bool:
        """Whether a node is fed from outside, and goes on until it is stopped."""
        return node_id in self._triggers

    def spent_seconds(self, node_id: NodeId, *, now: int | None) -> float | None:
        """Return how long a node has worked on its items, over all its attempts: to `now` if it is at work, else to the last of
        them. None if it has done none."""
        track = self._tracks.get(node_id)
        if track is None or not track.items:
            return None
        until = track.last_at if now is None else max(now, track.last_at)
        return (track.active_micros + until - track.started_at) / _SECOND

    def overall(self, node_id: NodeId) -> float | None:
        """Return how many items a node has done per second, over all its attempts; None if that cannot be said."""
        track = self._tracks.get(node_id)
        if track is None or not track.items:
            return None
        micros = track.active_micros + track.last_at - track.started_at
        return track.items / micros * _SECOND if micros >= LEAST_MICROS else None

    def recently(self, node_id: NodeId, *, now: int) -> float | None:
        """Return how many items a node that is at work has done per second of late; None if it has just begun."""
        track = self._tracks.get(node_id)
        if track is None:
            return None
        since = max(track.started_at, (now // _SECOND - RECENT_SECONDS + 1) * _SECOND)
        if now - since < _SECOND:
            return self.overall(node_id)
        done = sum(count for second, count in track.recent if second >= since // _SECOND)
        return done / (now - since) * _SECOND

    def _start(self, event: e.NodeStarted, at: int) -> None:
        fresh = _Track(started_at=at, last_at=at, generates=event.generates)
        before = self._tracks.get(event.node_id)
        if before is not None and not event.anew:
            fresh.items = before.items
            fresh.active_micros = before.active_micros + before.last_at - before.started_at
        self._tracks[event.node_id] = fresh
