"""How much work it is to encode a value: what is light is encoded on the loop, at once, everything else beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from perdure.graph.assets import Asset
from perdure.store.codecs.codec import type_of

LIGHT_PARTS: Final = 1_000
"""How many parts a light value may have: encoding takes about a microsecond for each."""
LIGHT_BYTES: Final = 64 * 1024

_SMALL: Final = frozenset((bool, int, float, type(None)))
_ATOMS: Final = (Enum, date, time, timedelta, Decimal, PurePath, UUID)


def is_light(value: Any) -> bool:
    """Whether encoding the value takes no longer than a moment. What is not known is not light."""
    kind = type_of(value)
    if kind in _SMALL:
        return True
    if kind is dict and len(value) <= LIGHT_PARTS and _SMALL.issuperset(map(type, value.values())):
        return True
    try:
        return _Scale().weigh(value)
    except RecursionError:
        return False


class _Scale:
    """Weighs a value, and stops as soon as it is too heavy."""

    __slots__ = ("_bytes", "_parts")

    def __init__(self) -> None:
        self._parts = LIGHT_PARTS
        self._bytes = LIGHT_BYTES

    def weigh(self, value: Any) -> bool:
        """Add a value; False if it is too heavy together with those before."""
        kind = type_of(value)
        if kind in _SMALL:
            self._parts -= 1
        elif kind is str or kind is bytes or kind is msgspec.Raw:
            self._parts -= 1
            self._bytes -= len(memoryview(value) if kind is msgspec.Raw else value)
        elif kind is dict:
            return self._weigh_dict(value)
        elif kind is list or kind is tuple or kind is set or kind is frozenset:
            return self._weigh_all(value, len(value))
        else:
            return self._weigh_object(value, kind)
        return self._parts >= 0 and self._bytes >= 0

    def _weigh_dict(self, value: dict[Any, Any]) -> bool:
        return self._weigh_all(value, len(value)) and self._weigh_all(value.values(), 0)

    def _weigh_all(self, values: Iterable[Any], count: int) -> bool:
        self._parts -= 1
        return count <= self._parts and all(map(self.weigh, values))

    def _weigh_object(self, value: Any, kind: type[Any]) -> bool:
        if isinstance(value, _ATOMS):
            return self.weigh(None)
        if isinstance(value, Asset):
            return self.weigh(value.name) and self._weigh_dict(value.meta)
        if issubclass(kind, msgspec.Struct):
            return self._weigh_all((getattr(value, name, None) for name in kind.__struct_fields__), 0)
        if dataclasses.is_dataclass(kind):
            return self._weigh_all((getattr(value, field.name, None) for field in dataclasses.fields(kind)), 0)
        if tuple in kind.__mro__ and hasattr(kind, "_fields"):  # a named tuple
            return self._weigh_all(value, 0)
        if hasattr(kind, "model_fields"):
            return self._weigh_dict(cast("dict[Any, Any]", vars(value)))
        size = getattr(value, "nbytes", None)  # an array, or a scalar, of numpy's
        return type(size) is int and self.weigh(None) and size <= self._bytes
