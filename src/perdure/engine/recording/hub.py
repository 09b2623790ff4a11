"""News inside one process: who wants to hear of a run is told when something about it is durable, or live and fleeting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from perdure.engine.attempts.loglines import LogLines
from perdure.ids import NodeId, RunId

MAX_BACKLOG = 1_000
"""Fleeting news a slow listener may be behind; older ones are dropped."""
MAX_LOG_LINES = 10_000


class Flash(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be shown and forgotten: progress, or what a body publishes."""

    run_id: RunId
    node_id: NodeId
    kind: Literal["progress", "publish"]
    value: Any = None
    done: float | None = None
    total: float | None = None


class Hub:
    """Distributes news to listeners of this process. Never blocks a sender."""

    def __init__(self) -> None:
        self._changed: dict[RunId, set[asyncio.Event]] = {}
        self._flashes: dict[RunId, set[asyncio.Queue[Flash]]] = {}
        self.log_lines = LogLines(MAX_LOG_LINES)

    def changed(self, run_id: RunId) -> None:
        """Something about the run is durable."""
        for event in self._changed.get(run_id, ()):
            event.set()

    def watched(self) -> list[RunId]:
        """Return the runs that somebody watches."""
        return list(self._changed)

    def is_watched(self, run_id: RunId) -> bool:
        """Whether somebody watches the run."""
        return run_id in self._changed

    def flash(self, flash: Flash) -> None:
        for queue in self._flashes.get(flash.run_id, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(flash)

    @contextmanager
    def watching(self, run_id: RunId) -> Generator[asyncio.Event]:
        """Give an event that is set whenever the run has changed."""
        event = asyncio.Event()
        self._changed.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._changed[run_id]
            watchers.discard(event)
            if not watchers:
                del self._changed[run_id]

    async def flashes(self, run_id: RunId) -> AsyncIterator[Flash]:
        """Yield what bodies of the run show, while this is iterated."""
        with self.showing(run_id) as queue:
            while True:
                yield await queue.get()

    @contextmanager
    def showing(self, run_id: RunId) -> Generator[asyncio.Queue[Flash]]:
        """Give a queue that is filled with what bodies of the run show."""
        queue: asyncio.Queue[Flash] = asyncio.Queue(MAX_BACKLOG)
        self._flashes.setdefault(run_id, set()).add(queue)
        try:
            yield queue
        finally:
            queues = self._flashes[run_id]
            queues.discard(queue)
            if not queues:
                del self._flashes[run_id]
