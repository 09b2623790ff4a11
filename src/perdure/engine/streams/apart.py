"""Entries of a stream out of the one value that it has become, for whoever wants some of its items once more: what `Whole` has
put together, taken apart again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from perdure.engine.streams.entries import Entry, Given, hole
from perdure.engine.streams.whole import PLACES, Run
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.journal.events import Encoded
from perdure.journal.values import items_of
from perdure.store.codecs.wire import whole_reference

_runs = msgspec.json.Decoder(dict[str, list[Run]])


def taken_apart(outputs: Mapping[str, Encoded], total: int | None, *, is_uneven: bool) -> list[Entry] | None:
    """Return the entries of a stream of so many entries, of which there is the whole, in their order. None if it is not known
    which entry an item is of. Without a number there are as many as there are items. The lists themselves are in no blob."""
    lists = {handle: items_of(value) for handle, value in outputs.items() if handle != PLACES}
    kept = {handle: lists.pop(handle) for handle in list(lists) if _is_part(handle)}
    if is_uneven and PLACES not in outputs and any(lists.values()):
        return None
    known = _runs.decode(outputs[PLACES]) if PLACES in outputs else {}
    if total is None:
        told = (sum(number for _, number in runs) for runs in known.values())
        total = next(told, max(map(len, lists.values()), default=0))
    counts: dict[str, Iterator[int]] = {}
    for handle, items in lists.items():
        runs = known.get(handle, [(1, total)] if items else [(0, total)])
        if sum(number for _, number in runs) != total or sum(count * number for count, number in runs) != len(items):
            return None
        counts[handle] = itertools.chain.from_iterable(itertools.repeat(count, number) for count, number in runs)
    taken = {handle: zip(items, _beside(handle, len(items), kept), strict=True) for handle, items in lists.items()}
    return [
        _entry({handle: list(itertools.islice(taken[handle], next(counts[handle]))) for handle in lists})
        for _ in range(total)
    ]


def _is_part(handle: str) -> bool:
    """Whether a list holds parts of items, and not what was given by itself."""
    return "/" in handle and not handle.endswith("?")


def _beside(handle: str, items: int, kept: Mapping[str, Sequence[Encoded]]) -> Iterable[Given]:
    """Yield the parts that are kept beside each item of an output."""
    parts = {name: values for name, values in kept.items() if name.startswith(f"{handle}/") and len(values) == items}
    return ({name: values[index] for name, values in parts.items()} for index in range(items))


def _entry(given: Mapping[str, Sequence[tuple[Encoded, Given]]]) -> Entry:
    """Return the entry of what was given at one position."""
    if any(len(items) > 1 for items in given.values()):
        return [{handle: value} | _needed(value, beside) for handle, items in given.items() for value, beside in items]
    together: Given = {}
    for handle, items in given.items():
        for value, beside in items:
            together |= {handle: value} | _needed(value, beside)
    if together.keys() == {DEFAULT_OUTPUT}:
        return bytes(together[DEFAULT_OUTPUT])
    return [together] if together else hole()


def _needed(value: Encoded, beside: Given) -> Given:
    """Return the parts of an item that cannot be had from itself, because it is in a blob."""
    return beside if whole_reference(value) is not None else {}
