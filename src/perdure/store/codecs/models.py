"""Types that say themselves what they consist of: dataclasses, msgspec structs, pydantic models, named tuples, enums.

An instance is stored as its fields by name, an enum member as its name. It is restored as it was: neither `__init__`
nor validators run again, because they may change, refuse or do something. (A struct's `__post_init__` cannot be
avoided; what it changes is set back.) Data written by an older class may lack fields, which get their defaults, and
hold fields that have gone, which are ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import msgspec

from perdure.ids import type_name
from perdure.store.codecs.codec import Conversion, Refusal, Unreadable, expect, expect_dict, type_of

# Notes beside the fields of a pydantic model: those that were never set, and those that are not declared.
_UNSET_NAMES = "$unset"
_EXTRA_NAMES = "$extra"
_NOTES = frozenset((_UNSET_NAMES, _EXTRA_NAMES))
# What these hold is in none of their fields, so a dataclass that derives from one is more than its fields.
_HOLD_MORE = (BaseException, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)


def model_codec(cls: type[Any]) -> Conversion | None:
    """Return how instances of `cls` are stored, or None if it does not say what it consists of."""
    if issubclass(cls, enum.Flag):
        return _codec(cls, lambda member: member.value, lambda data: cls(expect(data, int)))
    if issubclass(cls, enum.Enum):
        return _codec(cls, lambda member: member.name, functools.partial(_member, cls))
    if tuple in cls.__mro__:
        return _named_tuple_codec(cls) if hasattr(cls, "_fields") else None
    if issubclass(cls, msgspec.Struct):
        return _struct_codec(cls)
    if _is_pydantic(cls):
        return _pydantic_codec(cls)
    if dataclasses.is_dataclass(cls) and not issubclass(cls, _HOLD_MORE):
        return _dataclass_codec(cls)
    return None


def _codec(cls: type, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]) -> Conversion:
    return Conversion(type_name(cls), cls, to_plain, from_plain)


def _member(cls: type[enum.Enum], data: Any) -> enum.Enum:
    member = cls.__members__.get(expect(data, str))
    if member is None:
        raise Unreadable(
            f"{type_name(cls)} has no member {data!r}",
            "Add the member again: an alias of the one that replaces it will do.",
        )
    return member


def _named_tuple_codec(cls: Any) -> Conversion:
    names: tuple[str, ...] = cls._fields
    defaults: Mapping[str, Any] = cls._field_defaults
    strays = _StrayAttributes(cls, names)

    def to_plain(value: Any) -> dict[str, Any]:
        strays.refuse(value)
        return dict(zip(names, value, strict=True))

    def from_plain(data: Any) -> Any:
        fields = expect_dict(data)
        values = [fields[name] if name in fields else _default(cls, defaults, name) for name in names]
        return tuple[Any].__new__(cls, values)

    return _codec(cls, to_plain, from_plain)


def _default(cls: type, defaults: Mapping[str, Any], name: str) -> Any:
    if name not in defaults:
        raise _missing(cls, name)
    return defaults[name]


def _struct_codec(cls: type[msgspec.Struct]) -> Conversion:
    names = cls.__struct_fields__
    strays = _StrayAttributes(cls, names)
    is_changed_when_made = hasattr(cls, "__post_init__")

    def from_plain(data: Any) -> Any:
        fields = expect_dict(data)
        kept = {name: fields[name] for name in names if name in fields}
        try:
            made = cls(**kept)
        except TypeError as error:
            raise _incomplete(cls, str(error)) from error
        if is_changed_when_made:
            for name, value in kept.items():
                msgspec.structs.force_setattr(made, name, value)
        return made

    return _codec(cls, functools.partial(_fields_of, names, strays), from_plain)


def _dataclass_codec(cls: Any) -> Conversion:
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    strays = _StrayAttributes(cls, names)

    def from_plain(data: Any) -> Any:
        stored = expect_dict(data)
        made = object.__new__(cls)
        for field in fields:
            value = stored[field.name] if field.name in stored else _default_of_field(cls, field)
            # Not setattr: a frozen dataclass forbids it, and others may watch it.
            object.__setattr__(made, field.name, value)
        return made

    return _codec(cls, functools.partial(_fields_of, names, strays), from_plain)


def _default_of_field(cls: type, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise _missing(cls, field.name)


def _fields_of(names: tuple[str, ...], strays: _StrayAttributes, value: Any) -> dict[str, Any]:
    strays.refuse(value)
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError as error:
        kind = type_of(value)
        raise Refusal(kind, f"a field has no value ({error})", "Give every field a value.") from None


class _StrayAttributes:
    """What instances of a class hold beside their fields. It would be lost without a word, so it is refused."""

    def __init__(self, cls: type, names: Collection[str]) -> None:
        self._cls = cls
        self._names = frozenset(names)
        self._slots = [name for name in _slots_of(cls) if name not in self._names]

    def refuse(self, value: Any) -> None:
        held = getattr(value, "__dict__", None)
        if not self._slots and (not held or held.keys() <= self._names):
            return
        candidates = [*(held or ()), *(name for name in self._slots if hasattr(value, name))]
        strays = [name for name in candidates if name not in self._names and not self._is_derived(name)]
        if strays:
            raise Refusal(
                self._cls,
                f"it has attributes that are not fields ({', '.join(strays)})",
                "Declare them as fields, or register a codec for the type.",
            )

    def _is_derived(self, name: str) -> bool:
        """A cached property is computed again; names such as `__orig_class__` are Python's own."""
        if name.startswith("__"):
            return True
        return isinstance(inspect.getattr_static(self._cls, name, None), functools.cached_property)


