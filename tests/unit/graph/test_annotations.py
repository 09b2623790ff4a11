"""What annotations promise. In doubt the answer is yes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import msgspec
import pytest

from perdure.graph.annotations import describe, is_assignable, item_of, part_at, shaped

T = TypeVar("T")
UserId = NewType("UserId", int)


class Animal: ...


class Dog(Animal): ...


class Stone: ...


class Colour(Enum):
    RED = "red"


class Shape(Protocol):
    def area(self) -> float: ...


@dataclasses.dataclass
class Page:
    title: str
    words: list[str]
    parent: Page | None = None

    @property
    def size(self) -> int:
        return len(self.words)


class Row(TypedDict):
    name: str
    age: int


class Point(msgspec.Struct):
    x: int


class Pair(NamedTuple):
    left: int
    right: str


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (int, int),
        (bool, int),
        (int, float),
        (int, complex),
        (Any, int),
        (int, Any),
        (object, int),
        (Dog, Animal),
        (Animal, Dog),  # the value may be a dog
        (Optional[int], int),  # noqa: UP045
        (int, Union[int, str]),  # noqa: UP007
        (int | None, str | int),
        (None, int | None),
        (Literal["a"], str),
        (str, Literal["a"]),
        (Literal["a", "b"], Literal["b"]),
        (Literal[1], float),
        (list[int], list[float]),
        (list[int], Sequence[int]),
        (list[int], list),
        (list, list[int]),
        (list[int], Iterable[int]),
        (tuple[int, ...], list[int]),
        (tuple[int, str], tuple[int, str]),
        (tuple[int, str], list[int | str]),
        (dict[str, int], Mapping[str, float]),
        (dict[str, Any], Page),
        (Page, dict[str, Any]),
        (Row, dict[str, Any]),
        (dict, Row),
        (Row, Mapping[str, object]),
        (Point, dict),
        (Annotated[int, "positive"], int),
        (Annotated[int, ["unhashable"]], int),
        (UserId, int),
        (T, int),
        (Stone, Shape),  # a protocol is not asked
        (Pair, tuple[int, str]),
        ("Nowhere", int),
    ],
)
def test_what_may_fit_is_let_through(source: Any, target: Any):
    assert is_assignable(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (str, int),
        (int, str),
        (float, int),
        (None, int),
        (int, None),
        (Dog, Stone),
        (str, Literal[1, 2]),
        (Literal["a"], Literal["b"]),
        (Literal["a"], int),
        (Literal[True], Literal[1]),
        (list[str], list[int]),
        (list[int], int),
        (int, list[int]),
        (list[int], set[int]),
        (dict[str, str], dict[str, int]),
        (dict[str, int], list[int]),
        (tuple[int, int], tuple[int, int, int]),
        (tuple[str, ...], list[int]),
        (str | bytes, int | float),
        (list[list[str]], list[list[int]]),
        (str, Page),
        (str, Row),
        (Page, Point),
        (Colour, int),
        (UserId, str),
    ],
)
def test_what_never_fits_is_refused(source: Any, target: Any):
    assert not is_assignable(source, target)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements are younger")
def test_an_alias_that_is_made_of_itself_ends():
    namespace: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | str\ntype Other = dict[str, Other] | int", namespace)

    assert is_assignable(namespace["Json"], namespace["Json"])
    assert is_assignable(namespace["Json"], namespace["Other"])
    assert not is_assignable(namespace["Json"], float)


@pytest.mark.parametrize(
    ("annotation", "item"),
    [
        (list[int], int),
        (list, Any),
        (tuple[int, ...], int),
        (tuple[int, str], int | str),
        (Sequence[str], str),
        (Iterator[bytes], bytes),
        (set[int] | None, int),
        (Any, Any),
    ],
)
def test_the_items_of_a_list_have_a_type(annotation: Any, item: Any):
    assert item_of(annotation) == item


@pytest.mark.parametrize("annotation", [int, str, bytes, dict[str, int], Page, Row, None, Literal["a"], int | None])
def test_what_cannot_be_mapped_over_has_no_items(annotation: Any):
    with pytest.raises(TypeError):
        item_of(annotation)


@pytest.mark.parametrize(
    ("annotation", "path", "part"),
    [
        (Page, ("title",), str),
        (Page, ("words", 0), str),
        (Page, ("parent", "title"), str),
        (Page, ("size",), Any),
        (Row, ("age",), int),
        (Point, ("x",), int),
        (dict[str, list[int]], ("any", 3), int),
        (tuple[int, str], (1,), str),
        (tuple[int, str], (-1,), str),
        (list[int], (0,), int),
        (Any, ("a", 0, "b"), Any),
        (int | str, ("a",), Any),
    ],
)
def test_a_part_of_a_value_has_a_type(annotation: Any, path: tuple[str | int, ...], part: Any):
    assert part_at(annotation, path) == part


@pytest.mark.parametrize(
    ("annotation", "path"),
    [
        (Page, ("titel",)),
        (Row, ("nme",)),
        (Row, ("keys",)),
        (Point, (0,)),
        (tuple[int, str], (2,)),
        (list[int], ("a",)),
        (int, ("a",)),
        (Page, ("words", "a")),
    ],
)
def test_a_part_that_cannot_be_there_is_refused(annotation: Any, path: tuple[str | int, ...]):
    with pytest.raises(LookupError):
        part_at(annotation, path)


def test_annotations_are_described_as_they_are_written():
    assert [describe(kind) for kind in (int, None.__class__, list[int], int | None, Sequence[str])] == [
        "int",
        "None",
        "list[int]",
        "int | None",
        "Sequence[str]",
    ]


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 2], tuple, (1, 2)),
        ([1, [2, 3]], tuple[int, tuple[int, int]], (1, (2, 3))),
        ([[1], [2]], list[tuple[int]], [(1,), (2,)]),
        ({"a": [1]}, dict[str, set[int]], {"a": {1}}),
        ([1, 2, 3], tuple[int, int], [1, 2, 3]),  # does not fit
        ([1], Any, [1]),
        ("text", tuple[str, ...], "text"),
    ],
)
def test_a_value_is_given_the_containers_of_its_annotation(value: Any, annotation: Any, expected: Any):
    assert shaped(value, annotation) == expected
    assert type(shaped(value, annotation)) is type(expected)
