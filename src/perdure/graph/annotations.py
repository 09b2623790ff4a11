"""What annotations promise: whether a value of one kind can meet a parameter of another.

Everything here answers "yes" in doubt: a workflow is refused only for what can never work.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)

# ReadOnly is younger than the oldest Python we run on.
_QUALIFIER_NAMES = ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
_QUALIFIERS = frozenset(getattr(typing, name) for name in _QUALIFIER_NAMES if hasattr(typing, name))
_ARRAYS = (list, tuple)
_NO_ITEMS = object()
_MADE_OF_LISTS: dict[Any, Callable[[list[Any]], Any]] = {kind: kind for kind in (list, tuple, set, frozenset)}


def bare(annotation: Any) -> Any:
    """Return the annotation without what says nothing about the value: Annotated, NewType, aliases, qualifiers."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated or origin in _QUALIFIERS:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif _is_alias(annotation):
            annotation = annotation.__value__
        elif isinstance(annotation, TypeVar):
            annotation = Any if annotation.__bound__ is None else annotation.__bound__
        elif annotation is None:
            return type(None)
        elif annotation is object or isinstance(annotation, str | ForwardRef):
            return Any
        else:
            return annotation


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union; an annotation that is none is its only alternative."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in get_args(annotation) for part in members_of(member))
    return (annotation,)


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield the annotation and everything that it is made of. An alias that is made of itself is entered once."""
    pending, entered = [annotation], set[int]()
    while pending:
        part = pending.pop()
        if _is_alias(part):
            if id(part) in entered:
                continue
            entered.add(id(part))
        part = bare(part)
        yield part
        pending.extend(get_args(part))


def is_assignable(source: Any, target: Any) -> bool:
    """Whether a value annotated `source` can be given to a parameter annotated `target`. False only if it never can."""
    try:
        return _is_assignable_cached(source, target)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated with a list
        return _is_assignable(source, target)
    except RecursionError:  # aliases that are made of themselves
        return True


def item_of(annotation: Any) -> Any:
    """Return the annotation of the items that mapping over such a value gives. Raises TypeError if it has none."""
    items = [item for member in members_of(annotation) if (item := _member_item(member)) is not _NO_ITEMS]
    if not items:
        raise TypeError(f"{describe(annotation)} has no items")
    return Union[tuple(items)]  # noqa: UP007  # the members are known only here


def part_at(annotation: Any, path: Sequence[str | int]) -> Any:
    """Return the annotation of the part that `path` leads to. Raises LookupError if there is no such part."""
    for step in path:
        members = [member for member in members_of(annotation) if member is not type(None)]
        if len(members) != 1:
            return Any
        annotation = _step_into(members[0], step)
    return annotation


def describe(annotation: Any) -> str:
    """Return the annotation as one would write it."""
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def shaped(value: Any, annotation: Any) -> Any:
    """Return a value whose containers are those that the annotation names; what does not fit stays as it is.

    What a workflow puts together from results of nodes is a list or a dict, as in JSON, whatever its function wrote.
    """
    annotation = bare(annotation)
    arguments = get_args(annotation)
    kind, wanted = _kind_of(value), get_origin(annotation) or annotation
    if kind is dict and wanted is dict and arguments:
        return {key: shaped(part, arguments[1]) for key, part in value.items()}
    if kind is not list or not isinstance(wanted, type) or wanted not in _MADE_OF_LISTS:
        return value
    if arguments and _is_fixed_tuple(annotation):
        return tuple(map(shaped, value, arguments)) if len(value) == len(arguments) else value
    return _MADE_OF_LISTS[wanted]([shaped(part, arguments[0] if arguments else Any) for part in value])


def hints_of_class(cls: type[Any]) -> dict[str, Any]:
    """Return the resolved annotations of a class and its bases; what cannot be resolved is Any."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # a name that exists only for type checkers, or an annotation that is no type
        hints: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            module = sys.modules.get(base.__module__)
            annotations = inspect.get_annotations(base)
            hints.update(resolve_each(annotations, getattr(module, "__dict__", {}), dict(vars(base))))
        return hints


def resolve_each(annotations: Mapping[str, Any], globalns: dict[str, Any], localns: dict[str, Any]) -> dict[str, Any]:
    """Return each annotation resolved by itself; what cannot be resolved is Any."""
    return {name: _resolved(annotation, globalns, localns) for name, annotation in annotations.items()}


def is_record(cls: type[Any]) -> bool:
    """Whether instances have named fields and are stored as objects, so that a mapping may stand for one."""
    return (
        is_typeddict(cls)
        or dataclasses.is_dataclass(cls)
        or any(hasattr(cls, mark) for mark in ("__struct_fields__", "model_fields", "__attrs_attrs__"))
    )


def _kind_of(value: object) -> type[object]:
    return type(value)


