"""What a codec is, and the two ways in which one says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")

# `type` itself, for values of unknown type: a strict type checker refuses what `type(value)` is for them.
type_of: Final[Callable[[Any], type[Any]]] = type

USE_STORABLE_TYPES = "Use plain data, a dataclass, a msgspec or pydantic model, or register a codec for the type."


class Codec(Protocol):
    """How values of one Python type, and of its subclasses, are stored.

    The tag stands in the stored data: it is chosen once and never given to another type.
    """

    @property
    def tag(self) -> str: ...

    @property
    def python_type(self) -> type: ...

    def to_plain(self, value: Any, /) -> Any:
        """Return the value as plain data, bytes, or anything else that can be stored."""
        ...

    def from_plain(self, data: Any, /) -> Any:
        """Return a fresh value, equal to the one for which `to_plain` returned `data`."""
        ...


class Conversion(msgspec.Struct, frozen=True):
    """A codec made of two functions."""

    tag: str
    python_type: type
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


class Refusal(Exception):
    """A part of a value cannot be stored. On its way out it gathers where in the value that part is.

    It never leaves this package: `Codecs` words it as ValueNotStorable.
    """

    def __init__(self, kind: type, reason: str, remedy: str = USE_STORABLE_TYPES) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.remedy = remedy
        self.steps: list[str] = []
        """Innermost first."""

    def path(self) -> str:
        """Return the place as Python would write it, such as `.items[3].image`."""
        steps = self.steps[::-1]
        if len(steps) > 12:
            steps = [*steps[:6], "…", *steps[-3:]]
        return "".join(steps)


class Unreadable(Exception):
    """A part of a stored value cannot be turned back into what it was.

    It never leaves this package: `Codecs` words it as ValueNotReadable.
    """

    def __init__(self, reason: str, remedy: str, *, tag: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.tag = tag


def damaged(reason: str, *, tag: str | None = None) -> Unreadable:
    """Return the refusal of data that no codec has written."""
    return Unreadable(reason, "The stored data is damaged or was changed by something else: restore it.", tag=tag)


def expect(data: Any, kind: type[T]) -> T:
    """Return `data` if it is of exactly this type, as whatever wrote it made sure. Raises TypeError."""
    if type_of(data) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(data).__name__}")
    checked: T = data
    return checked


def expect_list(data: Any) -> list[Any]:
    """Return `data` if it is a list. Raises TypeError."""
    expect(data, list)
    items: list[Any] = data
    return items


def expect_dict(data: Any) -> dict[Any, Any]:
    """Return `data` if it is a dict. Raises TypeError."""
    expect(data, dict)
    items: dict[Any, Any] = data
    return items
