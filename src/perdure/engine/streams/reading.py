"""A stream that a body reads while it arrives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from perdure.engine.attempts.items import picked
from perdure.engine.streams.streams import Streams
from perdure.graph.model import Edge
from perdure.journal.events import Encoded
from perdure.store.codecs.wire import content_refs


class StreamFeed:
    """What a parameter annotated `Stream[T]` reads from, beginning with item number `start`."""

    def __init__(
        self, streams: Streams, edge: Edge, *, start: int, inlined: Callable[[Encoded], Awaitable[Encoded]]
    ) -> None:
        """`inlined` returns an item with everything inside it that is kept elsewhere."""
        self.used = start
        """How many items the body has got, earlier attempts included. Kept by whoever hands them to it."""
        self._edge = edge
        self._inlined = inlined
        self._taken: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._is_waiting = False
        self._inbox = streams.inbox(edge, start=start, on_news=self._news.set)

    async def take(self) -> Sequence[Encoded] | None:
        """Return the next items, at least one; None at the end."""
        while not self._taken:
            if not await self._arrived():
                return None
        items: list[Encoded] = []
        if content_refs(self._taken[0]):
            # One at a time: it is large, and whoever is cancelled meanwhile has not taken it.
            items.append(await self._inlined(msgspec.Raw(self._taken[0])))
            self._taken.popleft()
        while not items or (self._taken and not content_refs(self._taken[0])):
            items.append(msgspec.Raw(self._taken.popleft()))
        path, handle = self._edge.path, self._edge.target_handle
        return [msgspec.Raw(picked(bytes(item), path, handle)) for item in items] if path else items

    async def _arrived(self) -> bool:
        """Wait for items, and take what there is: perhaps holes alone. False at the end."""
        inbox = self._inbox
        while not inbox.has_item:
            self._news.clear()
            inbox.want()
            if inbox.is_over:
                return False
            if not inbox.has_item:
                self._is_waiting = True
                await self._news.wait()
                self._is_waiting = False
        self._taken.extend(item for item in inbox.take_all() if item is not None)
        return True

    @property
    def is_starved(self) -> bool:
        """Whether the body waits for items, and there are none."""
        return self._is_waiting and not self._inbox.has_item

    def leave(self) -> None:
        """Read no more."""
        self._inbox.leave()
