"""Documents: JSON as plain data, with everything refused that would not be the same for every reader.

Refused are keys that appear twice, numbers that JSON cannot hold, half surrogate pairs and nesting deeper than 100
levels. `yamls` does the same for YAML.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.errors import DocumentFault, UnreadableGraph
from perdure.graph.constants import MAX_DEPTH, MOST_INT, as_json, is_array, is_object, why_not_key, why_not_scalar

_MOST_FAULTS = 1000


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises UnreadableGraph with all that is wrong."""
    try:
        parsed = json.loads(decoded(text), object_pairs_hook=_object, parse_int=whole_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UnreadableGraph([DocumentFault(place, f"this is not JSON: {error.msg}.")]) from None
    except RecursionError:
        raise UnreadableGraph([too_deep("document")]) from None
    return plain(parsed)


def plain(value: Any) -> Any:
    """Return a copy of the value as plain JSON. Raises UnreadableGraph with every place where it is none."""
    if faults := list(_faults(value)):
        raise UnreadableGraph(faults)
    return as_json(value)


def decoded(text: str | bytes) -> str:
    """Return a text that may have come as bytes. Raises UnreadableGraph unless they are UTF-8."""
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte {error.start}"
        raise UnreadableGraph([DocumentFault(place, "this is not text in UTF-8.")]) from None


def whole_number(digits: str) -> int:
    """Return the number that digits say; of one that is too large for JSON, another such one."""
    # Python refuses to read thousands of digits.
    return int(digits) if len(digits) <= 20 else MOST_INT + 1


def too_deep(place: str) -> DocumentFault:
    """Return the fault of a document that is nested too deep."""
    return DocumentFault(place, f"this is nested deeper than {MAX_DEPTH} levels.")


class _Doubled(dict[str, Any]):
    """An object in which keys appear twice. It ends as a fault, with the place where it stands."""

    keys_twice: tuple[str, ...] = ()


Place = tuple["Place | None", str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    doubled = _Doubled(made)
    counts = Counter(key for key, _ in pairs)
    doubled.keys_twice = tuple(key for key, count in counts.items() if count > 1)
    return doubled


def _faults(value: Any) -> Iterator[DocumentFault]:
    pending: list[tuple[Any, int, Place | None]] = [(value, 0, None)]
    found = 0
    while pending and found < _MOST_FAULTS:
        part, depth, place = pending.pop()
        for problem in _part_problems(part, depth):
            found += 1
            yield DocumentFault(_written(place), problem)
        if depth > MAX_DEPTH:
            continue
        if is_object(part):
            pending.extend((member, depth + 1, (place, f".{key}")) for key, member in reversed(part.items()))
        elif is_array(part):
            items = reversed(list(enumerate(part)))
            pending.extend((member, depth + 1, (place, f"[{number}]")) for number, member in items)


def _part_problems(part: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        yield too_deep("").message
    elif isinstance(part, _Doubled):
        yield from (f"the key {key!r} appears twice." for key in part.keys_twice)
    elif is_object(part):
        for key in part:
            if (reason := why_not_key(key)) is not None:
                yield f"{reason}."
    elif not is_array(part) and (reason := why_not_scalar(part)) is not None:
        yield f"{reason}."


def _written(place: Place | None) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return "".join(reversed(steps)).removeprefix(".") or "document"
