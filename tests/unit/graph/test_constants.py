"""Constants: JSON in the graph, Python values in a node's hands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure.graph.constants import (
    check_constant,
    from_constant,
    from_json,
    is_schema_compatible,
    schema_of,
    to_constant,
    why_not_json,
)


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Settings:
    depth: int
    words: list[str] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int


class Pair(NamedTuple):
    left: int
    right: str


class Review(pydantic.BaseModel):
    ok: bool
    when: datetime | None = None


class Opaque: ...


@dataclasses.dataclass
class Job:
    folder: Path
    price: Decimal


MOMENT = datetime(2024, 2, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "annotation", "plain"),
    [
        (3, int, 3),
        ("a", Any, "a"),
        ((1, 2), tuple[int, int], [1, 2]),
        ({"a": [1, None]}, dict[str, Any], {"a": [1, None]}),
        (MOMENT, datetime, "2024-02-29T12:00:00Z"),
        (timedelta(seconds=90), timedelta, "PT90S"),
        (Decimal("1.10"), Decimal, "1.10"),
        (UUID(int=1), UUID, "00000000-0000-0000-0000-000000000001"),
        (b"hi", bytes, "aGk="),
        (Colour.RED, Colour, "red"),
        ({3, 1, 2}, set[int], [1, 2, 3]),
        (Settings(2), Settings, {"depth": 2, "words": []}),
        ([Settings(2, ["a"])], list[Settings], [{"depth": 2, "words": ["a"]}]),
        (Point(1), Point, {"x": 1}),
        (Pair(1, "a"), Pair, [1, "a"]),
        (Review(ok=True, when=MOMENT), Review, {"ok": True, "when": "2024-02-29T12:00:00Z"}),
        ([Review(ok=False)], list[Review], [{"ok": False, "when": None}]),
        (Path("/etc/hosts"), Path, "/etc/hosts"),
        ([PurePosixPath("a"), None], list[PurePosixPath | None], ["a", None]),
        (Job(Path("a"), Decimal("1.10")), Job, {"folder": "a", "price": "1.10"}),
        ({1: "a"}, dict[int, str], {"1": "a"}),
    ],
)
def test_a_constant_comes_back_as_it_was(value: Any, annotation: Any, plain: Any):
    written = to_constant(value, annotation)

    assert written == plain
    assert from_constant(written, annotation) == value


def test_a_tuple_for_a_parameter_without_annotation_is_a_list():
    assert to_constant({"a": (1, (2,))}, Any) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (MOMENT, Any),  # nobody could tell it from a text
        (b"hi", str),
        (Opaque(), Opaque),
        (lambda: 1, Callable[[], int]),
        (math.nan, float),
        (math.inf, float),
        (2**70, int),
        ({1: "a"}, dict[str, str]),
        ("\ud800", str),
        (Settings(2), Any),
        (object(), object),
    ],
)
def test_what_would_not_come_back_is_refused(value: Any, annotation: Any):
    with pytest.raises(ValueError, match=r".+"):
        to_constant(value, annotation)


def test_endless_constants_are_refused():
    circle: list[Any] = []
    circle.append(circle)

    assert "deeper than 100" in (why_not_json(circle) or "")


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (1, int),
        (1, float),
        (None, int | None),
        ("a", Literal["a", "b"]),
        ({"depth": 1}, Settings),
        ({"x": 1}, Point),
        ({"ok": True}, Review),
        ([{"ok": True}], list[Review]),
        ("red", Colour),
        ("2024-02-29T12:00:00Z", datetime),
        ("anything", Opaque),
        ("anything", Callable[[], int]),
        ("a", "Nowhere"),
        ({"depth": 1}, int | Settings | Point),  # more than msgspec can tell apart
        ("/etc", Path | int),
    ],
)
def test_a_constant_that_fits_or_cannot_be_judged_passes(value: Any, annotation: Any):
    assert check_constant(value, annotation) is None


@pytest.mark.parametrize(
    ("value", "annotation", "reason"),
    [
        ("1", int, "Expected `int`, got `str`"),
        (1.5, int, "Expected `int`, got `float`"),
        (True, int, "Expected `int`, got `bool`"),
        (None, int, "Expected `int`, got `null`"),
        ("c", Literal["a", "b"], "Invalid enum value 'c'"),
        ({"depth": "deep"}, Settings, "$.depth"),
        ({}, Point, "missing required field `x`"),
        ({"ok": "perhaps"}, Review, "ok"),
        ([{}], list[Review], "Field required"),
        ("blue", Colour, "blue"),
        (5, Path, "Expected `Path`, got `int`"),
        ({"folder": 5, "price": 1}, Job, "$.folder"),
        ("a", int | Settings | Point, "Expected `int`, got `str`"),
        ({"a": "b"}, dict[int, str], "Expected `int`, got `str`"),
    ],
)
def test_a_constant_that_does_not_fit_is_told_why(value: Any, annotation: Any, reason: str):
    problem = check_constant(value, annotation)

    assert problem is not None
    assert reason in problem
    assert "pydantic.dev" not in problem


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("0.12345678901234567890123", Decimal, Decimal("0.12345678901234567890123")),
        ("[1.10, null]", list[Decimal | None], [Decimal("1.10"), None]),
        (
            '{"folder": "/a", "price": 12345678901234567890.10}',
            Job,
            Job(Path("/a"), Decimal("12345678901234567890.10")),
        ),
        ("0.5", float, 0.5),
        ('{"1": "a"}', dict[int, str], {1: "a"}),
        ('["/a"]', list[Path] | int, [Path("/a")]),
        ('{"ok": true}', Review, Review(ok=True)),
        ('{"a": [1, 2.5]}', Any, {"a": [1, 2.5]}),
        ('{"a": 1}', Opaque, {"a": 1}),  # cannot be judged
    ],
)
def test_json_is_read_for_its_annotation_and_keeps_every_digit(text: str, annotation: Any, value: Any):
    read = from_json(text.encode(), annotation)

    assert read == value
    assert repr(read) == repr(value)


@pytest.mark.parametrize(
    ("text", "annotation"), [("NaN", float), ("{", Any), ("1.5", int), ('"x"', Decimal), ('{"ok": 5}', Review)]
)
def test_json_that_does_not_fit_is_refused(text: str, annotation: Any):
    with pytest.raises(ValueError, match=r".+"):
        from_json(text.encode(), annotation)


def test_annotations_have_schemas_where_one_is_known():
    assert schema_of(int) == {"type": "integer"}
    assert schema_of(list[str]) == {"type": "array", "items": {"type": "string"}}
    assert schema_of(Review)["required"] == ["ok"]
    assert schema_of(list[Review])["type"] == "array"
    assert schema_of(Path) == {"type": "string", "format": "path"}
    assert schema_of(Any) == {}
    assert schema_of(Opaque) == {}
    assert schema_of(Callable[[], int]) == {}


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        (int, float, True),
        (float, int, True),  # a number may be whole
        (str, int, False),
        (int | None, str | None, True),
        (int, str | None, False),
        (Literal["a"], int, False),
        (Any, int, True),
        (list[int], int, False),
    ],
)
def test_schemas_are_compared_by_their_types(source: Any, target: Any, fits: bool):
    assert is_schema_compatible(schema_of(source), schema_of(target)) is fits


@pytest.mark.parametrize("schema", [{"anyOf": 3}, {"anyOf": [3]}, {"type": 5}, {"enum": "x"}, {"type": [1, "string"]}])
def test_a_schema_that_is_none_admits_everything(schema: dict[str, Any]):
    assert is_schema_compatible(schema, {"type": "string"})
