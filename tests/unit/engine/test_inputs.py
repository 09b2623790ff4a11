"""The inputs of a run, at the door: made what they are annotated to be, or refused with what they should have been."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from perdure.engine.starting.inputs import check_inputs
from perdure.errors import WrongInputs
from perdure.graph.constants import schema_of
from perdure.graph.model import Graph, Input


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Job:
    folder: Path
    price: Decimal = Decimal(0)


@dataclasses.dataclass
class Sample:
    values: np.ndarray[Any, Any]


class Named(Protocol):
    name: str


def given(value: Any, annotation: Any) -> Any:
    graph = Graph(name="w", nodes=(), edges=(), inputs=(Input(name="x", schema=schema_of(annotation)),), outputs={})
    return check_inputs(graph, {"x": annotation}, {"x": value})["x"]


@pytest.mark.parametrize(
    ("value", "annotation", "taken"),
    [
        ("/etc", Path, Path("/etc")),
        (Path("/etc"), Path, Path("/etc")),
        (["/a", "/b"], list[Path], [Path("/a"), Path("/b")]),
        ({"folder": "/a", "price": "1.10"}, Job, Job(Path("/a"), Decimal("1.10"))),
        ([Job(Path("/a"))], list[Job], [Job(Path("/a"))]),
        ("1.10", Decimal, Decimal("1.10")),
        ({"1": "a"}, dict[int, str], {1: "a"}),
        ({1: "a"}, dict[int, str], {1: "a"}),
        (Fraction(1, 3), Fraction, Fraction(1, 3)),
        (1.5, np.float64, 1.5),  # what it is made of is good enough
        ("anything", Named, "anything"),  # cannot be judged
    ],
)
def test_an_input_becomes_what_it_is_annotated_to_be(value: Any, annotation: Any, taken: Any):
    assert given(value, annotation) == taken
    assert type(given(value, annotation)) is type(taken)


@pytest.mark.parametrize(
    ("value", "annotation", "told"),
    [
        (5, Path, "Expected `Path`, got `int` (it takes Path)"),
        ({"folder": 5}, Job, "$.folder"),
        ("RED", Colour, "Colour is one of 'red', 'blue'"),
        ("soon", date, "date is written 2026-01-31"),
        ("1/3", Fraction, "a str is given (it takes Fraction)"),
        ({"values": [1]}, Sample, "a dict is given (it takes Sample)"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_with_what_would(value: Any, annotation: Any, told: str):
    with pytest.raises(WrongInputs) as caught:
        given(value, annotation)

    assert told in str(caught.value)


def test_a_missing_input_is_named_with_its_type():
    graph = Graph(name="w", nodes=(), edges=(), inputs=(Input(name="x", schema={}),), outputs={})

    with pytest.raises(WrongInputs, match=r"'x' is missing \(it takes list\[int\]\)"):
        check_inputs(graph, {"x": list[int]}, {})
