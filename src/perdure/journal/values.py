"""Reading encoded values without decoding them into Python types: truth, parts, and what they are made of.

A stored value is JSON in which everything that JSON has no word for is a tagged object `{"$": tag, "v": …}`. The tags
belong to the codecs; all the journal knows is that a tagged object wraps what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from perdure.graph.templates import fill
from perdure.journal.events import Encoded

NULL = msgspec.Raw(b"null")
TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")
_FALSE = frozenset((b"false", b"null", b"0", b"0.0", b"-0.0", b'""', b"[]", b"{}"))
_TRUTH: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("tuple", "set", "frozenset", "dict", "ordereddict", "bytes", "bytearray", "counter"), bool),
    **dict.fromkeys(("timedelta", "complex"), any),
    "decimal": lambda text: text.strip("-+0.").partition("E")[0] != "",
    "fraction": lambda parts: bool(parts[0]),
    "deque": lambda parts: bool(parts[0]),
    "range": lambda bounds: bool(range(*bounds)),
}
"""Tags of values that can be false. Of anything else that is tagged the form says nothing, and it is taken for true."""
_items = msgspec.json.Decoder(list[msgspec.Raw])


def is_true(value: Encoded) -> bool:
    """Return what Python's `bool` would say of the value, as far as its encoded form tells."""
    content = bytes(value)
    if content in _FALSE:
        return False
    if not content.startswith(b'{"$":'):
        return True
    wrapped = msgspec.json.decode(content)
    judge = _TRUTH.get(wrapped["$"])
    return judge is None or judge(wrapped["v"])


def part_of(value: Encoded, path: Sequence[str | int]) -> Encoded:
    """Return the part of a value that `path` leads to. Raises LookupError when there is none."""
    if not path:
        return value
    current: Any = msgspec.json.decode(bytes(value))
    for step in path:
        current = _unwrapped(current)
        match current, step:
            case dict(), _ if step in current:
                current = cast("dict[Any, Any]", current)[step]
            case list(), int() if -len(cast("list[Any]", current)) <= step < len(cast("list[Any]", current)):
                current = cast("list[Any]", current)[step]
            case _:
                raise LookupError(f"the value has no {step!r}")
    return msgspec.Raw(msgspec.json.encode(current))


def part_or_null(value: Encoded, path: Sequence[str | int]) -> Encoded:
    """Return the part of a value that `path` leads to; null when there is none."""
    try:
        return part_of(value, path)
    except LookupError:
        return NULL


def items_of(value: Encoded) -> list[Encoded]:
    """Return the items of a list. Raises LookupError when the value is none."""
    content = bytes(value)
    if content.startswith(b"["):
        return _items.decode(content)
    items = _unwrapped(msgspec.json.decode(content))
    if not isinstance(items, list):
        raise LookupError("the value is no list")
    return [msgspec.Raw(msgspec.json.encode(item)) for item in cast("list[Any]", items)]


def parts_or_nulls(value: Encoded, path: Sequence[str | int]) -> Encoded:
    """Return the list of the parts of a list's items; null for an item that has none. Raises LookupError as `items_of` does."""
    return list_of(part_or_null(item, path) for item in items_of(value))


def part_handle(handle: str, path: Sequence[str | int]) -> str:
    """Name the output under which a part of a value is kept beside it, when the value itself is too large to look into."""
    return "/".join((handle, *map(str, path)))


def truth_handle(handle: str, path: Sequence[str | int]) -> str:
    """Name the output under which the truth of a value, or of a part of it, is kept beside it where its form does not tell."""
    return part_handle(handle, path) + "?"


def list_of(values: Iterable[Encoded]) -> Encoded:
    """Return the encoded list of encoded values."""
    return msgspec.Raw(b"[" + b",".join(bytes(value) for value in values) + b"]")


def filled(template: Any, values: Mapping[str, Encoded]) -> Encoded:
    """Return a template with the values of its edges, by edge id, in their places."""
    return msgspec.Raw(msgspec.json.encode(fill(template, values.__getitem__, _as_text)))


def _as_text(value: Any) -> str:
    """Text as itself, so what is stored as a tagged text (a date, a decimal), anything else as JSON."""
    decoded = _unwrapped(msgspec.json.decode(bytes(value)))
    return decoded if isinstance(decoded, str) else msgspec.json.encode(decoded).decode()


def _unwrapped(value: Any) -> Any:
    while isinstance(value, dict) and "$" in (wrapped := cast("dict[str, Any]", value)):
        value = wrapped.get("v")
        if wrapped["$"] == "dict":
            return {key: held for key, held in cast("list[Any]", value) if isinstance(key, str | int)}
    return cast("Any", value)
