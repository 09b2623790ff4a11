"""Templates: values with places that edges fill."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.graph.templates import fill, is_constant, literal, problems_of, references


def filled(template: Any, **values: Any) -> Any:
    return fill(template, values.__getitem__, lambda value: value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ({"$ref": "a"}, [1]),
        ({"x": [{"$ref": "a"}, {"$ref": "b"}], "y": 3}, {"x": [[1], "bee"], "y": 3}),
        ({"$text": ["<", {"$ref": "b"}, "|", {"$ref": "a"}, ">"]}, "<bee|[1]>"),
        ({"$map": [{"$ref": "b"}, 2]}, ["bee", 2]),
        ({"$value": {"$ref": "a"}}, {"$ref": "a"}),
        ([{"$value": {"$text": 1}}], [{"$text": 1}]),
        ({"$ref": "a", "other": 1}, {"$ref": "a", "other": 1}),
        ("plain", "plain"),
        (None, None),
    ],
)
def test_places_are_filled(template: Any, result: Any):
    assert filled(template, a=[1], b="bee") == result


def test_references_are_found_in_order():
    template = {
        "x": [{"$ref": "a"}, {"$text": ["t", {"$ref": "b"}]}],
        "y": {"$value": {"$ref": "no"}},
        "z": {"$ref": "c"},
    }

    assert list(references(template)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "template",
    [{"$ref": 3}, {"$text": "x"}, {"$text": [3]}, {"$text": [{"$value": 1}]}, [{"$map": []}], {"x": {"$ref": None}}],
)
def test_what_is_not_written_as_a_template(template: Any):
    assert len(list(problems_of(template))) == 1


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$ref", "$text", "$map", "$value", "k", "l"]), inner, max_size=2)
    ),
    max_leaves=10,
)


@given(values)
def test_what_is_meant_literally_stays_itself(value: Any):
    written = literal(value)

    assert filled(written) == value
    assert list(references(written)) == []
    assert list(problems_of(written)) == []
    assert is_constant(value) == (written is value)
