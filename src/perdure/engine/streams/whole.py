"""A whole stream as one value: the list of its items, by output.

Where not each entry has given exactly one item on each output, how many each has given is kept beside the lists, so that it is
known which entry an item is of.

Little of it is in memory at any time, however long it is: what is more than a few pages goes to files beside the blobs, and each
becomes a blob when it is complete.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from perdure.engine.attempts.values import Values
from perdure.engine.streams.entries import Entry, Given, entries_of
from perdure.errors import StoreUnavailable
from perdure.graph.model import DEFAULT_OUTPUT, Edge
from perdure.ids import digest_of
from perdure.journal.events import Encoded
from perdure.journal.values import part_handle, part_or_null
from perdure.store.codecs import BlobRef, NewBlob
from perdure.store.codecs.wire import encode_json, json_reference
from perdure.store.transitions import BlobUse, ItemRow

PLACES: Final = "/places"
"""The output beside the lists that says how many of their items each entry has given. No handle begins so."""
MAX_RUNS: Final = 100_000
"""How much of that is kept."""

Run = tuple[int, int]
"""A number of items, and how many entries in turn have given so many."""

MAX_GATHERED_BYTES: Final = 4 << 20
"""How much of a stream is gathered before it is written to files."""


class Whole:
    """Gathers the entries of a stream, in order, and beside them the parts of items that are `collected`. What it has written is
    removed when the block is left."""

    def __init__(
        self, handles: Iterable[str], collected: Iterable[Edge], values: Values, *, is_uneven: bool = False
    ) -> None:
        """`is_uneven` says that an entry may have several items on an output, so that their number alone tells nothing."""
        self._values = values
        self._parts: dict[str, Edge] = {part_handle(edge.source_handle, edge.path): edge for edge in collected}
        self._outputs: dict[str, _Output] = {handle: _Output() for handle in (*handles, *self._parts)}
        self._gathered_bytes = 0
        self._scratch: Path | None = None
        self._entries = 0
        self._is_uneven = is_uneven
        self._places: dict[str, _Places] | None = {} if is_uneven else None
        """How many items each entry has given, by output, from the first one on that is not plain."""

    async def __aenter__(self) -> Whole:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._scratch is not None:
            await self._values.beside(self._values.blobs.remove_scratch, self._scratch)

    def add(self, entry: Entry) -> None:
        """Add what was given at the next position."""
        self._entries += 1
        if isinstance(entry, bytes):
            if self._parts:
                self._add_parts({DEFAULT_OUTPUT: msgspec.Raw(entry)})
            self._add(DEFAULT_OUTPUT, entry)
            if self._places is not None:
                self._note(DEFAULT_OUTPUT)
            return
        if self._places is None:
            self._places = {DEFAULT_OUTPUT: _Places(self._entries - 1)}
        for given in entry:
            self._add_parts(given)
            for handle, value in given.items():
                if handle not in self._parts:
                    self._add(handle, bytes(value))
                    self._note(handle)

    def _note(self, handle: str) -> None:
        assert self._places is not None
        places = self._places.get(handle)
        if places is None:
            places = self._places[handle] = _Places(0)
        places.given_at(self._entries - 1)

    def _add_parts(self, given: Given) -> None:
        for name, edge in self._parts.items():
            if (value := given.get(edge.source_handle)) is not None:
                kept = given.get(name)  # of a value in a blob
                self._add(name, bytes(part_or_null(value, edge.path) if kept is None else kept))

    async def add_rows(self, pages: AsyncIterable[Sequence[ItemRow]]) -> None:
        """Add what was recorded, in order."""
        async for rows in pages:
            for row in rows:
                self._add_row(row)
            if self._gathered_bytes > MAX_GATHERED_BYTES:
                await self._spill()

    async def value(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        """Return the list on each output, and the blobs in which large ones are kept."""
        outputs: dict[str, Encoded] = {}
        blobs: tuple[BlobUse, ...] = ()
        for handle, output in self._outputs.items():
            content, kept = await self._kept(output)
            outputs[handle] = msgspec.Raw(content)
            blobs += kept
        if runs := self._runs():
            content, kept = await self._at_hand(msgspec.json.encode(runs))
            outputs[PLACES] = msgspec.Raw(content)
            blobs += kept
        return outputs, blobs

    def _runs(self) -> dict[str, list[Run]]:
        """Return how many items each entry has given, by output, where it is not one of each."""
        total = self._entries
        found = {handle: places.until(total) for handle, places in (self._places or {}).items()}
        usual: tuple[list[Run], ...] = () if self._is_uneven else ([(1, total)], [(0, total)], [])
        unusual = {handle: runs for handle, runs in found.items() if runs not in usual}
        # What would take as much room as the items is left out: they can be had as a whole only.
        return unusual if sum(map(len, unusual.values())) <= MAX_RUNS else {}

    def _add_row(self, row: ItemRow) -> None:
        if row.is_plain and not self._parts and self._places is None:
            self._entries += row.count
            self._add(DEFAULT_OUTPUT, bytes(row.items)[1:-1])  # a list is its items between brackets
            return
        for entry in entries_of(row):
            self.add(entry)

    def _add(self, handle: str, items: bytes) -> None:
        output = self._outputs.get(handle)
        if output is None:
            output = self._outputs[handle] = _Output()
        output.parts.append(items)
        self._gathered_bytes += len(items)

    async def _spill(self) -> None:
        if self._scratch is None:
            self._scratch = await self._values.blobs.make_scratch()
        scratch = self._scratch
        for number, output in enumerate(self._outputs.values()):
            if output.parts:
                output.file = output.file or scratch / str(number)
                await self._values.beside(functools.partial(_append, output.file), output.cut())
        self._gathered_bytes = 0

    async def _kept(self, output: _Output) -> tuple[bytes, tuple[BlobUse, ...]]:
        if output.file is not None:
            await self._values.beside(functools.partial(_append, output.file), output.cut() + b"]")
            ref = await self._values.blobs.put_file(output.file)
            return _reference(ref), (BlobUse(digest=ref.digest, size=ref.size),)
        return await self._at_hand(output.cut() + b"]")

    async def _at_hand(self, content: bytes) -> tuple[bytes, tuple[BlobUse, ...]]:
        if len(content) <= self._values.inline_max_bytes:
            return content, ()
        blob = NewBlob(digest_of(content), content)
        return _reference(BlobRef(blob.digest, len(content))), await self._values.keep((blob,))


class _Places:
    """How many items each entry has given on one output, as runs of equal numbers."""

    __slots__ = ("_counted", "_runs")

    def __init__(self, plain: int) -> None:
        """So many entries have given one item each so far."""
        self._runs: list[Run] = [(1, plain)] if plain else []
        self._counted = plain

    def given_at(self, position: int) -> None:
        """Count an item of the entry at this position, which is the last one."""
        if len(self._runs) > MAX_RUNS:
            return
        if position < self._counted:
            count, number = self._runs.pop()
            self._add(count, number - 1)
            self._add(count + 1, 1)
            return
        self._add(0, position - self._counted)
        self._add(1, 1)
        self._counted = position + 1

    def until(self, total: int) -> list[Run]:
        """Return the runs for so many entries."""
        self._add(0, total - self._counted)
        self._counted = total
        return self._runs

    def _add(self, count: int, number: int) -> None:
        if self._runs and self._runs[-1][0] == count:
            number += self._runs.pop()[1]
        if number:
            self._runs.append((count, number))


class _Output:
    """The list on one output, as far as it is not in its file."""

    __slots__ = ("file", "has_begun", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """Items, and runs of items with commas between them."""
        self.file: Path | None = None
        self.has_begun = False

    def cut(self) -> bytes:
        """Return what follows in the list, up to here."""
        begin = b"[" if not self.has_begun else b"," if self.parts else b""
        content = begin + b",".join(self.parts)
        self.has_begun = True
        self.parts = []
        return content


def _append(path: Path, content: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise StoreUnavailable(f"A stream cannot be gathered in {path}: {error}") from error


def _reference(ref: BlobRef) -> bytes:
    return encode_json(json_reference(ref, (), ()))
