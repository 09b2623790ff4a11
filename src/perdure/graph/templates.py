"""Templates: values with places that edges fill.

A template is JSON in which an object with exactly one key is special if that key is one of these:

- `{"$ref": EDGE_ID}`: the value that the edge brings;
- `{"$text": [part, …]}`: a text, joined from texts and `$ref`s;
- `{"$map": template}`: a list whose items are mapped one by one, as edges with mode `map` are. Only as a whole value;
- `{"$value": anything}`: the thing itself, in which nothing is special. What is meant literally and would otherwise be
  read as one of these is wrapped in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.graph.constants import MAX_DEPTH, is_array, is_object

REF = "$ref"
TEXT = "$text"
MAP = "$map"
VALUE = "$value"
_MARKERS = frozenset((REF, TEXT, MAP, VALUE))


def marker_of(value: Any) -> str | None:
    """Return which special object `value` is itself, if it is one."""
    if is_object(value) and len(value) == 1:
        key = next(iter(value))
        return key if key in _MARKERS else None
    return None


def references(value: Any) -> Iterator[str]:
    """Yield the ids of the edges that a value names, in order; none for a constant."""
    pending = [value]
    while pending:
        part = pending.pop()
        match marker_of(part):
            case "$ref":
                if isinstance(part[REF], str):
                    yield part[REF]
            case "$value":
                pass
            case _:
                pending.extend(reversed(_members(part)))


def is_mapped(value: Any) -> bool:
    """Whether the items of this value are to be mapped one by one."""
    return marker_of(value) == MAP


def is_constant(value: Any) -> bool:
    """Whether nothing in `value` is special."""
    pending = [value]
    while pending:
        part = pending.pop()
        if marker_of(part) is not None:
            return False
        pending.extend(_members(part))
    return True


def literal(value: Any) -> Any:
    """Return `value` written so that it is read as itself."""
    return value if is_constant(value) else {VALUE: value}


def fill(template: Any, brought_by: Callable[[str], Any], as_text: Callable[[Any], str]) -> Any:
    """Return the template with its places filled.

    `brought_by` gives the value that an edge brings, `as_text` the words for it in the middle of a text.
    """
    match marker_of(template):
        case "$ref":
            return brought_by(template[REF])
        case "$text":
            parts = [part if isinstance(part, str) else as_text(brought_by(part[REF])) for part in template[TEXT]]
            return "".join(parts)
        case "$map":
            return fill(template[MAP], brought_by, as_text)
        case "$value":
            return template[VALUE]
        case _:
            pass
    if is_object(template):
        return {key: fill(member, brought_by, as_text) for key, member in template.items()}
    if is_array(template):
        return [fill(member, brought_by, as_text) for member in template]
    return template


def problems_of(template: Any) -> Iterator[str]:
    """Yield what is wrong with the way a template is written."""
    pending: list[tuple[Any, int]] = [(template, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_DEPTH:
            yield f"it is nested deeper than {MAX_DEPTH} levels"
            continue
        match marker_of(part):
            case "$ref":
                if not isinstance(part[REF], str):
                    yield f"$ref names an edge by its id, not by {_kind(part[REF])}"
            case "$text":
                yield from _text_problems(part[TEXT])
            case "$value":
                pass
            case "$map" if depth > 0:
                yield "$map can only be the whole value of a handle"
            case _:
                pending.extend((member, depth + 1) for member in _members(part))


def _text_problems(parts: Any) -> Iterator[str]:
    if not is_array(parts):
        yield f"$text is a list of texts and $refs, not {_kind(parts)}"
        return
    for part in parts:
        is_reference = marker_of(part) == REF and isinstance(part[REF], str)
        if not is_reference and not isinstance(part, str):
            yield f"$text is made of texts and $refs, not of {_kind(part)}"


def _members(part: Any) -> list[Any]:
    if is_object(part):
        return list(part.values())
    return part if is_array(part) else []


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
