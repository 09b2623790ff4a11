"""What a node gives item by item: gathered until it is recorded, shown to readers when it is, kept in order.

**Positions.** Every entry has one, given by whoever puts it: a generator counts what it yields, a mapped node takes the
position of the item that it was called with. Entries may be put in any order; readers of an ordered stream see the first one
that is missing, and nothing behind it, until it comes.

**Room.** A producer waits while its readers have enough to do, but never while one of them waits for it: what a slower one
has not taken by then is dropped from memory and read back from the store. So both arms of a diamond may hold back as much
as they like, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.engine.streams.entries import Entry, rows_of, size_of
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.flow import Range, batch_digest
from perdure.store.transitions import ItemRow

if TYPE_CHECKING:
    from perdure.engine.streams.inbox import Inbox

MAX_PENDING_ENTRIES: Final = 1_024
MAX_PENDING_BYTES: Final = 4 << 20
"""How much may wait to be recorded before whoever gives it has to wait, too."""
MAX_AHEAD_BYTES: Final = 4 << 20
"""How much of what was recorded before, behind what is missing, is kept at hand until readers may see it."""
MAX_KEPT_BYTES: Final = 256 << 10
"""A stream of no more than this is kept at hand until it has become one value."""

_NOTHING: Final[Mapping[int, Entry]] = MappingProxyType({})


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries on their way to the store."""

    rows: list[ItemRow]
    entries: dict[int, Entry]
    seq: Seq
    """The event that records them."""
    consumed: dict[str, int]
    """How much the node had read of its own streams by then, where the positions do not tell."""
    size: int
    """About how many bytes they take."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple((row.position, row.count) for row in self.rows)

    @property
    def digest(self) -> str:
        return batch_digest(bytes(row.items) for row in self.rows)


class Outbox:
    """The stream of one node, as far as it is in memory."""

    def __init__(
        self,
        node_id: NodeId,
        branch_id: BranchId,
        *,
        is_ordered: bool,
        is_held: bool,
        on_put: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.branch_id = branch_id
        self.is_ordered = is_ordered
        self.visible = 0
        """How many entries readers may see."""
        self.is_over = False
        """Whether readers may know that nothing follows."""
        self.readers: list[Inbox] = []
        self.low = 0
        """Everything below this position was put."""
        self.unrecorded = 0
        """How many entries were put and are not recorded."""
        self.on_recorded: Callable[[], None] = _nobody_waits
        """Called when some of them are."""
        self._is_held = is_held
        self._on_put = on_put
        self._beyond: set[int] = set()
        self._recorded = 0
        self._unseen: set[int] = set()
        """Positions that are recorded, but not visible, because one before them is missing."""
        self._pending: dict[int, Entry] = {}
        self._pending_bytes = 0
        self._in_flight_bytes = 0
        self._ahead: dict[int, Entry] = {}
        """Entries at such positions, as far as they are at hand."""
        self._whole: dict[int, Entry] | None = {} if is_ordered else None
        """Everything there is, while that is little. The order of what is not ordered is that in which it was recorded."""
        self._whole_bytes = 0
        self._consumed: dict[str, int] = {}
        self._has_room: asyncio.Event = asyncio.Event()
        self._on_unblocked: Callable[[], None] | None = None
        self._is_waiting = False
        """Whether somebody waits for room."""

    # What is there already

    def restore(self, ranges: Iterable[Range], *, is_closed: bool, at_hand: Mapping[int, Entry] = _NOTHING) -> None:
        """Take note of entries that were recorded by others before. Some may be at hand, and need not be read back."""
        for first, count in sorted(ranges):
            self._recorded += count
            if first == self.low:
                self.low += count
            else:
                self._beyond.update(range(first, first + count))
        self._unseen = set(self._beyond) if self.is_ordered else set()
        self._ahead = {position: entry for position, entry in at_hand.items() if position in self._unseen}
        self._whole = None if self._recorded else self._whole
        self._has_all(is_closed)

    def has(self, position: int) -> bool:
        """Whether there is an entry at the position, recorded or about to be."""
        return position < self.low or position in self._beyond

    @property
    def whole(self) -> list[Entry] | None:
        """All entries in their order, if they are at hand; None if they have to be read."""
        if self._whole is None:
            return None
        return [self._whole[position] for position in sorted(self._whole)]

    # What comes

    def cut_back(self, first: int) -> None:
        """Go on from a position: nothing of it was ever visible, and what was recorded from there on is removed."""
        self.low = self._recorded = first
        self.visible = 0
        self._beyond.clear()
        self._unseen.clear()
        self._ahead.clear()
        self.discard()

    def discard(self) -> None:
        """Forget what was put and is not recorded: whoever gave it no longer counts."""
        self.unrecorded -= len(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._whole = None

    def put(self, position: int, entry: Entry, *, consumed: dict[str, int] | None = None) -> None:
        """Give the entry at a position."""
        size = size_of(entry)
        self._pending[position] = entry
        self.unrecorded += 1
        if consumed:
            self._consumed = consumed
        self._pending_bytes += size
        if position == self.low:
            self.low += 1
            while self.low in self._beyond:
                self._beyond.discard(self.low)
                self.low += 1
        else:
            self._beyond.add(position)
        if self._whole is not None:
            self._whole_bytes += size
            if self._whole_bytes > MAX_KEPT_BYTES:
                self._whole = None
            else:
                self._whole[position] = entry
        self._on_put()

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to be recorded."""
        return bool(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether more may be put without waiting."""
        if len(self._pending) >= MAX_PENDING_ENTRIES or self._pending_bytes + self._in_flight_bytes > MAX_PENDING_BYTES:
            return False
        return not self._are_readers_busy or not self._is_any_reader_full()

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is put because readers have enough to do."""
        return not self.is_over and self._are_readers_busy and (self._is_waiting or self._is_any_reader_full())

    async def room(self) -> None:
        """Return when there is room."""
        while not self.has_room:
            self._has_room.clear()
            self._is_waiting = True
            try:
                await self._has_room.wait()
            finally:
                self._is_waiting = False

    def has_changed(self) -> None:
        """Look again whether there is room: a reader has taken something, or waits."""
        if not self._has_room.is_set() and self.has_room:
            self._has_room.set()
        if self._on_unblocked is not None and not self.is_blocked:
            tell, self._on_unblocked = self._on_unblocked, None
            tell()

    def when_unblocked(self, tell: Callable[[], None]) -> None:
        """Have somebody told, once, when readers want more."""
        self._on_unblocked = tell

    def cut(self, seq: Seq) -> Batch:
        """Return what is to be recorded now, by the event with this number."""
        pending, self._pending = self._pending, {}
        size, self._pending_bytes = self._pending_bytes, 0
        self._in_flight_bytes += size
        rows = rows_of(self.node_id, self.branch_id, pending, seq)
        return Batch(rows=rows, entries=pending, seq=seq, consumed=self._consumed, size=size)

    # What readers see

    def show(self, batch: Batch) -> None:
        """Show a batch to readers: it is recorded."""
        self._recorded += len(batch.entries)
        self.unrecorded -= len(batch.entries)
        self._in_flight_bytes -= batch.size
        if not self._is_held:
            before = self.visible
            turn = self._in_turn(batch.entries)
            for reader in self.readers:
                reader.shown(turn, before=before, seq=batch.seq)
        self.has_changed()
        self.on_recorded()

    def close(self) -> None:
        """Tell readers that nothing follows, and show what was held back."""
        self._has_all(is_closed=True)
        for reader in self.readers:
            reader.heard()

    def _has_all(self, is_closed: bool) -> None:
        self.is_over = is_closed
        if is_closed or not self._is_held:
            self.visible = self._recorded if not self.is_ordered else self.low

    def _in_turn(self, entries: dict[int, Entry]) -> list[tuple[int, Entry]]:
        """Make visible what can be with these, and return it as far as it is at hand."""
        if not self.is_ordered:
            self.visible += len(entries)
            return sorted(entries.items())
        self._ahead.update(entries)
        self._unseen.update(entries)
        turn: list[tuple[int, Entry]] = []
        is_at_hand = True
        while self.visible in self._unseen:
            self._unseen.discard(self.visible)
            entry = self._ahead.pop(self.visible, None)
            is_at_hand = is_at_hand and entry is not None
            if is_at_hand and entry is not None:
                turn.append((self.visible, entry))
            self.visible += 1
        return turn

    @property
    def _are_readers_busy(self) -> bool:
        """Whether there are readers, and none of them waits for more."""
        return bool(self.readers) and not any(reader.waits for reader in self.readers)

    def _is_any_reader_full(self) -> bool:
        return any(not reader.has_room for reader in self.readers)


def _nobody_waits() -> None:
    """Nobody has to hear that entries are recorded."""
