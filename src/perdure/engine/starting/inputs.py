"""The inputs of a run, checked at the door: every problem at once, and nothing started if there is one."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, cast, get_origin

import msgspec

from perdure.engine.driving.interactions import schema_problems
from perdure.errors import WrongInputs
from perdure.graph.annotations import bare, describe, parts_of
from perdure.graph.constants import from_constant, has_schema, is_schema_compatible, schema_of, why_not_json
from perdure.graph.model import FED, Graph, Input
from perdure.graph.templates import VALUE

_FORMS: dict[Any, str] = {
    date: "2026-01-31",
    datetime: "2026-01-31T12:00:00Z",
    time: "12:00:00",
    timedelta: "PT90S for 90 seconds",
}
"""How values are written that JSON has no form of its own for."""


def check_inputs(graph: Graph, annotations: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each input, defaults included. Raises WrongInputs with all that is wrong."""
    known = {declared.name: declared for declared in graph.inputs}
    streams = stream_inputs(graph)
    names = {**known, **streams}
    problems = [f"there is no input {name!r} (there is {_listed(names)})" for name in given if name not in names]
    values: dict[str, Any] = {}
    for name, declared in known.items():
        if name not in given and declared.default is msgspec.UNSET:
            problems.append(f"{name!r} is missing{_wanted(declared, annotations.get(name, Any))}")
            continue
        try:
            values[name] = _fitted(given.get(name, declared.default), declared, annotations.get(name, Any))
        except ValueError as error:
            problems.append(f"{name!r}: {error}")
    for name in streams:
        if name in given:
            try:
                values[name] = _fitted(_as_list(given[name]), Input(name=name), annotations.get(name, list[Any]))
            except ValueError as error:
                problems.append(f"{name!r}: {error}")
    if problems:
        raise WrongInputs(graph.name, problems)
    return values


def stream_inputs(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the inputs of a workflow that are streams, each with the schema of its items."""
    nothing: dict[str, Any] = {}
    schemas = {node.id: node.data.get("schema") or nothing for node in graph.nodes if node.type in FED}
    return {node_id: schema.get(VALUE, schema) or nothing for node_id, schema in schemas.items()}


def cursor_order(graph: Graph, node_id: str) -> str:
    """Return how the cursors of an inbox follow each other."""
    return next((str(node.data.get("order", "number")) for node in graph.nodes if node.id == node_id), "number")


def check_item(value: Any, schema: dict[str, Any]) -> str | None:
    """Return why a value cannot be an item of such an input; None if it can."""
    if not is_schema_compatible(schema_of(type(value)), schema):
        return f"a {type(value).__name__} does not fit {schema}"
    if why_not_json(value) is not None:
        return None  # of what has no form in JSON only the type is known
    try:
        return "; ".join(schema_problems(value, schema)) or None
    except Exception:  # a schema in a document may be anything
        return None


def _as_list(items: Any) -> Any:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        kind = type(cast("object", items)).__name__
        raise ValueError(f"it is a stream, and takes a list of its items, not a {kind}")
    return list(cast("Iterable[Any]", items))


def words_for(annotation: Any) -> str:
    """Return what an input so annotated takes, and how it is written where that is not plain."""
    hints = [hint for part in parts_of(annotation) if (hint := _hint(part))]
    return "; ".join(dict.fromkeys([describe(bare(annotation)), *hints]))


def fitted(value: Any, annotation: Any) -> Any:
    """Return a value as what it is annotated as. Raises ValueError if it does not fit."""
    return _fitted(value, Input(name=""), annotation)


def _fitted(value: Any, declared: Input, annotation: Any) -> Any:
    annotation = bare(annotation)
    if isinstance(annotation, type) and type(value) is annotation:
        return value
    if annotation is Any and not is_schema_compatible(schema_of(type(value)), declared.schema):
        raise ValueError(f"a {type(value).__name__} does not fit {declared.schema}")
    try:
        made = from_constant(value, annotation)
    except ValueError as error:
        return _of_instances(value, annotation, error)
    if made is value and _is_something_else(value, annotation):
        return _of_instances(value, annotation, ValueError(f"a {type(value).__name__} is given"))
    return made


def _is_something_else(value: Any, annotation: Any) -> bool:
    """Whether a value that could not be judged is surely no instance of what is annotated, and was not made one."""
    cls = get_origin(annotation) or annotation
    if has_schema(annotation) or not isinstance(cls, type) or getattr(cls, "_is_protocol", False):
        return False
    return not inspect.isabstract(cls) and not isinstance(value, cls) and type(value) not in cls.__mro__


def _of_instances(value: Any, annotation: Any, problem: ValueError) -> Any:
    """Accept containers of objects that already have the right types."""
    try:
        msgspec.convert(value, annotation, strict=True, from_attributes=True, dec_hook=_only_instances)
    except (msgspec.ValidationError, TypeError):
        raise ValueError(f"{problem} (it takes {words_for(annotation)})") from None
    return value


def _only_instances(cls: Any, value: Any) -> Any:
    return value


def _hint(part: Any) -> str:
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return f"{part.__name__} is one of {', '.join(repr(member.value) for member in part)}"
    return f"{part.__name__} is written {_FORMS[part]}" if _is_key(part) else ""


def _is_key(part: Any) -> bool:
    try:
        return part in _FORMS
    except TypeError:  # an annotation that cannot be hashed
        return False


def _wanted(declared: Input, annotation: Any) -> str:
    if bare(annotation) is not Any:
        return f" (it takes {words_for(annotation)})"
    kind = declared.schema.get("type")
    return f" (it takes a JSON {kind})" if isinstance(kind, str) else ""


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
