"""A stream that has become one value, taken apart again: whatever its entries were, readers see the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.attempts.values import Values
from perdure.engine.streams.apart import taken_apart
from perdure.engine.streams.entries import Entry, items_in, rows_of
from perdure.engine.streams.whole import PLACES, Whole
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.events import Encoded
from perdure.store.blobs import open_blobs
from perdure.store.codecs import process_codecs

HANDLES = (DEFAULT_OUTPUT, "low", "low?")

plain = st.integers(0, 9).map(lambda number: str(number).encode())
named = st.dictionaries(st.sampled_from(HANDLES), plain.map(msgspec.Raw), max_size=3).map(
    lambda found: [found] if found else []
)
uneven = st.lists(st.dictionaries(st.sampled_from(HANDLES), plain.map(msgspec.Raw), min_size=1, max_size=2), max_size=3)


def whole_of(entries: list[Entry], folder: Path, *, is_uneven: bool, by_rows: bool) -> dict[str, Encoded]:
    async def gather() -> dict[str, Encoded]:
        blobs = open_blobs(folder.as_uri())
        values = Values(process_codecs(), blobs, inline_max_bytes=1 << 20)
        async with Whole([DEFAULT_OUTPUT], (), values, is_uneven=is_uneven) as whole:
            if by_rows:
                rows = rows_of(NodeId("n"), BranchId(1), dict(enumerate(entries)), Seq(1))

                async def pages() -> Any:
                    yield rows

                await whole.add_rows(pages())
            else:
                for entry in entries:
                    whole.add(entry)
            outputs, _ = await whole.value()
        await blobs.close()
        return outputs

    return asyncio.run(gather())


def seen(entries: list[Entry], *, is_call: bool) -> list[Any]:
    return [[list(items_in(entry, handle, is_call=is_call)) for handle in HANDLES] for entry in entries]


@given(entries=st.lists(plain | named, max_size=12), by_rows=st.booleans())
def test_calls_that_give_one_item_each_or_none(
    entries: list[Entry], by_rows: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outputs = whole_of(entries, tmp_path_factory.getbasetemp() / "blobs", is_uneven=False, by_rows=by_rows)

    apart = taken_apart(outputs, len(entries), is_uneven=False)

    assert apart is not None
    assert seen(apart, is_call=True) == seen(entries, is_call=True)
    assert PLACES not in outputs or len(entries) > 1


@given(entries=st.lists(plain | uneven, max_size=12), by_rows=st.booleans())
def test_calls_that_give_any_number_of_items(
    entries: list[Entry], by_rows: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outputs = whole_of(entries, tmp_path_factory.getbasetemp() / "blobs", is_uneven=True, by_rows=by_rows)

    apart = taken_apart(outputs, len(entries), is_uneven=True)

    assert apart is not None
    assert seen(apart, is_call=False) == seen(entries, is_call=False)


def test_what_is_not_known_is_not_guessed() -> None:
    items = {DEFAULT_OUTPUT: msgspec.Raw(b"[1,2,3]")}
    assert taken_apart(items, 4, is_uneven=False) is None
    assert taken_apart(items, 3, is_uneven=True) is None
    assert taken_apart(items, 3, is_uneven=False) == [b"1", b"2", b"3"]
    assert taken_apart(items, None, is_uneven=False) == [b"1", b"2", b"3"]
    placed = items | {PLACES: msgspec.Raw(b'{"output":[[1,1],[0,2],[1,2]]}')}
    assert (
        taken_apart(placed, 5, is_uneven=False)
        == taken_apart(placed, None, is_uneven=False)
        == [b"1", [], [], b"2", b"3"]
    )
    assert taken_apart(placed, 6, is_uneven=False) is None
