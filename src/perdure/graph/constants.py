"""Constants: the values that are written into a graph. They are JSON there, and Python values in a node's hands.

Also what JSON Schema says of them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TypeGuard, cast

import msgspec

from perdure.graph.annotations import bare, members_of, parts_of

MAX_DEPTH = 100
"""How deep a constant or a document may be nested."""
LEAST_INT, MOST_INT = -(2**63), 2**64 - 1
"""The whole numbers that every reader and writer of JSON we use can hold."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether this is an object of JSON. Whether its keys are texts is for `why_not_json` to say."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether this is an array of JSON, or a tuple that will become one."""
    return isinstance(value, list | tuple)


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of an annotation; an empty one, which admits everything, if it has none."""
    try:
        if _mentions_pydantic(annotation):
            return cast("dict[str, Any]", _adapter(annotation).json_schema())
        return _plain_schema(annotation)
    except Exception:  # any type may stand in an annotation, and what its own hooks raise is not ours to foresee
        return {}


def is_schema_compatible(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Whether some value fits both schemas, judged by their JSON types alone."""
    given, wanted = _json_types(source), _json_types(target)
    return given is None or wanted is None or not given.isdisjoint(wanted)


def check_constant(value: Any, annotation: Any) -> str | None:
    """Return why a constant in its JSON form does not fit a parameter; None if it fits or cannot be judged."""
    try:
        from_constant(value, annotation)
    except ValueError as error:
        return str(error)
    return None


def from_constant(value: Any, annotation: Any) -> Any:
    """Return the Python value that a constant in its JSON form stands for, for a parameter so annotated.

    Raises ValueError if it does not fit. What cannot be judged is returned as it is.
    """
    annotation = bare(annotation)
    if annotation is Any:
        return value
    if _mentions_pydantic(annotation):
        return _from_pydantic(value, annotation)
    try:
        return msgspec.convert(value, annotation, strict=True, str_keys=True, dec_hook=_from_plain)
    except msgspec.ValidationError as error:
        # Only for what has a schema is msgspec's refusal final: of other classes it knows no JSON form.
        if not has_schema(annotation):
            return value
        raise ValueError(str(error)) from None
    except Exception:  # msgspec refuses types it has no rule for, and custom types raise what they like
        return _from_alternatives(value, annotation)


def from_outside(value: Any, annotation: Any) -> Any:
    """Return the Python value that was said to a run, perhaps in its JSON form, for a parameter so annotated.

    What does not fit is returned as it is: it was checked where it was said.
    """
    if type(value) is annotation:
        return value
    try:
        return from_constant(value, annotation)
    except ValueError:
        return value


def from_json(text: bytes, annotation: Any) -> Any:
    """Return the Python value that a JSON text stands for, for a parameter so annotated. Decimals keep every digit.

    Raises ValueError if it is no JSON, or does not fit. What cannot be judged is returned as JSON has it.
    """
    plain = _parsed(text)
    annotation = bare(annotation)
    if _mentions_pydantic(annotation):
        return _from_pydantic_json(text, plain, annotation)
    try:
        return msgspec.json.decode(text, type=annotation, strict=True, dec_hook=_from_plain)
    except Exception:  # as in from_constant, which also finds the words for it
        return from_constant(plain, annotation)


def to_constant(value: Any, annotation: Any) -> Any:
    """Return the JSON form of a constant given to a parameter so annotated.

    Raises ValueError, with the reason, if it has none from which the value could be had back.
    """
    reason = why_not_json(value)
    if reason is None:
        return as_json(value)
    try:
        plain = as_json(msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_to_plain))
        if why_not_json(plain) is None and from_constant(plain, annotation) == value:
            return plain
    except Exception:  # a value of any type may be given, and its own hooks may raise anything
        raise ValueError(reason) from None
    raise ValueError(reason)


def why_not_json(value: Any) -> str | None:
    """Return why a value is not plain JSON (tuples count as lists); None if it is."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        if is_object(part):
            for key in part:
                if (reason := why_not_key(key)) is not None:
                    return reason
            pending.extend((member, depth + 1) for member in part.values())
        elif is_array(part):
            pending.extend((member, depth + 1) for member in part)
        elif (reason := why_not_scalar(part)) is not None:
            return reason
    return None


def is_plain(value: Any) -> bool:
    """Whether a value is plain JSON and nothing else. `why_not_json` is for finding out why not, at five times the price."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for part, kind in zip(level, map(_type_of, level), strict=True):
            if kind is dict:
                if any(type(key) is not str or not (key.isascii() or _is_encodable(key)) for key in part):
                    return False
                below.extend(part.values())
            elif kind is list:
                below.extend(part)
            elif kind is str:
                if not (part.isascii() or _is_encodable(part)):
                    return False
            elif why_not_scalar(part) is not None:
                return False
        if not below:
            return True
        level = below
    return False


def _type_of(value: object) -> type[object]:
    return type(value)


def why_not_key(key: Any) -> str | None:
    """Return why this cannot be a key in JSON; None if it can."""
    return why_not_scalar(key) if type(key) is str else f"the key {key!r} is not a text"


def why_not_scalar(value: Any) -> str | None:
    """Return why this is not a text, number, truth value or null of JSON; None if it is."""
    if value is None or type(value) is bool:
        return None
    if type(value) is str:
        return None if value.isascii() or _is_encodable(value) else "a text in it holds half a surrogate pair"
    if type(value) is int:
        return None if LEAST_INT <= value <= MOST_INT else "a number in it does not fit 64 bits"
    if type(value) is float:
        return None if math.isfinite(value) else f"{value} is not a number in JSON"
    return f"a {type(value).__name__} is not JSON"


def as_json(value: Any) -> Any:
    """Return a copy of plain JSON in which tuples have become lists."""
    if is_object(value):
        return {key: as_json(member) for key, member in value.items()}
    if is_array(value):
        return [as_json(member) for member in value]
    return value


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_types(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the JSON types that a schema admits; None if it does not say."""
    match schema:
        case {"anyOf": [*options]}:
            return _types_of_options(options)
        case {"enum": [*values]}:
            return {_json_type(value) for value in values}
        case {"type": str() as name}:
            names = {name}
        case {"type": [*listed]}:
            names = {str(name) for name in listed}
        case _:
            return None
    # A whole number fits where any number does, and a number may be whole.
    return names | {"integer", "number"} if names & {"integer", "number"} else names


def _types_of_options(options: list[Any]) -> set[str] | None:
    names = set[str]()
    for option in options:
        admitted = _json_types(option) if is_object(option) else None
        if admitted is None:
            return None
        names |= admitted
    return names


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def has_schema(annotation: Any) -> bool:
    """Whether values of such an annotation have a JSON form that can be judged."""
    try:
        _plain_schema(annotation)
    except Exception:  # as in schema_of
        return False
    return True


def _plain_schema(annotation: Any) -> dict[str, Any]:
    return msgspec.json.schema(annotation, schema_hook=_schema_of_class)


def _schema_of_class(cls: Any) -> dict[str, Any]:
    """Return the schema of what msgspec has no rule for. NotImplementedError is how a hook tells msgspec that it has none."""
    if _is_path(cls):
        return {"type": "string", "format": "path"}
    raise NotImplementedError


def _from_plain(cls: Any, plain: Any) -> Any:
    """Make what msgspec has no rule for. What is returned as it is, msgspec accepts only if it is an instance already."""
    return cls(plain) if _is_path(cls) and type(plain) is str else plain


def _to_plain(value: Any) -> Any:
    """Return the JSON form of what msgspec has no rule for; NotImplementedError as in `_schema_of_class`."""
    if _is_path(type(value)):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__} has no JSON form")


