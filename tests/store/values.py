"""Values of every kind, drawn at random, and what it means that two of them are the same."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=()))
moments = st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones(no_cache=False), allow_imaginary=False)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**52, max_value=2**54)
    | st.floats()
    | texts
    | st.binary()
    | moments
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
    | st.complex_numbers()
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(texts | st.just("$"), inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(keys, max_size=4)
        | st.builds(deque, st.lists(inner), st.none() | st.integers(min_value=10, max_value=99))
        | st.builds(OrderedDict, st.dictionaries(texts, inner))
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, order and spelling: unlike `==`, for which 1 is True and NaN is nothing."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict | OrderedDict | Counter):
        return same([list(pair) for pair in left.items()], [list(pair) for pair in right.items()])
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(same(item, other) for other in right) for item in left)
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    return hex(left) == hex(right) if type(left) is int else repr(left) == repr(right)
