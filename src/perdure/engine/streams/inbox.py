"""What arrives at one handle of a node from a stream: first in, first out, a bounded part of it in memory.

While a reader keeps up, what becomes visible is pushed to it. If it falls behind by more than its buffer holds, the rest is not
kept for it: it reads that back from the store, a page at a time, until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from perdure.engine.streams.entries import Entry, Item, entries_of, items_in
from perdure.engine.streams.live import EdgeFacts
from perdure.engine.streams.outbox import Outbox
from perdure.graph.model import Edge
from perdure.ids import Seq
from perdure.store.transitions import ItemRow

MAX_BUFFERED_ITEMS: Final = 512
MAX_BUFFERED_BYTES: Final = 4 << 20
"""What a handle keeps in memory for a node that has not taken it yet."""
LOW_ITEMS: Final = MAX_BUFFERED_ITEMS // 2
LOW_BYTES: Final = MAX_BUFFERED_BYTES // 2
"""When no more than this is left, the producer is told that there is room."""
PAGE_ROWS: Final = 16

READ_AGAIN_SECONDS: Final = 0.005
"""How long to wait before a page is read again that did not have what is to be seen by now."""

Place = tuple[int, int]
"""Behind which row to go on: its position, and the event that recorded it."""
START: Final[Place] = (-1, -1)
ReadPage = Callable[[Place], Awaitable[Sequence[ItemRow]]]
Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Has something done in a task of its own. It is called there, so that nothing is left of it if the task never begins."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a stream arrives."""

    handle: str
    is_call: bool
    """Whether each entry is what came of one call, so that it has a position of its own even if it gave nothing here."""
    keeps_holes: bool
    """Whether the reader wants to know of positions at which nothing was given."""
    has_one_each: bool
    """Whether each entry is one item."""
    truth: str | None = None
    """Under which name the truth of what a condition looks at is kept, where the item does not tell."""

    def items_of(self, entry: Entry) -> Sequence[Item]:
        """Return the items of an entry, in order."""
        if self.truth is not None and not isinstance(entry, bytes) and any(self.truth in given for given in entry):
            return items_in(entry, self.truth, is_call=self.is_call)
        items = items_in(entry, self.handle, is_call=self.is_call)
        if self.keeps_holes or not self.is_call:
            return items
        return [item for item in items if item is not None]


