"""What cannot be stored, what cannot be read, and what someone else may have written."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import traceback
from collections import defaultdict
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ValueNotReadable, ValueNotStorable
from perdure.ids import type_name
from perdure.store.codecs import Codecs, blob_refs, canonical, default_codecs

codecs = default_codecs()


def encode(value: Any, using: Codecs = codecs) -> bytes:
    return using.encode(value, where="node 'resize', handle 'image'")


class Text(str):
    pass


class Zone(tzinfo):
    pass


@dataclasses.dataclass
class Stray:
    name: str


@dataclasses.dataclass
class DictAndMore(dict):  # type: ignore[type-arg]
    name: str = ""


@dataclasses.dataclass(slots=True)
class Slotted:
    name: str


class MoreSlots(Slotted):
    __slots__ = ("other",)


class Tensor:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("this tensor is on another device")


class Table:
    columns = ("a",)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(3)


class Model(pydantic.BaseModel):
    name: Any
    other: list[int] = []


class Extended(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    _hidden: int = 1


def stray() -> Stray:
    value = Stray("x")
    value.lock = object()  # type: ignore[attr-defined]
    return value


def more_slots() -> MoreSlots:
    value = MoreSlots("x")
    value.other = 1
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append((value,))
    return value


def deep(levels: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(levels - 1), [])


REFUSED = {
    "object": object(),
    "function": len,
    "lambda": lambda: 1,
    "class": int,
    "module": sys,
    "exception": ValueError("x"),
    "generator": (item for item in ()),
    "memoryview": memoryview(b"x"),
    "defaultdict": defaultdict(list),
    "str subclass": Text("x"),
    "int subclass": type("Number", (int,), {})(1),
    "other time zone": datetime(2024, 1, 1, tzinfo=Zone()),
    "masked array": np.ma.masked_array([1, 2], mask=[True, False]),
    "object array": np.array([object()]),
    "array of objects in records": np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]),
    "text array without layout": np.array(["a"], dtype=np.dtypes.StringDType()),
    "numpy text with zeros at its end": np.str_("a\x00"),
    "table": Table(),
    "tensor on another device": Tensor(),
    "attribute that is no field": stray(),
    "slot that is no field": more_slots(),
    "dataclass that is also a dict": DictAndMore(),
    "field without a value": object.__new__(Stray),
    "extra value named like a private one": Extended.model_validate({"_hidden": 2}),
    "model without a field": Model.model_construct(),
    "pydantic secret": pydantic.SecretStr("hunter2"),
    "itself inside": cyclic(),
    "101 levels": deep(101),
    "10,000 levels": deep(10_000),
    "key": {Text("x"): 1},
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_stored_is_refused_with_place_and_remedy(value: Any):
    with pytest.raises(ValueNotStorable) as caught:
        encode({"items": [1, 2, 3, {"image": value}]})

    error = caught.value
    assert error.code == "value_not_storable"
    assert error.where == "node 'resize', handle 'image'"
    assert error.path.startswith(".items[3].image")
    assert str(error).startswith("node 'resize', handle 'image': the value's .items[3].image")
    assert error.type_name in str(error)


def test_a_refusal_says_what_to_do():
    with pytest.raises(ValueNotStorable) as caught:
        encode([{"two words": {5: (object(),)}}])

    assert str(caught.value) == (
        "node 'resize', handle 'image': the value's [0]['two words'][5][0] (builtins.object) cannot be stored: "
        "there is no codec for its type. "
        "Use plain data, a dataclass, a msgspec or pydantic model, or register a codec for the type."
    )


class Secret(str):
    __perdure_secret__ = True


@dataclasses.dataclass
class Credentials:
    __perdure_secret__ = True
    password: str


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {x: 1}, lambda x: {"k": {x}}, Stray])
def test_a_secret_is_refused_and_not_shown(wrap: Any):
    content = "hunter" + str(2)

    with pytest.raises(ValueNotStorable, match="it is a secret") as caught:
        encode(wrap(Secret(content)))

    assert content not in "".join(traceback.format_exception(caught.value))


def test_a_secret_that_is_a_model_is_refused_as_well():
    own = default_codecs()
    own.register_type(Credentials)

    with pytest.raises(ValueNotStorable, match="it is a secret"):
        encode(Credentials("hunter2"), own)


@pytest.mark.slow
def test_a_small_value_that_would_fill_the_memory_is_refused():
    with pytest.raises(ValueNotStorable, match="lists, dicts and sets"):
        encode(functools.reduce(lambda inner, _: [inner, inner], range(60), []))


# Damaged and hostile data

DAMAGED = [
    b"",
    b"{",
    b"[1,]",
    b"NaN",
    b"1e999",
    b'"\xff"',
    b'"\\ud800"',
    b"[" * 100_000,
    b'{"$":"tuple"}',
    b'{"$":"tuple","v":[],"x":1}',
    b'{"$":1,"v":1}',
    b'{"$":null,"v":1}',
    b'{"$":"tuple","v":"abc"}',
    b'{"$":"dict","v":[[[],1]]}',
    b'{"$":"dict","v":[1]}',
    b'{"$":"set","v":[[1]]}',
    b'{"$":"bytes","v":"%%%"}',
    b'{"$":"bytes","v":7}',
    b'{"$":"int","v":"1e5"}',
    b'{"$":"float","v":"1.5"}',
    b'{"$":"datetime","v":"yesterday"}',
    b'{"$":"datetime","v":{"iso":"2024-01-01","fold":0,"zone":"../../etc/passwd"}}',
    b'{"$":"fraction","v":[1,0]}',
    b'{"$":"ndarray","v":{"dtype":"|O","shape":[1],"data":{"$":"bytes","v":"AAAAAAAAAAA="}}}',
    b'{"$":"ndarray","v":{"dtype":"|T16","shape":[1],"data":{"$":"bytes","v":"AAAAAAAAAAAAAAAAAAAAAA=="}}}',
    b'{"$":"ndarray","v":{"dtype":"<f8","shape":[1000000000000],"data":{"$":"bytes","v":""}}}',
    b'{"$":"ndarray","v":{"dtype":"<f8","shape":[-1],"data":{"$":"bytes","v":""}}}',
    b'{"$":"blob","v":{"sha256":"../../x","size":1}}',
    b'{"$":"blob","v":{"sha256":"' + b"0" * 64 + b'","size":1}}',
    b'{"$":"blob","v":{"sha256":"' + b"0" * 64 + b'","size":1,"refs":7}}',
    b'{"$":"blob","v":[]}',
]


@pytest.mark.parametrize("raw", DAMAGED, ids=lambda raw: raw[:50].decode("latin-1"))
def test_damaged_data_is_refused_with_one_kind_of_error(raw: bytes):
    with pytest.raises(ValueNotReadable):
        codecs.decode(raw, where="The output of node 'a'")


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1


class Point(NamedTuple):
    name: int
    y: float = 0.5


class Struct(msgspec.Struct):
    name: Any


class Numbers(pydantic.RootModel[list[int]]):
    pass


TYPES = (Stray, Struct, Model, Numbers, Colour, Access, Point)
STANDARD_TAGS = """tuple bytearray datetime date time timedelta decimal fraction complex uuid path range deque
    ordereddict counter unset bytes str int float set frozenset dict ndarray npscalar blob"""
tags = st.sampled_from([*STANDARD_TAGS.split(), *map(type_name, TYPES)])
field_names = st.sampled_from(["iso", "fold", "zone", "dtype", "shape", "data", "name", "root", "$unset", "$extra"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | field_names, inner)
        | st.fixed_dictionaries({"$": tags, "v": inner})
    ),
    max_leaves=12,
)


@given(documents)
def test_any_document_is_read_or_refused_and_nothing_else_happens(document: Any):
    raw = msgspec.json.encode(document)

    for read in (lambda: codecs.decode(raw, list(TYPES)), lambda: blob_refs(raw), lambda: canonical(raw)):
        with suppress(ValueNotReadable):
            read()
