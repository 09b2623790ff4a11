"""JSON Schemas that people write into graphs: whether they are any."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from perdure.graph.constants import is_array, is_object

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def problems_of_schema(schema: Any) -> Iterator[str]:
    """Yield why something is no JSON Schema, in whole sentences. None stands for no schema."""
    if schema is None or _is_surely_one(schema):
        return
    # Takes a while to load, and schemas that are wrong or unusual are rare.
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    found = sorted(validator.iter_errors(schema), key=lambda error: error.json_path)
    yield from dict.fromkeys(map(_worded, found))


def _worded(error: Any) -> str:
    place = f"schema{error.json_path.removeprefix('$')}"
    if place.endswith(".type"):
        return f"The {place} {error.instance!r} is no type of JSON: there are {', '.join(TYPES)}."
    return f"The {place} is none of JSON Schema: {error.message}."


def check_schema(constants: Mapping[str, Any], fed: Collection[str]) -> list[str]:
    """Return what is wrong with the `schema` of a node that has these constants."""
    return list(problems_of_schema(constants.get("schema")))


def _is_surely_one(schema: Any) -> bool:
    """Whether a schema holds only what most do, and that is as it should be."""
    if not is_object(schema):
        return isinstance(schema, bool)
    return all(key in _USUAL and _USUAL[key](part) for key, part in schema.items())


def _is_text(part: Any) -> bool:
    return isinstance(part, str)


def _is_type(part: Any) -> bool:
    return (
        part in TYPES if isinstance(part, str) else is_array(part) and bool(part) and all(map(_is_text_of_type, part))
    )


def _is_text_of_type(part: Any) -> bool:
    return isinstance(part, str) and part in TYPES


def _are_texts(part: Any) -> bool:
    return is_array(part) and all(map(_is_text, part)) and len(set(part)) == len(part)


def _are_schemas(part: Any) -> bool:
    return is_array(part) and bool(part) and all(map(_is_surely_one, part))


def _are_named_schemas(part: Any) -> bool:
    return is_object(part) and all(map(_is_surely_one, part.values()))


def _is_number(part: Any) -> bool:
    return isinstance(part, int | float) and not isinstance(part, bool)


def _is_count(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool) and part >= 0


def _is_anything(part: Any) -> bool:
    return True


_USUAL: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": is_array,
    **dict.fromkeys(("$ref", "title", "description", "format"), _is_text),
    **dict.fromkeys(("items", "additionalProperties"), _is_surely_one),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _are_schemas),
    **dict.fromkeys(("properties", "$defs"), _are_named_schemas),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("default", "const", "discriminator"), _is_anything),
    "required": _are_texts,
}
