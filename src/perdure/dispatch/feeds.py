"""Streams as bodies read them: a parameter annotated `Stream[T]` is a `Reader`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from perdure.dispatch.base import Feed
from perdure.dispatch.places import Place
from perdure.journal.events import Encoded


class Reader:
    """The items of a stream, each once: with `async for` in an async body, with `for` in any other.

    Items come from the loop many at a time, and are decoded one by one as they are asked for. Several tasks, or several
    threads, of the body may share one reader. Once it has come to its end, it stays there.
    """

    def __init__(self, feed: Feed, place: Place, decode: Callable[[Encoded], Any]) -> None:
        self._feed = feed
        self._place = place
        self._decode = decode
        self._taken: deque[Encoded] = deque()
        self._is_at_end = False
        self._one_task = asyncio.Lock()
        self._one_thread = threading.Lock()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Any:
        while not self._taken:
            async with self._one_task:
                if self._is_at_end:
                    raise StopAsyncIteration
                if not self._taken:
                    self._keep(await self._place.ask(self._feed.take))
        self._feed.used += 1
        return self._decode(self._taken.popleft())

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        with self._one_thread:
            while not self._taken:
                if self._is_at_end:
                    raise StopIteration
                self._keep(self._place.wait(self._feed.take))
            item = self._taken.popleft()
            self._feed.used += 1
        return self._decode(item)

    def _keep(self, items: Sequence[Encoded] | None) -> None:
        if items is None:
            self._is_at_end = True
        else:
            self._taken.extend(items)
