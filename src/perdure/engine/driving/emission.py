"""What generators yield, on its way into the streams of their nodes.

A generator that is run again, because its last attempt was lost or has failed, is compared with what was recorded of it: as
long as it yields the same, nothing is given twice. At the first difference the two streams are not mixed: the run goes on on
a branch, on which the stream begins again and nobody has seen anything of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.engine.streams.entries import Entry
from perdure.engine.streams.outbox import Outbox
from perdure.engine.streams.packing import PackedEntry
from perdure.errors import ReplayDiffers
from perdure.graph.model import DEFAULT_OUTPUT

if TYPE_CHECKING:
    from perdure.engine.driving.actor import Actor


class Unread(Exception):
    """Nobody reads what the generator gives any more."""


class _Packer:
    """Packs what a generator yields, in its own thread."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def pack(self, value: Any) -> PackedEntry:
        return self._actor.pack(value)

    async def _kept(self, packed: PackedEntry) -> PackedEntry:
        if not packed.blobs or packed.are_kept:
            return packed
        await self._actor.kept(packed.blobs)
        return msgspec.structs.replace(packed, are_kept=True)


class Emission(_Packer):
    """Where the items of a node that is a generator go: one entry each."""

    def __init__(self, actor: Actor, outbox: Outbox, *, first: int, recorded: AsyncGenerator[Entry] | None) -> None:
        super().__init__(actor)
        self._outbox = outbox
        self._position = first
        self._recorded = recorded
        """What was recorded from `first` on, while it is not exhausted."""
        self._expected: Entry | None = None
        self._waiting: deque[PackedEntry] = deque()
        self._settling = asyncio.Lock()
        self._is_unread = False
        self._is_held_back = False
        self._is_at_rest = False

    @property
    def position(self) -> int:
        """How many items the generator has given."""
        return self._position + len(self._waiting)

    def end(self) -> None:
        """Have the generator closed when it gives its next item: nobody reads it any more."""
        self._is_unread = True
        self._outbox.has_changed()

    def offer(self, packed: Sequence[Any]) -> bool:
        if self._is_unread:
            raise Unread
        self._waiting.extend(packed)
        return self._pass_on() and self._outbox.has_room and not self._is_held_back

    async def room(self) -> None:
        await self.settle()
        self._is_at_rest = True
        try:
            await self._outbox.room()
            if self._is_held_back:
                await asyncio.Event().wait()  # until the attempt is told to stop
        finally:
            self._is_at_rest = False

    @property
    def waits(self) -> bool:
        """Whether the generator waits, and will not go on."""
        return self._is_held_back and self._is_at_rest

    def hold_back(self) -> None:
        """Let the generator go no further than its next item: the run is being let go."""
        self._is_held_back = True

    async def finish(self) -> None:
        """Pass on what is left: the generator has ended. That it has ended early is a difference, too."""
        await self.settle()
        if self._recorded is not None and await anext(self._recorded, None) is not None and not self._is_unread:
            await self._branch()
        await self._forget_recorded()

    def _pass_on(self) -> bool:
        """Pass on what can be without waiting. True if that was all."""
        waiting = self._waiting
        if self._recorded is None and not self._settling.locked():
            while waiting and (waiting[0].are_kept or not waiting[0].blobs):
                self._give(waiting.popleft())
        return not waiting

    async def settle(self) -> None:
        """Return when everything that was given so far has been passed on, or was found to be recorded already."""
        async with self._settling:
            await self._see_to_waiting()

    async def _see_to_waiting(self) -> None:
        while self._waiting:
            packed = await self._kept(self._waiting[0])
            if self._recorded is not None and await self._is_recorded(self._recorded, packed.entry):
                self._waiting.popleft()
                self._position += 1
                continue
            self._waiting.popleft()
            self._give(packed)

    async def _is_recorded(self, recorded: AsyncGenerator[Entry], entry: Entry) -> bool:
        """Whether the entry is there already."""
        expected = await anext(recorded, None)
        if expected is None:
            await self._forget_recorded()
            return False
        # If nobody reads it any more, nobody is to begin again because of what follows.
        if expected != entry and _form(expected) != _form(entry) and not self._is_unread:
            await self._branch()
            return False
        return True

    async def _branch(self) -> None:
        """Give the stream from its beginning on a branch: first what it has in common with what was recorded."""
        if self._actor.must_repeat_itself:
            raise ReplayDiffers(self._actor.node_id, self._position, "it is declared with replay='checkpoint'")
        before, self._outbox = self._actor.replay_differs(self._position)
        await self._forget_recorded()
        async with aclosing(self._actor.recorded_entries(before)) as common:
            for position in range(self._position):
                self._outbox.put(position, await anext(common))
                await self._outbox.room()

    async def _forget_recorded(self) -> None:
        if self._recorded is not None:
            await self._recorded.aclose()
            self._recorded = None

    def _give(self, packed: PackedEntry) -> None:
        if packed.blobs:
            self._actor.use(packed.blobs)
        self._outbox.put(self._position, packed.entry)
        self._position += 1


class NestedOutlet(_Packer):
    """Where a generator's items go that is called for one item of a stream: together they are one entry."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor)
        self._given: list[PackedEntry] = []

    def offer(self, packed: Sequence[Any]) -> bool:
        self._given.extend(packed)
        return True

    async def room(self) -> None:
        """There always is: what comes of one item is recorded at once."""

    async def entry(self) -> PackedEntry:
        """Return everything that was yielded for the item."""
        given: list[dict[str, msgspec.Raw]] = []
        blobs: list[Any] = []
        for packed in self._given:
            given += _form(packed.entry)
            blobs += packed.blobs
        return PackedEntry(given, tuple(blobs))


def _form(entry: Entry) -> list[dict[str, msgspec.Raw]]:
    """Return an entry in the form that all can have."""
    return [{DEFAULT_OUTPUT: msgspec.Raw(entry)}] if isinstance(entry, bytes) else entry
