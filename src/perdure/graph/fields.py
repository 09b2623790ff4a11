"""Fields that a value from outside has and its class has not: they are refused where the value is said.

What is stored is read leniently: it may come from a time when the class had more fields. So none of this is asked there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast, get_args, get_origin, is_typeddict

import msgspec

from perdure.graph.annotations import describe, hints_of_class, is_record, members_of, parts_of
from perdure.graph.calls import did_you_mean
from perdure.graph.constants import MAX_DEPTH, check_constant, is_array, is_object, schema_of

MOST_TOLD = 5
"""So many unknown fields of one value are told: who has misspelt one looks at the others too."""
MOST_NAMES = 20
"""So many fields of a class are listed, and compared with what was written."""
MOST_CHARACTERS = 100
"""So much of the name of an unknown field is told."""

_CACHE_SIZE = 512
_IN_OTHER_WORDS = "Additional properties are not allowed"
"""How jsonschema tells of the same, without a guess."""
_MADE_FIRST = ("BeforeValidator", "WrapValidator", "PlainValidator")
"""What pydantic lets make something else of a value before its fields are looked at."""


def unknown_fields(value: Any, annotation: Any) -> list[str]:
    """Return the fields of a value that fits its annotation which no class there has, each with its place in the value."""
    if not _has_records(annotation):
        return []
    return list(itertools.islice(_unknown(value, annotation, "$", MAX_DEPTH), MOST_TOLD))


def unknown_field(place: str, name: str, of: str, names: Collection[str]) -> str:
    """Return the words for a field that is not there. `place` is where the object is."""
    name = name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}…"
    step = f".{name}" if name.isidentifier() else f"[{name!r}]"
    listed = list(itertools.islice(names, MOST_NAMES))
    more = ", …" if len(names) > len(listed) else ""
    has = f"it has {', '.join(listed)}{more}" if listed else "it has no fields"
    return f"`{place}{step}` is no field of {of}{did_you_mean(name, listed)}: {has}"


def outside_schema_of(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of values from outside: that of the annotation, closed to fields that its classes have not."""
    schema = schema_of(annotation)
    records = list(_records_in(annotation))
    closed = {title: record.fields for title, record in records if not record.is_open}
    for title in (title for title, record in records if record.is_open):
        closed.pop(title, None)
    return _closed(schema, closed) if closed else schema


def unknown_to(schema: Mapping[str, Any], plain: Any) -> list[str]:
    """Return the same as `unknown_fields` of a value in its JSON form, where only the schema is known that such values have."""
    found = _unknown_to(schema, plain, schema.get("$defs", {}), "$", MAX_DEPTH)
    return list(itertools.islice(found, MOST_TOLD))


def worded(problems: Sequence[str], schema: Mapping[str, Any], plain: Any) -> list[str]:
    """Return what is wrong with a value by its schema, with more words about fields that are not there."""
    if not problems:
        return []
    return [*unknown_to(schema, plain), *(problem for problem in problems if _IN_OTHER_WORDS not in problem)] or [
        *problems
    ]


class _Record(msgspec.Struct, frozen=True):
    """What a class takes where an object of JSON stands for it."""

    fields: dict[str, Any]
    """By the names under which they are given, with their annotations."""
    is_open: bool
    """Whether the class takes other fields as well, or looks at them itself."""


def _unknown(value: Any, annotation: Any, place: str, depth: int) -> Iterator[str]:
    if not depth or _is_made_first(annotation):
        return
    members = [member for member in members_of(annotation) if member is not type(None)]
    if len(members) == 1:
        yield from _unknown_in(value, members[0], place, depth)
    elif is_object(value) or is_array(value):
        told = [
            list(_unknown_in(value, member, place, depth))
            for member in members
            if check_constant(value, member) is None
        ]
        # If it is a whole value of one of the alternatives, that one may be meant.
        yield from () if [] in told else itertools.chain.from_iterable(told[:1])


