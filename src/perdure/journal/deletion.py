"""Deleting what a run holds: values go, what happened stays.

A value is replaced where it stands, in events and in what they add up to alike, so that a log without its values still adds up to
its tables. What would have to be looked into to know more than that is not proved of a deleted run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from perdure.journal import events as e
from perdure.journal.states import Question

S = TypeVar("S", bound=msgspec.Struct)

DELETED: Final = msgspec.Raw(b'{"$":"deleted"}')
"""What stands in the place of a value."""

_WORDS = ("reason", "by")
"""Where people have written something, or are named. A run that waits for an answer says there what it asks."""


def without_values(record: S) -> S:
    """Return an event, or a row that events add up to, with nothing left in it of what users have put there."""
    changed = {
        name: kept
        for name in record.__struct_fields__
        if (kept := _without(value := getattr(record, name))) is not value
    }
    if not isinstance(record, e.RunDeleted):
        changed |= {name: "" for name in _WORDS if getattr(record, name, "")}
    if isinstance(record, e.ErrorRecord):
        changed |= {"message": "", "traceback": ""}
    if isinstance(record, Question | e.InteractionRequested):
        changed |= {"prompt": "", "schema": {}}
    return msgspec.structs.replace(record, **changed) if changed else record


def is_deleted(events: Iterable[e.Recorded]) -> bool:
    """Whether the values of a run were removed, as its log tells."""
    return any(isinstance(entry.event, e.RunDeleted) for entry in events)


def _without(value: Any) -> Any:
    match value:
        case msgspec.Raw():
            return DELETED
        case msgspec.Struct():
            return without_values(value)
        case dict():
            return {name: _without(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case tuple():
            return tuple(_without(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