class Inbox:
    """The items of one stream for one reader, from a given one on."""

    def __init__(
        self,
        source: Outbox,
        edge: Edge,
        view: View,
        *,
        read_page: ReadPage,
        spawn: Spawn,
        on_news: Callable[[], None],
    ) -> None:
        self.taken = 0
        """How many items were taken, and skipped, so far."""
        self._source = source
        self._edge = edge
        self._view = view
        self._read_page = read_page
        self._spawn = spawn
        self._on_news = on_news
        self._buffer: deque[Item] = deque()
        self._buffered_bytes = 0
        self._seen = 0
        """How many entries have come this way."""
        self._after: Place = START
        self._to_skip = 0
        """How many items are passed over, because the reader has had them."""
        self._is_reading = False
        self._is_started = False

    def start_at(self, item: int, *, entries: int = 0, after: Place = START) -> None:
        """Begin with an item. `entries` of the stream, up to the row `after`, are passed over unread."""
        self._seen, self._after = entries, after
        self.taken = entries
        self._to_skip = item - entries

    # The reader's side

    @property
    def has_item(self) -> bool:
        return bool(self._buffer)

    def take(self) -> Item:
        """Return the next item. There is one."""
        item = self._buffer.popleft()
        self.taken += 1
        before = self._buffered_bytes
        if item is not None:
            self._buffered_bytes -= len(item)
        if not self._buffer:
            self.want()
        elif len(self._buffer) == LOW_ITEMS or before >= LOW_BYTES > self._buffered_bytes:
            self._source.has_changed()  # long before there is nothing left to do
        return item

    def take_all(self) -> list[Item]:
        """Return the items that are at hand."""
        items = list(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        self.taken += len(items)
        self.want()
        return items

    @property
    def is_over(self) -> bool:
        """Whether everything was taken that will ever come."""
        return not self._buffer and self._source.is_over and self._seen == self._source.visible

    @property
    def total(self) -> int | None:
        """How many items there are in all, once that is known."""
        if not self._source.is_over:
            return None
        if self._seen == self._source.visible:
            return self.taken + len(self._buffer)
        return self._source.visible if self._view.has_one_each else None

    def facts(self) -> EdgeFacts:
        """Return how the items flow at this moment."""
        return EdgeFacts(
            source=self._edge.source,
            target=self._edge.target,
            target_handle=self._edge.target_handle,
            taken=self.taken,
            buffered=len(self._buffer),
            behind=max(0, self._source.visible - self._seen),
            is_over=self.is_over,
        )

    def want(self) -> None:
        """Say that the reader has nothing left to do: what it has not seen is read, or the producer is told."""
        self._is_started = True
        if self._buffer or self._is_reading:
            return
        if self._seen < self._source.visible:
            self._is_reading = True
            self._spawn(self._read)
        else:
            self._source.has_changed()

    # The producer's side

    @property
    def waits(self) -> bool:
        """Whether the reader could not go on without more from the producer, or has not begun at all."""
        return not self._is_started or (not self._buffer and not self._is_reading)

    @property
    def has_room(self) -> bool:
        is_level = self._seen == self._source.visible
        return is_level and len(self._buffer) < MAX_BUFFERED_ITEMS and self._buffered_bytes < MAX_BUFFERED_BYTES

    def shown(self, turn: Sequence[tuple[int, Entry]], *, before: int, seq: Seq) -> None:
        """Hear what has become visible after the first `before` entries, as far as it is at hand."""
        if not self._is_started or self._is_reading:
            return
        is_full = len(self._buffer) >= MAX_BUFFERED_ITEMS or self._buffered_bytes >= MAX_BUFFERED_BYTES
        if turn and self._seen == before and not is_full:
            for _, entry in turn:
                self._add(entry)
            self._after = (turn[-1][0], seq)
            self._on_news()
        self.want()

    def heard(self) -> None:
        """Hear that nothing follows what is visible."""
        if self._is_started:
            self.want()
            self._on_news()

    def leave(self) -> None:
        """Read no more."""
        if self in self._source.readers:
            self._source.readers.remove(self)
            self._source.has_changed()

    # Reading back

    async def _read(self) -> None:
        try:
            while not self._buffer and self._seen < self._source.visible:
                before = self._seen
                self._add_rows(await self._read_page(self._after))
                if self._seen == before:  # the page was read a moment too early
                    await asyncio.sleep(READ_AGAIN_SECONDS)
        finally:
            self._is_reading = False
        self.want()  # there may have been nothing in it for this reader, and the producer waits
        self._on_news()

    def _add_rows(self, rows: Sequence[ItemRow]) -> None:
        for row in rows:
            if self._seen >= self._source.visible:
                break  # what follows was recorded a moment ago, and is not to be seen yet
            if self._source.is_ordered and row.position > self._seen:
                break  # what is missing was recorded while the page was on its way, and is read with the next one
            entries = entries_of(row)
            # Of a row that begins before the place where this one goes on, the first entries have been seen.
            known = max(0, self._seen - row.position) if self._source.is_ordered else 0
            for entry in entries[known:]:
                self._add(entry)
            self._after = (row.position, row.seq)

    def _add(self, entry: Entry) -> None:
        self._seen += 1
        for item in self._view.items_of(entry):
            if self._to_skip:
                self._to_skip -= 1
                self.taken += 1
                continue
            self._buffer.append(item)
            if item is not None:
                self._buffered_bytes += len(item)
