"""Scheduled nodes of one run that have not been started: each waits for a place of its kind, or for its time."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from perdure.dispatch.base import SlotKind
from perdure.ids import NodeId

LONG_WAIT_SECONDS = 3_600.0

Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class Queue:
    """First come, first served, for each kind of place."""

    def __init__(self, later: Later, *, on_due: Callable[[], None]) -> None:
        self._later = later
        self._on_due = on_due
        self._queued: defaultdict[SlotKind, deque[NodeId]] = defaultdict(deque)
        self._delayed: dict[NodeId, asyncio.TimerHandle] = {}

    @property
    def is_empty(self) -> bool:
        return not (self._delayed or any(self._queued.values()))

    def waiting(self) -> Iterable[SlotKind]:
        """Return the kinds of places for which somebody waits."""
        return [kind for kind, queued in self._queued.items() if queued]

    def of(self, kind: SlotKind) -> deque[NodeId]:
        """Return those that wait for a place of this kind, longest first, for whoever takes them out."""
        return self._queued[kind]

    def add(self, node_id: NodeId, kind: SlotKind, *, delay_seconds: float = 0.0) -> None:
        """Have a node wait for its place, when its time has come. If it was to wait for another time, that counts no longer."""
        if self._delayed and (earlier := self._delayed.pop(node_id, None)) is not None:
            earlier.cancel()
        if delay_seconds <= 0:
            self._queued[kind].append(node_id)
        else:
            self._delay(node_id, kind, delay_seconds)

    def abandon(self) -> None:
        """Forget those that wait for their time."""
        for handle in self._delayed.values():
            handle.cancel()

    def _delay(self, node_id: NodeId, kind: SlotKind, seconds: float) -> None:
        wait = min(seconds, LONG_WAIT_SECONDS)

        def due() -> None:
            self._delayed.pop(node_id, None)
            self.add(node_id, kind, delay_seconds=seconds - wait)
            if seconds <= wait:
                self._on_due()

        self._delayed[node_id] = self._later(wait, due)
