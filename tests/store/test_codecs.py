from __future__ import annotations

import functools
import math
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BlobMissing, ValueNotReadable
from perdure.ids import digest_of
from perdure.store.codecs import BlobRef, blob_refs, canonical, default_codecs
from perdure.store.codecs.wire import whole_reference, with_blobs_inside
from tests.store.values import keys, same, scalars, texts, values

codecs = default_codecs()


def encode(value: Any) -> bytes:
    return codecs.encode(value, where="here")


@given(values)
def test_every_value_comes_back_as_it_was(value: Any):
    assert same(codecs.decode(encode(value)), value)


@given(values | st.dictionaries(keys, scalars, max_size=4) | scalars)
def test_the_short_way_of_plain_values_gives_what_the_long_one_does(value: Any):
    assert codecs.encode_plain(value) in (None, encode(value))


@pytest.mark.parametrize("value", [{"n": 1}, {"text": "ü", "ok": True, "nothing": None}, {}, 7, "text", True, None])
def test_what_most_bodies_return_takes_the_short_way(value: Any):
    assert codecs.encode_plain(value) == encode(value)


class _Text(str):
    pass


@pytest.mark.parametrize(
    "value",
    [
        {"$": 1},
        {"n": 1 << 60},
        1 << 60,
        {"n": math.nan},
        0.5,
        "\ud800",
        {"\ud800": 1},
        {1: 2},
        _Text("x"),
        {"n": _Text("x")},
        Counter("ab"),
        OrderedDict(a=1),
        {"inner": {}},
        "long" * 1_000,
        {"text": "long" * 1_000},
        {"long" * 1_000: 1},
        [1],
    ],
)
def test_whatever_needs_more_than_a_look_does_not_take_it(value: Any):
    assert codecs.encode_plain(value) is None


@given(values)
def test_what_is_stored_is_strict_json_that_any_parser_reads(value: Any):
    raw = encode(value)

    assert msgspec.json.encode(msgspec.json.decode(raw)) == raw
    assert "NaN" not in raw.decode() or "NaN" in str(value)


@given(values)
def test_equal_values_have_one_canonical_spelling(value: Any):
    raw = encode(value)
    spelled = canonical(raw)

    assert canonical(spelled) == spelled
    assert canonical(encode(codecs.decode(raw))) == spelled


@given(st.dictionaries(keys, scalars, min_size=2, max_size=6), st.randoms())
def test_the_order_of_a_dict_is_kept_and_does_not_count_in_the_canonical_spelling(items: dict[Any, Any], random: Any):
    pairs = list(items.items())
    random.shuffle(pairs)
    shuffled = dict(pairs)

    assert same(list(codecs.decode(encode(shuffled))), list(shuffled))
    assert canonical(encode(shuffled)) == canonical(encode(items))


@given(st.sets(texts, min_size=2))
def test_the_order_of_a_set_does_not_show(items: set[str]):
    grown = set[str]()
    for item in sorted(items, reverse=True):
        grown.add(item)

    assert encode(grown) == encode(items)


NASTY = [
    "",
    "a\x00b",
    "\ud800",
    {"\udfff": "\ud800 alone"},
    ["ok", {"deep": ("\ud800",)}],
    {"$": 1},
    {"$": "tuple", "v": [1]},
    {"$": "blob", "v": {"sha256": "0" * 64, "size": 1}},
    {"v": 1},
    {1: "int", "1": "text", None: 0, (1, 2): "pair", b"k": 1, 1.5: 2},
    {True: 1},
    [0, False, 0.0, -0.0],
    [math.nan, math.inf, -math.inf],
    [1.0, 1e16, 5e-324, 1.7976931348623157e308],
    [2**53 - 1, 2**53, -(2**53), 2**63, 2**64, -(2**200)],
    10**5_000,
    -(16**4_999),
    b"",
    bytes(range(256)),
    bytearray(b"mutable"),
    (),
    ((), [], {}, set(), frozenset()),
    (1, (2, [3, {4}])),
    {frozenset((1, 2)), frozenset()},
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45, seconds=7))),
    datetime.max,
    time(23, 59, 59, 999_999, tzinfo=UTC),
    date.min,
    timedelta(days=-1, microseconds=1),
    [Decimal("-0"), Decimal("1E+400"), Decimal("sNaN12"), Decimal("1.10")],
    Fraction(10**40, 3),
    [complex(math.nan, -0.0), 1j],
    UUID(int=0),
    [Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:\\y")],
    range(10, 0, -3),
    deque([1, [2]], maxlen=5),
    OrderedDict([("b", 1), ("a", (2,))]),
    Counter({"x": 2, 1: -1}),
    functools.reduce(lambda inner, _: [inner], range(99), []),
    functools.reduce(lambda inner, _: {(1,): inner}, range(99), {}),
    functools.reduce(lambda inner, _: {"a": inner, 1: 2}, range(99), {}),
    functools.reduce(lambda inner, _: {"a": inner, "\ud800": 2}, range(99), {}),
]


@pytest.mark.parametrize("value", NASTY, ids=lambda value: repr(value)[:40] if not isinstance(value, int) else "int")
def test_nasty_values_come_back_as_they_were(value: Any):
    assert same(codecs.decode(encode(value)), value)


def test_decoding_gives_fresh_objects_each_time():
    raw = encode({"items": [1, {"a": ()}], "data": bytearray(b"x"), "array": np.zeros(2)})

    first, second = codecs.decode(raw), codecs.decode(raw)
    first["items"][1]["b"] = 1
    first["data"].append(1)
    first["array"][0] = 7

    assert second["items"] == [1, {"a": ()}]
    assert second["data"] == bytearray(b"x")
    assert second["array"].tolist() == [0, 0]


