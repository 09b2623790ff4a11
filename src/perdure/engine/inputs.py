"""The inputs of a run, checked at the door: every problem at once, and nothing started if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.errors import WrongInputs
from perdure.graph.annotations import bare, describe
from perdure.graph.constants import from_constant, is_schema_compatible, schema_of
from perdure.graph.model import Graph, Input


def check_inputs(graph: Graph, annotations: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each input, defaults included. Raises WrongInputs with all that is wrong."""
    known = {declared.name: declared for declared in graph.inputs}
    problems = [f"there is no input {name!r} (there is {_listed(known)})" for name in given if name not in known]
    values: dict[str, Any] = {}
    for name, declared in known.items():
        if name not in given and declared.default is msgspec.UNSET:
            problems.append(f"{name!r} is missing")
            continue
        try:
            values[name] = _fitted(given.get(name, declared.default), declared, annotations.get(name, Any))
        except ValueError as error:
            problems.append(f"{name!r}: {error}")
    if problems:
        raise WrongInputs(graph.name, problems)
    return values


def _fitted(value: Any, declared: Input, annotation: Any) -> Any:
    annotation = bare(annotation)
    if isinstance(annotation, type) and type(value) is annotation:
        return value
    if annotation is Any and not is_schema_compatible(schema_of(type(value)), declared.schema):
        raise ValueError(f"a {type(value).__name__} does not fit {declared.schema}")
    try:
        return from_constant(value, annotation)
    except ValueError as error:
        return _of_instances(value, annotation, error)


def _of_instances(value: Any, annotation: Any, problem: ValueError) -> Any:
    """Accept containers of objects that already have the right types."""
    try:
        msgspec.convert(value, annotation, strict=True, from_attributes=True)
    except (msgspec.ValidationError, TypeError):
        raise ValueError(f"{problem} (it takes {describe(annotation)})") from None
    return value


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
