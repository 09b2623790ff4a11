"""The inputs of a run, as they are given on the command line or in a file."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import click
import msgspec

from perdure.cli.program import Program
from perdure.engine.starting.inputs import check_inputs
from perdure.errors import WrongInputs
from perdure.graph.annotations import members_of
from perdure.graph.constants import check_constant, from_json, is_schema_compatible, schema_of
from perdure.graph.model import Graph

STANDARD_INPUT = "-"


def read_inputs(program: Program, pairs: Sequence[str], file: str | None) -> dict[str, Any]:
    """Return the inputs by name: those of the file, and over them those of the command line. All that is wrong is told.

    A text is read as JSON where that fits the input's type: `n=5` is a number for an `int` and a text for a `str`.
    """
    annotations: Mapping[str, Any] = {} if isinstance(program, Graph) else program.input_types
    fits = _fitting(program, annotations)
    texts = {} if file is None else _read_file(program, file)
    given = {name: _json_or_plain(text, annotations.get(name, Any)) for name, text in texts.items()}
    for name, text in _split(program, pairs).items():
        given[name] = _value(text, annotations.get(name, Any), functools.partial(fits, name))
    graph = program if isinstance(program, Graph) else program.graph
    try:
        check_inputs(graph, annotations, given)
    except WrongInputs as error:
        raise WrongInputs(program.name, error.problems, _how_to_give(graph, annotations, given)) from None
    return given


def split_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Return the texts that were given by their names. Raises click.UsageError for what is no NAME=VALUE, or given twice."""
    try:
        return _by_name(pairs)
    except ValueError as error:
        raise click.UsageError(f"--input: {error}.") from None


def as_annotated(texts: Mapping[str, str], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return what texts stand for, each as `read_inputs` reads it. What is JSON is read as that where there is no annotation."""

    def fits(name: str, value: Any) -> bool:
        return check_constant(value, annotations.get(name, Any)) is None

    return {
        name: _value(text, annotations.get(name, Any), functools.partial(fits, name)) for name, text in texts.items()
    }


def value_of(option: str, text: str | None) -> Any:
    """Return the JSON value that an option was given; None if it was not. Raises click.UsageError if it is no JSON."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        quoted = shlex.quote(msgspec.json.encode(text).decode())
        raise click.UsageError(f"{option} is not JSON: {error}. If it is a text, quote it: {option} {quoted}") from None


_TRUTHS: Mapping[str, bool] = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}
"""What people write who mean a truth value: as an answer, or as Python has it."""

Fits = Callable[[str, Any], bool]
"""Whether a value may be what the input of this name takes."""


def _fitting(program: Program, annotations: Mapping[str, Any]) -> Fits:
    if isinstance(program, Graph):
        schemas = {declared.name: declared.schema for declared in program.inputs}
        return lambda name, value: is_schema_compatible(schema_of(type(value)), schemas.get(name, {}))
    return lambda name, value: check_constant(value, annotations.get(name, Any)) is None


def _split(program: Program, pairs: Sequence[str]) -> dict[str, str]:
    try:
        return _by_name(pairs)
    except ValueError as error:
        raise WrongInputs(program.name, [str(error)]) from None


def _by_name(pairs: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"{pair!r} is not of the form name=value")
        if name in texts:
            raise ValueError(f"{name!r} is given twice")
        texts[name] = text
    return texts


def _value(text: str, annotation: Any, fits: Callable[[Any], bool]) -> Any:
    try:
        value = from_json(text.encode(), annotation)
    except ValueError:
        if fits(text):
            return text
        said = _TRUTHS.get(text.lower())
        # Where nothing fits, the value as JSON makes for the better complaint.
        return said if said is not None and fits(said) else _plain_or_text(text)
    return value if fits(value) or not fits(text) else text


def _plain_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def _json_or_plain(text: msgspec.Raw, annotation: Any) -> Any:
    try:
        return from_json(bytes(text), annotation)
    except ValueError:  # what is wrong is told by whoever checks the inputs
        return msgspec.json.decode(text)


def _read_file(program: Program, file: str) -> dict[str, msgspec.Raw]:
    what = "standard input" if file == STANDARD_INPUT else file
    try:
        text = sys.stdin.read().encode() if file == STANDARD_INPUT else Path(file).read_bytes()
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise WrongInputs(program.name, [f"{what} cannot be read ({error.strerror})"]) from error
    except msgspec.ValidationError:
        raise WrongInputs(program.name, [f"{what} is not a JSON object with a value for each input"]) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WrongInputs(program.name, [f"{what} is not JSON ({error})"]) from error


def _how_to_give(graph: Graph, annotations: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    for name, value in given.items():
        kinds = {get_origin(member) or member for member in members_of(annotations.get(name, Any))}
        if isinstance(value, str) and kinds & {list, tuple, set, frozenset} and not kinds & {str, Any}:
            return f"Give {name!r} as a JSON list: --input {name}={shlex.quote(msgspec.json.encode([value]).decode())}."
    for declared in graph.inputs:
        if declared.default is msgspec.UNSET and declared.name not in given:
            return f"Give {declared.name!r} as --input {declared.name}=VALUE."
    return ""
