"""Which types an annotation names: the types, besides registered ones, that stored data may ask for."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

from perdure.graph.annotations import parts_of
from perdure.graph.assets import Asset
from perdure.ids import type_name
from perdure.store.codecs.codec import type_of
from perdure.store.codecs.models import model_codec


def types_named(annotation: Any) -> dict[str, type]:
    """Return the models and enums that an annotation names, by the names under which they are stored.

    Named are also the types of their fields and, because an instance of a subclass fits as well, their subclasses.
    Annotations that cannot be resolved are passed over.
    """
    found: dict[str, type] = {}
    # By identity, because annotations need not be hashable; kept alive, so that no identity is used twice.
    seen: dict[int, Any] = {}
    waiting = [annotation]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = current
        if not isinstance(current, type) or typing.get_args(current):
            waiting.extend(_parts(current))
        elif current.__module__ not in ("builtins", "typing"):
            waiting.extend(type.__subclasses__(current))
            if model_codec(current) is not None:
                found[type_name(current)] = current
                waiting.extend(_field_annotations(current))
    return found


def assets_named(annotation: Any) -> frozenset[type[Asset]]:
    """Return the kinds of assets of which a value so annotated may be made; none if the annotation does not tell."""
    kinds: set[type[Asset]] = set()
    for part in parts_of(annotation):
        if part is Any or (isinstance(part, type) and not get_args(part) and model_codec(part) is not None):
            return frozenset()
        if isinstance(part, type) and not get_args(part) and issubclass(part, Asset):
            kinds.add(part)
    return frozenset(kinds)


def _parts(annotation: Any) -> Iterator[Any]:
    """`list[X]`, `X | Y`, `Annotated[X, …]`; then NewType, type variables and the `type` statement."""
    yield from typing.get_args(annotation)
    for attribute in ("__origin__", "__supertype__", "__bound__", "__value__"):
        part = getattr(annotation, attribute, None)
        if part is not None:
            yield part
    yield from getattr(annotation, "__constraints__", ())
    if type_of(annotation) is list:
        yield from annotation


def _field_annotations(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        for name, annotation in inspect.get_annotations(base).items():
            yield from _resolved(name, annotation, module, base)


def _resolved(name: str, annotation: Any, module: ModuleType | None, cls: type) -> Iterator[Any]:
    """One by one, because one that is imported only for type checkers would hide all the others."""
    holder = SimpleNamespace(__annotations__={name: annotation})
    known = {cls.__name__: cls, **vars(cls)}
    with suppress(Exception):  # An annotation is any expression, and may raise anything.
        yield typing.get_type_hints(holder, vars(module) if module else {}, known, include_extras=True)[name]