def _unknown_in(value: Any, member: Any, place: str, depth: int) -> Iterator[str]:
    origin = get_origin(member) or member
    if not isinstance(origin, type):
        return
    if is_object(value):
        record = _record_of(member)
        if record is not None:
            yield from _unknown_of(value, record, describe(origin), place, depth)
        elif issubclass(origin, Mapping) and len(arguments := get_args(member)) == 2 and _has_records(arguments[1]):
            for key, part in value.items():
                yield from _unknown(part, arguments[1], f"{place}[{str(key)[:MOST_CHARACTERS]!r}]", depth - 1)
    elif is_array(value) and (arguments := get_args(member)) and _has_records(member):
        is_fixed = origin is tuple and Ellipsis not in arguments
        kinds = arguments if is_fixed else itertools.repeat(arguments[0], len(value))
        for number, (part, kind) in enumerate(zip(value, kinds, strict=False)):
            yield from _unknown(part, kind, f"{place}[{number}]", depth - 1)


def _unknown_of(value: Mapping[str, Any], record: _Record, of: str, place: str, depth: int) -> Iterator[str]:
    for name, part in value.items():
        if name in record.fields:
            yield from _unknown(part, record.fields[name], f"{place}.{name}", depth - 1)
        elif not record.is_open:
            yield unknown_field(place, str(name), of, record.fields)


def _unknown_to(schema: Any, plain: Any, defs: Mapping[str, Any], place: str, depth: int) -> Iterator[str]:
    schema = _followed(schema, defs)
    if not depth or not is_object(schema):
        return
    options = schema.get("anyOf") or schema.get("oneOf")
    if is_array(options):
        wanted = "object" if is_object(plain) else "array" if is_array(plain) else ""
        fitting = [part for part in options if is_object(made := _followed(part, defs)) and made.get("type") == wanted]
        if len(fitting) == 1:
            yield from _unknown_to(fitting[0], plain, defs, place, depth - 1)
    elif is_object(plain) and is_object(known := schema.get("properties")):
        for name, part in plain.items():
            if name in known:
                yield from _unknown_to(known[name], part, defs, f"{place}.{name}", depth - 1)
            elif schema.get("additionalProperties") is False:
                yield unknown_field(place, str(name), str(schema.get("title") or "the object"), known)
    elif is_array(plain) and is_object(items := schema.get("items")):
        for number, part in enumerate(plain):
            yield from _unknown_to(items, part, defs, f"{place}[{number}]", depth - 1)


def _followed(schema: Any, defs: Mapping[str, Any]) -> Any:
    """Return the schema for which a reference stands."""
    if is_object(schema) and isinstance(reference := schema.get("$ref"), str):
        return defs.get(reference.rpartition("/")[2])
    return schema