def _slots_of(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else cast("Collection[str]", slots):
            if not name.startswith("__"):
                yield name


def _is_pydantic(cls: type) -> bool:
    # A class can derive from a pydantic model only where pydantic has been imported.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _pydantic_codec(cls: Any) -> Conversion:
    strays = _StrayAttributes(cls, cls.model_fields)
    undefined = sys.modules["pydantic_core"].PydanticUndefined

    def to_plain(value: Any) -> dict[str, Any]:
        strays.refuse(value)
        fields = {name: value.__dict__[name] for name in cls.model_fields if name in value.__dict__}
        if len(fields) < len(cls.model_fields):
            raise Refusal(cls, "a field has no value", "Give every field a value.")
        extra: dict[str, Any] = value.__pydantic_extra__ or {}
        held: dict[str, Any] = value.__pydantic_private__ or {}
        private = {name: part for name, part in held.items() if part is not undefined}
        merged = {**fields, **extra, **private}
        if len(merged) < len(fields) + len(extra) + len(private) or merged.keys() & _NOTES:
            raise Refusal(cls, "an extra value has the name of something else", "Register a codec for the type.")
        if unset := [name for name in (*fields, *extra) if name not in value.__pydantic_fields_set__]:
            merged[_UNSET_NAMES] = unset
        if extra:
            merged[_EXTRA_NAMES] = list(extra)
        return merged

    return _codec(cls, to_plain, functools.partial(_pydantic_model, cls, undefined))


def _pydantic_model(cls: Any, undefined: Any, data: Any) -> Any:
    stored = expect_dict(data)
    unset: set[str] = set(stored.get(_UNSET_NAMES, ()))
    fields: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if name in stored:
            fields[name] = stored[name]
        elif field.is_required():
            raise _missing(cls, name)
        else:
            fields[name] = _pydantic_default(field, fields)
            unset.add(name)
    extra = {name: stored[name] for name in stored.get(_EXTRA_NAMES, ()) if name not in fields}
    private: dict[str, Any] = {}
    for name, attribute in cls.__private_attributes__.items():
        part = stored[name] if name in stored else _pydantic_default(attribute, {**fields, **private})
        if part is not undefined:
            private[name] = part
    return _pydantic_restored(cls, fields=fields, set_names={*fields, *extra} - unset, extra=extra, private=private)


def _pydantic_default(source: Any, known: dict[str, Any]) -> Any:
    if source.default_factory is None:
        return source.get_default()
    if getattr(source, "default_factory_takes_validated_data", False):
        return source.default_factory(known)
    return source.default_factory()


def _pydantic_restored(
    cls: Any, *, fields: dict[str, Any], set_names: set[str], extra: dict[str, Any], private: dict[str, Any]
) -> Any:
    """Make the model the way its copies are made: pydantic can put back the state that it gives out."""
    pydantic = sys.modules["pydantic"]
    base = pydantic.RootModel if issubclass(cls, pydantic.RootModel) else pydantic.BaseModel
    made = cls.__new__(cls)
    state = {
        "__dict__": fields,
        "__pydantic_fields_set__": set_names,
        "__pydantic_extra__": extra if extra or cls.model_config.get("extra") == "allow" else None,
        "__pydantic_private__": private if cls.__private_attributes__ else None,
    }
    base.__setstate__(made, state)
    return made


def _missing(cls: type, name: str) -> Unreadable:
    return _incomplete(cls, f"there is no {name!r}, which has no default")


def _incomplete(cls: type, problem: str) -> Unreadable:
    return Unreadable(
        f"the stored fields do not make a {type_name(cls)}: {problem}",
        "Give fields that were added to the type a default, so that older data can be read.",
        tag=type_name(cls),
    )
