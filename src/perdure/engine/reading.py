"""A stream that a body reads while it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from perdure.engine.items import picked
from perdure.engine.streams import Streams
from perdure.graph.model import Edge
from perdure.journal.events import Encoded


class StreamFeed:
    """What a parameter annotated `Stream[T]` reads from, beginning with item number `start`."""

    def __init__(self, streams: Streams, edge: Edge, *, start: int) -> None:
        self.used = start
        """How many items the body has got, earlier attempts included. Kept by whoever hands them to it."""
        self._edge = edge
        self._news = asyncio.Event()
        self._is_waiting = False
        self._inbox = streams.inbox(edge, start=start, on_news=self._news.set)

    async def take(self) -> Sequence[Encoded] | None:
        """Return the next items, at least one; None at the end."""
        inbox = self._inbox
        while not inbox.has_item:
            self._news.clear()
            inbox.want()
            if inbox.is_over:
                return None
            if not inbox.has_item:
                self._is_waiting = True
                await self._news.wait()
                self._is_waiting = False
        path, handle = self._edge.path, self._edge.target_handle
        items = [item for item in inbox.take_all() if item is not None]
        return [msgspec.Raw(picked(item, path, handle) if path else item) for item in items]

    @property
    def is_starved(self) -> bool:
        """Whether the body waits for items, and there are none."""
        return self._is_waiting and not self._inbox.has_item

    def leave(self) -> None:
        """Read no more."""
        self._inbox.leave()