def _is_path(cls: Any) -> bool:
    """Whether values of this class are paths. Where pathlib is not loaded, none can be."""
    base: Any = getattr(sys.modules.get("pathlib"), "PurePath", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def _from_alternatives(value: Any, annotation: Any) -> Any:
    """Return what the value stands for by the first alternative of a union that it fits: msgspec knows not every union."""
    members = members_of(annotation)
    if len(members) == 1 or not all(map(has_schema, members)):
        return value
    if type(value) in members:
        return value
    problems: list[str] = []
    for member in members:
        try:
            return from_constant(value, member)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; ".join(dict.fromkeys(problems)))


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _mentions_pydantic(annotation: Any) -> bool:
    """Whether a pydantic model is part of the annotation. Where pydantic is not loaded, none can be."""
    base: Any = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and any(isinstance(part, type(base)) for part in parts_of(annotation))


def _adapter(annotation: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(annotation)


def _from_pydantic(value: Any, annotation: Any) -> Any:
    try:
        text = msgspec.json.encode(value)
    except Exception:  # a value of any type may be given: instances are not made again
        return value
    return _from_pydantic_json(text, value, annotation)


def _from_pydantic_json(text: bytes, plain: Any, annotation: Any) -> Any:
    try:
        return _adapter(annotation).validate_json(text)
    except ValueError as error:
        raise ValueError(_without_addresses(error)) from None
    except Exception:  # a model's own validators may raise anything; that is found when it runs
        return plain


def _without_addresses(error: ValueError) -> str:
    """Return pydantic's words without those that point to its documentation."""
    return "; ".join(line.strip() for line in str(error).splitlines() if "errors.pydantic.dev" not in line)
