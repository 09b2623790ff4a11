"""Texts that PostgreSQL cannot hold, and how it holds them all the same.

A PostgreSQL text has no room for the NUL character, which SQLite and Python allow. Where one occurs, or the noncharacter that
stands in for it, texts are rewritten on the way in and put back on the way out. Different texts stay different and a beginning
stays a beginning, so that comparing and searching work on what is stored. All other texts are stored as they are.
"""

from __future__ import annotations

from typing import Any, cast

_NUL = "\x00"
_MARK = "\ufdd0"
_MARK_BYTES = _MARK.encode()
_MARK_FIRST = _MARK_BYTES[:1]
_NUL_IN_JSON = b"\\u0000"


def to_stored(value: Any) -> Any:
    """Return a value, a list or a row as it is stored: texts without NUL."""
    if isinstance(value, str):
        if _NUL in value or _MARK in value:
            return value.replace(_MARK, _MARK + "1").replace(_NUL, _MARK + "0")
        return value
    if isinstance(value, tuple):
        return tuple(to_stored(part) for part in cast("tuple[object, ...]", value))
    if isinstance(value, list):
        return [to_stored(part) for part in cast("list[object]", value)]
    return value


def from_stored(value: Any) -> Any:
    """Return a stored value or row as it was before `to_stored`."""
    if isinstance(value, str):
        if _MARK in value:
            return value.replace(_MARK + "0", _NUL).replace(_MARK + "1", _MARK)
        return value
    if isinstance(value, tuple):
        return tuple(from_stored(part) for part in cast("tuple[object, ...]", value))
    return value


def needs_care(document: bytes) -> bool:
    """Whether a JSON document may hold a text that `to_stored` changes. Wrongly True now and then, never wrongly False."""
    # One byte is found in a hundredth of the time that several take, and most documents do not have that of the mark.
    return _NUL_IN_JSON in document or (_MARK_FIRST in document and _MARK_BYTES in document)
