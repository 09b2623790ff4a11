"""The inputs of a run, as they are given on the command line or in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from perdure.cli.program import Program
from perdure.engine.inputs import check_inputs
from perdure.errors import WrongInputs
from perdure.graph.constants import check_constant, is_schema_compatible, schema_of
from perdure.graph.model import Graph

STANDARD_INPUT = "-"


def read_inputs(program: Program, pairs: Sequence[str], file: str | None) -> dict[str, Any]:
    """Return the inputs by name: those of the file, and over them those of the command line. All that is wrong is told.

    A text is read as JSON where that fits the input's type: `n=5` is a number for an `int` and a text for a `str`.
    """
    fits = _fitting(program)
    given = {} if file is None else _read_file(program, file)
    seen: set[str] = set()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise WrongInputs(program.name, [f"{pair!r} is not of the form name=value"])
        if name in seen:
            raise WrongInputs(program.name, [f"{name!r} is given twice"])
        seen.add(name)
        given[name] = _value(name, text, fits)
    if isinstance(program, Graph):
        check_inputs(program, {}, given)
    else:
        check_inputs(program.graph, program.input_types, given)
    return given


Fits = Callable[[str, Any], bool]
"""Whether a value may be what the input of this name takes."""


def _fitting(program: Program) -> Fits:
    if isinstance(program, Graph):
        schemas = {declared.name: declared.schema for declared in program.inputs}
        return lambda name, value: is_schema_compatible(schema_of(type(value)), schemas.get(name, {}))
    annotations = program.input_types
    return lambda name, value: check_constant(value, annotations.get(name, Any)) is None


def _value(name: str, text: str, fits: Fits) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    # Where neither fits, the value as JSON makes for the better complaint.
    return value if fits(name, value) or not fits(name, text) else text


def _read_file(program: Program, file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_refuse)
    except OSError as error:
        raise WrongInputs(program.name, [f"{file} cannot be read ({error.strerror})"]) from error
    except (ValueError, RecursionError) as error:
        raise WrongInputs(program.name, [f"{file} is not JSON ({error})"]) from error
    if not isinstance(document, dict):
        raise WrongInputs(program.name, [f"{file} is not a JSON object with a value for each input"])
    return document  # pyright: ignore[reportUnknownVariableType]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")