def test_encoding_leaves_the_value_alone():
    value = {"items": [(1, 2), {3}], "$": {"deep": [b"x"]}}
    before = repr(value)

    encode(value)

    assert repr(value) == before


def test_only_numbers_that_every_reader_of_json_keeps_stand_as_themselves():
    assert encode([2**53 - 1, -(2**53 - 1), 0.5]) == b"[9007199254740991,-9007199254740991,0.5]"
    assert encode(2**53) == b'{"$":"int","v":"9007199254740992"}'
    assert encode([math.nan, -math.inf]) == b'[{"$":"float","v":"nan"},{"$":"float","v":"-inf"}]'


def test_a_value_is_read_from_raw_json_as_well():
    assert codecs.decode(msgspec.Raw(encode((1, 2)))) == (1, 2)


def test_spaces_and_escapes_that_a_database_may_add_do_not_matter():
    assert codecs.decode(b'{"$": "tuple", "v": [1, 2]}') == (1, 2)
    assert codecs.decode(b'{"\\u0024":"tuple","v":[1]}') == (1,)
    assert canonical(b'{"b": 1, "a": [ ]}') == b'{"a":[],"b":1}'


# Packing


def packed(value: Any, inline_max_bytes: int = 1_000) -> tuple[bytes, dict[BlobRef, bytes]]:
    result = codecs.pack(value, where="here", inline_max_bytes=inline_max_bytes)
    return result.raw, {blob.ref: blob.content for blob in result.blobs}


def test_a_small_value_is_packed_as_it_is_encoded():
    value = {"a": (1, b"x" * 500)}

    raw, blobs = packed(value)

    assert (raw, blobs) == (encode(value), {})
    assert blob_refs(raw) == set()


def test_large_parts_become_blobs_of_their_own():
    value = {
        "bytes": b"x" * 2_000,
        "twice": [b"x" * 2_000],
        "array": np.arange(1_000.0),
        "small": bytearray(b"y" * 1_500),
    }

    raw, blobs = packed(value)

    assert len(raw) <= 1_000
    assert sorted(map(len, blobs.values())) == [1_500, 2_000, 8_000]
    assert blob_refs(raw) == set(blobs)
    assert all(ref == BlobRef(digest_of(content), len(content)) for ref, content in blobs.items())
    restored = codecs.unpack(raw, read_blob=blobs.__getitem__)
    assert restored["bytes"] == value["bytes"]
    assert restored["array"].tobytes() == value["array"].tobytes()
    assert restored["small"] == value["small"]


def test_what_is_still_too_large_becomes_a_blob_whose_own_references_are_seen():
    value = {"text": "ä" * 5_000, "part": b"x" * 2_000, "pair": (1, 2)}

    raw, blobs = packed(value)

    assert len(raw) <= 1_000
    assert len(blobs) == 2
    assert blob_refs(raw) == set(blobs)
    assert codecs.unpack(raw, read_blob=blobs.__getitem__) == value


def test_the_references_of_a_value_stay_bounded():
    value = [index.to_bytes(2) * 2_000 for index in range(1_100)]

    raw, blobs = packed(value)

    assert len(raw) < 100_000
    assert len(blobs) == 1_001
    assert codecs.unpack(raw, read_blob=blobs.__getitem__) == value


@given(values, st.integers(1, 200))
def test_every_value_survives_packing(value: Any, inline_max_bytes: int):
    raw, blobs = packed(value, inline_max_bytes)

    assert same(codecs.unpack(raw, read_blob=blobs.__getitem__), value)
    assert blob_refs(raw) == set(blobs)


def test_what_looks_like_a_reference_in_a_users_value_is_none():
    value = {"$": "blob", "v": {"sha256": "0" * 64, "size": 1}}

    raw, blobs = packed(value)

    assert blob_refs(raw) == set(blobs) == set()
    assert codecs.unpack(raw, read_blob=blobs.__getitem__) == value


def test_the_error_of_a_blob_store_is_passed_on():
    raw, _ = packed(b"x" * 5_000)

    def read_blob(ref: BlobRef) -> bytes:
        raise BlobMissing(ref.digest, "nowhere")

    with pytest.raises(BlobMissing):
        codecs.unpack(raw, read_blob=read_blob)
    with pytest.raises(ValueNotReadable, match="unpack"):
        codecs.decode(raw)


@pytest.mark.parametrize("inline_max_bytes", [0, -1, 1024 * 1024 + 1])
def test_no_more_than_a_mebibyte_may_stay_inline(inline_max_bytes: int):
    with pytest.raises(ValueError, match="inline_max_bytes"):
        codecs.pack(1, where="here", inline_max_bytes=inline_max_bytes)


def test_a_value_can_be_given_whole_to_a_reader_without_blobs():
    codecs = default_codecs()
    value = {"photo": b"x" * 300_000, "text": "y" * 400_000}
    packed = codecs.pack(value, where="a value")
    contents = {blob.ref: blob.content for blob in packed.blobs}

    whole = with_blobs_inside(packed.raw, contents)

    assert len(packed.blobs) == 2
    assert not blob_refs(whole)
    assert codecs.decode(whole) == value


def test_packing_again_keeps_the_references_inside():
    codecs = default_codecs()
    packed = codecs.pack({"photo": b"x" * 300_000, "text": "y" * 1_000}, where="a value")

    again = codecs.repack(packed.raw, inline_max_bytes=100)

    assert whole_reference(again.raw) == again.blobs[-1].ref
    assert blob_refs(packed.raw) < blob_refs(again.raw)
