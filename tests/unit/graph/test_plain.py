"""The quick question whether something is plain JSON must agree with the thorough one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.graph.constants import MAX_DEPTH, is_plain, why_not_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800") | st.binary(max_size=1)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@given(VALUES)
def test_it_says_what_the_thorough_check_says(value: Any):
    assert is_plain(value) == (why_not_json(value) is None)


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1])
def test_it_counts_levels_alike(levels: int):
    assert is_plain(nested(levels)) == (why_not_json(nested(levels)) is None)


@pytest.mark.parametrize("value", [(1, 2), OrderedDict(a=1), {"a": (1,)}])
def test_what_only_resembles_json_is_left_to_the_thorough_check(value: Any):
    assert not is_plain(value)


def test_a_circle_has_an_end():
    circle: list[Any] = []
    circle.append(circle)

    assert not is_plain(circle)
