"""Fields that no class has are told, with the one that may have been meant; what a class takes besides is left alone."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from perdure.graph.fields import MOST_TOLD, outside_schema_of, unknown_fields, unknown_to

T = TypeVar("T")


@dataclasses.dataclass
class Cfg:
    batch_size: int = 10
    dry_run: bool = True


class Order(msgspec.Struct, rename="camel"):
    unit_price: int = 0
    cfg: Cfg | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    legs: int = 4


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Row(TypedDict, total=False):
    name: str
    cfg: Cfg


class Model(pydantic.BaseModel):
    batch_size: int = pydantic.Field(10, alias="batchSize")
    cfg: Cfg = Cfg()
    inner: list[Cfg] = []


class Open(pydantic.BaseModel, extra="allow"):
    cfg: Cfg = Cfg()
    model: Model | None = None


class Older(pydantic.BaseModel):
    size: int = 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_older(cls, data: Any) -> Any:
        return data


def _halved(value: Any) -> Any:
    return value


class Loose(pydantic.BaseModel):
    cfg: Annotated[Cfg, pydantic.BeforeValidator(_halved)] = Cfg()
    words: dict[str, int] = {}


@dataclasses.dataclass
class Tree:
    leaves: int = 0
    below: list[Tree] = dataclasses.field(default_factory=list["Tree"])


@pytest.mark.parametrize(
    ("value", "annotation", "told"),
    [
        (
            {"batchsize": 5},
            Cfg,
            "`$.batchsize` is no field of Cfg (did you mean 'batch_size'?): it has batch_size, dry_run",
        ),
        ({"zzz z": 5}, Cfg, "`$['zzz z']` is no field of Cfg: it has batch_size, dry_run"),
        ([{}, {"dryrun": False}], list[Cfg], "`$[1].dryrun` is no field of Cfg"),
        ([1, {"dryrun": False}], tuple[int, Cfg], "`$[1].dryrun` is no field of Cfg"),
        ({"a": {"dryrun": False}}, dict[str, Cfg], "`$['a'].dryrun` is no field of Cfg"),
        ({"unit_price": 5}, Order, "`$.unit_price` is no field of Order (did you mean 'unitPrice'?)"),
        ({"cfg": {"dryrun": 1}}, Order | None, "`$.cfg.dryrun` is no field of Cfg"),
        ({"type": "Cat", "live": 3}, Cat | Dog, "`$.live` is no field of Cat (did you mean 'lives'?)"),
        ({"content": {"dryrun": True}}, Box[Cfg], "`$.content.dryrun` is no field of Cfg"),
        ({"cfg": {"dryrun": True}}, Row, "`$.cfg.dryrun` is no field of Cfg"),
        ({"batch_size": 5}, Model, "`$.batch_size` is no field of Model (did you mean 'batchSize'?)"),
        ({"inner": [{"dryrun": True}]}, Model, "`$.inner[0].dryrun` is no field of Cfg"),
        ({"model": {"inner": [{"dryrun": True}]}}, Open, "`$.model.inner[0].dryrun` is no field of Cfg"),
        ({"below": [{"leafs": 3}]}, Tree, "`$.below[0].leafs` is no field of Tree (did you mean 'leaves'?)"),
    ],
)
def test_a_field_that_no_class_has_is_told_with_its_place(value: Any, annotation: Any, told: str):
    assert len(unknown_fields(value, annotation)) == 1
    assert told in unknown_fields(value, annotation)[0]


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({"batch_size": 5, "dry_run": False}, Cfg),
        (Cfg(), Cfg),
        ({"unitPrice": 5, "cfg": None}, Order),
        ({"type": "Dog", "legs": 3}, Cat | Dog),
        ({"name": "a", "anything": 1}, Row),
        ({"anything": 1, "cfg": {"anything": 1}}, Open),
        ({"older": 1}, Older),
        ({"cfg": {"dryrun": 1}, "words": {"anything": 1}}, Loose),
        ({"anything": 1}, dict[str, int]),
        ({"anything": 1}, Cfg | dict[str, Any]),
        ({"anything": 1}, Any),
        ([[1]], list[list[int]]),
        ("a", Literal["a"]),
    ],
)
def test_what_a_class_takes_is_left_alone(value: Any, annotation: Any):
    assert unknown_fields(value, annotation) == []


def test_not_more_is_told_than_somebody_reads():
    value = {f"field{number}" * 1000: number for number in range(1000)}

    told = unknown_fields(value, Cfg)

    assert len(told) == MOST_TOLD
    assert max(map(len, told)) < 300


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Cfg, {"batchsize": 5}),
        (Cfg | None, {"batchsize": 5}),
        (list[Cfg], [{"batchsize": 5}]),
        (Order, {"cfg": {"batchsize": 5}}),
        (Open, {"model": {"cfg": {"batchsize": 5}}}),
    ],
)
def test_a_schema_says_the_same(annotation: Any, value: Any):
    (told,) = unknown_to(outside_schema_of(annotation), value)

    assert told.endswith(".batchsize` is no field of Cfg (did you mean 'batch_size'?): it has batch_size, dry_run")


def test_a_schema_leaves_open_what_the_class_does():
    assert "additionalProperties" not in outside_schema_of(Older)
    assert outside_schema_of(Open)["additionalProperties"] is True
    assert unknown_to(outside_schema_of(Row), {"anything": 1}) == []
    assert outside_schema_of(dict[str, int])["additionalProperties"] == {"type": "integer"}