def _is_alias(annotation: Any) -> bool:
    """Whether it was made by a `type` statement, possibly with arguments."""
    return type(get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def _resolved(annotation: Any, globalns: dict[str, Any], localns: dict[str, Any]) -> Any:
    class Holder: ...

    Holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(Holder, globalns, localns, include_extras=True)["it"]
    except Exception:  # a name that exists only for type checkers, or an annotation that is no type
        return Any


def _is_assignable(source: Any, target: Any) -> bool:
    if source == target:
        return True
    wanted = members_of(target)
    return any(_member_fits(one, other) for one in members_of(source) for other in wanted)


_is_assignable_cached = functools.lru_cache(maxsize=4096)(_is_assignable)


def _member_fits(source: Any, target: Any) -> bool:
    if source is Any or target is Any:
        return True
    if get_origin(source) is Literal:
        return any(_literal_fits(value, target) for value in get_args(source))
    given = _class_of(source)
    if get_origin(target) is Literal:
        kinds: set[type[Any]] = {type(value) for value in get_args(target)}
        return given is None or any(_is_related(given, kind) for kind in kinds)
    wanted = _class_of(target)
    if given is None or wanted is None:
        return True
    return _is_related(given, wanted) and _contents_fit(source, given, target, wanted)


def _literal_fits(value: Any, target: Any) -> bool:
    if get_origin(target) is Literal:
        return any(type(value) is type(wanted) and value == wanted for wanted in get_args(target))
    return _member_fits(cast("object", type(value)), target)


def _class_of(annotation: Any) -> type[Any] | None:
    """Return the class that values are instances of; None if that is not a matter of classes."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return None
    return cast("type[Any]", origin)


def _is_related(given: type[Any], wanted: type[Any]) -> bool:
    """Whether an instance of one class can be one of the other, or stand for it."""
    given, wanted = (dict if is_typeddict(cls) else cls for cls in (given, wanted))
    if _is_subclass(given, wanted) or _is_subclass(wanted, given):
        return True
    if wanted in (float, complex):
        return _is_subclass(given, int) or given is float
    if _is_subclass(given, _ARRAYS) and _is_subclass(wanted, _ARRAYS):
        return True
    return (is_record(given) and _is_mapping(wanted)) or (_is_mapping(given) and is_record(wanted))


def _is_subclass(one: type[Any], other: type[Any] | tuple[type[Any], ...]) -> bool:
    try:
        return issubclass(one, other)
    except TypeError:  # a class that refuses to be asked
        return True


def _is_mapping(cls: type[Any]) -> bool:
    return _is_subclass(cls, collections.abc.Mapping)


def _contents_fit(source: Any, given: type[Any], target: Any, wanted: type[Any]) -> bool:
    """Whether what two generic annotations say of their contents agrees; contents are compared in order."""
    if _is_subclass(given, _ARRAYS) or _is_subclass(wanted, _ARRAYS):
        return _items_fit(source, target)
    ours, theirs = get_args(source), get_args(target)
    if len(ours) != len(theirs) or any(isinstance(argument, list) for argument in (*ours, *theirs)):
        return True
    return all(Ellipsis in pair or _is_assignable(*pair) for pair in zip(ours, theirs, strict=True))


def _items_fit(source: Any, target: Any) -> bool:
    if _is_fixed_tuple(source) and _is_fixed_tuple(target):
        ours, theirs = get_args(source), get_args(target)
        return len(ours) == len(theirs) and all(map(_is_assignable, ours, theirs))
    try:
        return _is_assignable(item_of(source), item_of(target))
    except TypeError:
        return True


def _is_fixed_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and Ellipsis not in get_args(annotation)


def _member_item(member: Any) -> Any:
    """Return the item annotation of one alternative, or `_NO_ITEMS` if mapping over it makes no sense."""
    cls = _class_of(member)
    if member is Any or cls is None:
        return _NO_ITEMS if get_origin(member) is Literal else Any
    if cls in (str, bytes, bytearray) or is_record(cls) or _is_mapping(cls) or not hasattr(cls, "__iter__"):
        return _NO_ITEMS
    arguments = tuple(argument for argument in get_args(member) if argument is not Ellipsis)
    if cls is tuple and arguments:
        return Union[arguments]  # noqa: UP007  # the members are known only here
    return arguments[0] if arguments else Any


def _step_into(member: Any, step: str | int) -> Any:
    cls = _class_of(member)
    if cls is None or member is Any:
        return Any
    arguments = get_args(member)
    if is_record(cls):
        return _field_of(cls, step)
    if _is_mapping(cls):
        return arguments[1] if len(arguments) == 2 else Any
    if _is_fixed_tuple(member) and isinstance(step, int):
        if not -len(arguments) <= step < len(arguments):
            raise LookupError(f"{describe(member)} has no item {step}")
        return arguments[step]
    if _is_subclass(cls, _ARRAYS) and isinstance(step, int):
        return item_of(member)
    if cls in (str, int, float, bool, bytes, list):
        raise LookupError(f"{describe(member)} has no {step!r}")
    return Any


def _field_of(cls: type[Any], step: str | int) -> Any:
    if step in _field_names(cls):
        return hints_of_class(cls).get(cast("str", step), Any)
    if isinstance(step, str) and not is_typeddict(cls) and hasattr(cls, step):  # a property, say
        return Any
    raise LookupError(f"{describe(cls)} has no {step!r}")


def _field_names(cls: type[Any]) -> Collection[str]:
    for mark in ("model_fields", "__struct_fields__", "__dataclass_fields__"):
        if hasattr(cls, mark):
            return cast("Collection[str]", getattr(cls, mark))
    return hints_of_class(cls)
