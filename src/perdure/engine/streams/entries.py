"""Entries of a stream: what a node gave at one position, and the rows in which they are kept.

Of a generator, each item that it yields is an entry; of a mapped node, what came of each item. Most entries are one value on
the node's only output: *plain*, and nothing but its encoded bytes. Any other is a list of what the node gave there, by output
handle: one with several outputs gives one such dict, a generator that is mapped as many as it yields, an item that was given
up none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from perdure.graph.model import DEFAULT_OUTPUT
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.events import Encoded
from perdure.journal.flow import ranges_of
from perdure.store.transitions import ItemRow

Given = dict[str, Encoded]
"""What a node gave at once, by output handle."""
Entry = bytes | list[Given]
Item = bytes | None
"""An encoded item; None where a stream has a hole, because its node gave nothing for that position."""

MAX_ROW_ENTRIES: Final = 1_000
MAX_ROW_BYTES: Final = 1 << 20
"""Bounds what is read at once."""

_NOTHING: Final[list[Given]] = []
_plain = msgspec.json.Decoder(list[msgspec.Raw])
_full = msgspec.json.Decoder(list[list[dict[str, msgspec.Raw]]])
_encode = msgspec.json.Encoder().encode


def hole() -> Entry:
    """Return the entry of a position for which nothing was given."""
    return _NOTHING


def size_of(entry: Entry) -> int:
    """Return about how many bytes an entry takes."""
    if isinstance(entry, bytes):
        return len(entry)
    return sum(len(memoryview(value)) for given in entry for value in given.values())


def rows_of(node_id: NodeId, branch_id: BranchId, entries: Mapping[int, Entry], seq: Seq) -> list[ItemRow]:
    """Return the entries, by position, as rows of consecutive ones."""
    rows: list[ItemRow] = []
    for first, count in ranges_of(sorted(entries)):
        batch = [entries[position] for position in range(first, first + count)]
        for start, end in _cuts(batch):
            rows.append(_row(node_id, branch_id, first + start, batch[start:end], seq))
    return rows


def entries_of(row: ItemRow) -> list[Entry]:
    """Return the entries in a row."""
    if row.is_plain:
        return [bytes(value) for value in _plain.decode(row.items)]
    return list(_full.decode(row.items))


def items_in(entry: Entry, handle: str, *, is_call: bool) -> Sequence[Item]:
    """Return the items of an entry on one output.

    `is_call` says that the entry is what came of one call for one item: then there is exactly one item in it, or a hole, so
    that positions stay what they are.
    """
    if isinstance(entry, bytes):
        if handle == DEFAULT_OUTPUT:
            return (entry,)
        return (None,) if is_call else ()
    if is_call:
        given = entry[0].get(handle) if entry else None
        return (None if given is None else bytes(given),)
    return [bytes(given[handle]) for given in entry if handle in given]


def _row(node_id: NodeId, branch_id: BranchId, position: int, batch: Sequence[Entry], seq: Seq) -> ItemRow:
    plain = [entry for entry in batch if isinstance(entry, bytes)]
    if len(plain) == len(batch):
        items = b"[" + b",".join(plain) + b"]"
    else:
        items = _encode(
            [[{DEFAULT_OUTPUT: msgspec.Raw(entry)}] if isinstance(entry, bytes) else entry for entry in batch]
        )
    return ItemRow(
        node_id=node_id,
        branch_id=branch_id,
        position=position,
        count=len(batch),
        items=msgspec.Raw(items),
        is_plain=len(plain) == len(batch),
        seq=seq,
    )


def _cuts(batch: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Yield where to cut a batch so that no row gets too large."""
    start = size = 0
    for index, entry in enumerate(batch):
        size += size_of(entry)
        if index > start and (size > MAX_ROW_BYTES or index - start >= MAX_ROW_ENTRIES):
            yield start, index
            start, size = index, size_of(entry)
    yield start, len(batch)
