"""Positions of streams as ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.journal.flow import Range, bridged, positions_in, ranges_of


@pytest.mark.parametrize(
    ("ranges", "kept", "expected"),
    [
        ([], set[int](), []),
        ([(3, 2)], {0, 1, 2, 5}, [(3, 2)]),
        ([(0, 1), (2, 1), (4, 1)], {1, 3, 5}, [(0, 5)]),
        ([(0, 1), (2, 1), (4, 1)], {3}, [(0, 1), (2, 3)]),
        ([(0, 2), (4, 1)], {2}, [(0, 2), (4, 1)]),
    ],
)
def test_ranges_become_one_with_what_is_kept_between_them(
    ranges: list[Range], kept: set[int], expected: list[Range]
) -> None:
    assert bridged(ranges, kept) == expected


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_nothing_is_added_but_what_is_kept(chosen: set[int], kept: set[int]) -> None:
    found = bridged(ranges_of(sorted(chosen)), kept)

    covered = list(positions_in(found))
    assert covered == sorted(set(covered))
    assert chosen <= set(covered) <= chosen | kept
