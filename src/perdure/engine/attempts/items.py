"""What a call for one item gets: its part of a list or of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from perdure.engine.attempts.failures import InputUnusable
from perdure.engine.attempts.values import Values
from perdure.journal.events import Encoded
from perdure.journal.values import part_of

_items = msgspec.json.Decoder(list[msgspec.Raw])


def items_of_list(value: Encoded, handle: str, values: Values) -> list[bytes]:
    """Return the encoded items of an encoded list, or of whatever else can be gone through. Nothing of it is in a blob."""
    content = bytes(value)
    if content.startswith(b"["):
        return [bytes(item) for item in _items.decode(content)]
    decoded: Any = values.decode_whole(value, Any)
    if isinstance(decoded, Mapping | str | bytes) or not isinstance(decoded, Iterable):
        given = type(cast("object", decoded)).__name__
        raise InputUnusable(f"handle {handle!r} is mapped over the items of a list, but got a {given}")
    encode = values.codecs.encode
    return [encode(item, where=f"an item for handle {handle!r}") for item in cast("Iterable[Any]", decoded)]


def picked(item: bytes, path: Sequence[str | int], handle: str) -> bytes:
    """Return the part of an item that an edge picks."""
    try:
        return bytes(part_of(msgspec.Raw(item), path))
    except LookupError as error:
        where = ".".join(str(step) for step in path)
        raise InputUnusable(f"handle {handle!r} wants {where!r} of an item, but {error.args[0]}") from error