def _has_records(annotation: Any) -> bool:
    try:
        return _has_records_cached(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return any(True for _ in _records_in(annotation))


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _has_records_cached(annotation: Any) -> bool:
    return any(True for _ in _records_in(annotation))


def _records_in(annotation: Any) -> Iterator[tuple[str, _Record]]:
    """Yield the classes with fields of which such values consist, each once, by the name that schemas have for it."""
    pending, seen = [annotation], dict[int, Any]()  # what has been seen is held, so that no other gets its id
    while pending:
        for part in parts_of(pending.pop()):
            cls = get_origin(part) or part
            record = _record_of(part) if isinstance(cls, type) else None
            if record is None or id(part) in seen:
                continue
            seen[id(part)] = part
            config: Any = getattr(cls, "model_config", None) or {}
            yield str(config.get("title") or cast("type[Any]", cls).__name__), record
            pending.extend(record.fields.values())


def _record_of(member: Any) -> _Record | None:
    cls = get_origin(member) or member
    if not isinstance(cls, type) or not is_record(cls):
        return None
    record = _record_of_class(cls)
    parameters, arguments = getattr(cls, "__parameters__", ()), get_args(member)
    if not arguments or len(parameters) != len(arguments):
        return record
    known = dict(zip(parameters, arguments, strict=True))
    return msgspec.structs.replace(
        record, fields={name: _with_arguments(kind, known) for name, kind in record.fields.items()}
    )


def _with_arguments(annotation: Any, known: Mapping[Any, Any]) -> Any:
    try:
        if annotation in known:
            return known[annotation]
        parameters = getattr(annotation, "__parameters__", ())
        return annotation[tuple(known.get(part, part) for part in parameters)] if parameters else annotation
    except TypeError:  # what cannot be hashed, or takes other arguments
        return annotation


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _record_of_class(cls: type[Any]) -> _Record:
    config: Any = getattr(cls, "__pydantic_config__", None) or {}
    if hasattr(cls, "__pydantic_fields__"):
        return _pydantic_record(cls)
    hints = hints_of_class(cls)
    if is_typeddict(cls):
        return _Record(hints, is_open=True)
    if hasattr(cls, "__struct_fields__"):
        given: Any = cls
        names = dict(zip(given.__struct_encode_fields__, given.__struct_fields__, strict=True))
        fields = {name: hints.get(field, Any) for name, field in names.items()}
        if given.__struct_config__.tag is not None:
            fields[given.__struct_config__.tag_field] = Any
        return _Record(fields, is_open=False)
    if dataclasses.is_dataclass(cls):
        declared: Any = getattr(cls, "__dataclass_fields__", {})
        return _Record({name: hints.get(name, Any) for name in declared}, is_open=config.get("extra") == "allow")
    # Other kinds of classes say in ways of their own what they take.
    return _Record(hints, is_open=True)


def _pydantic_record(cls: Any) -> _Record:
    config: Any = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    if getattr(cls, "__pydantic_root_model__", False):
        return _Record({}, is_open=True)
    by_name = (
        config.get("populate_by_name") or config.get("validate_by_name") or config.get("validate_by_alias") is False
    )
    decorators: Any = getattr(cls, "__pydantic_decorators__", None)
    checks: list[Any] = [check.info for check in getattr(decorators, "model_validators", {}).values()]
    made: set[str] = {
        name
        for check in getattr(decorators, "field_validators", {}).values()
        if check.info.mode != "after"
        for name in check.info.fields
    }
    takes_more = config.get("extra") == "allow"
    fields: dict[str, Any] = {}
    for name, info in cls.__pydantic_fields__.items():
        is_made = name in made or "*" in made or any(map(_is_maker, info.metadata))
        aliases = list(_aliases(info.validation_alias))
        for key in ([name] if by_name or not aliases else []) + aliases:
            fields[key] = Any if is_made or (takes_more and not _is_of_models(info.annotation)) else info.annotation
    is_open = takes_more or any(check.mode != "after" for check in checks) or _has_own_rules(cls)
    return _Record(fields, is_open=is_open)


def _is_of_models(annotation: Any) -> bool:
    """Whether such values have settings of their own. Plain dataclasses in a model have those of the model."""
    return any(hasattr(part, "__pydantic_fields__") for part in parts_of(annotation))


def _aliases(alias: Any) -> Iterator[str]:
    for choice in getattr(alias, "choices", (alias,)):
        path: Any = getattr(choice, "path", (choice,))
        if isinstance(path[0], str):
            yield path[0]


def _has_own_rules(cls: Any) -> bool:
    """Whether the class tells pydantic itself how it is made."""
    return any(
        "__get_pydantic_core_schema__" in vars(base) for base in cls.__mro__ if base.__module__ != "pydantic.main"
    )


def _is_made_first(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and any(map(_is_maker, get_args(annotation)[1:]))


def _is_maker(metadata: object) -> bool:
    return type(metadata).__name__ in _MADE_FIRST


def _closed(schema: Any, closed: Mapping[str, Collection[str]]) -> Any:
    """Return a schema in which the objects that have these titles take no other fields than those of their class."""
    if is_array(schema):
        return [_closed(part, closed) for part in schema]
    if not is_object(schema):
        return schema
    made = {key: _closed_at(key, part, closed) for key, part in schema.items()}
    title, known = schema.get("title"), schema.get("properties")
    fields = closed.get(title) if isinstance(title, str) else None
    # A class that takes a field under several names has but one of them in its schema.
    if fields is not None and is_object(known) and set(fields) <= known.keys() and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def _closed_at(key: str, part: Any, closed: Mapping[str, Collection[str]]) -> Any:
    if key in ("$defs", "properties") and is_object(part):
        return {name: _closed(schema, closed) for name, schema in part.items()}
    if key in ("items", "anyOf", "oneOf", "allOf", "prefixItems", "additionalProperties"):
        return _closed(part, closed)
    return part
