"""What people can be asked: which answers fit, what counts when nobody answers, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from perdure.graph.constants import from_constant, schema_of, to_constant

NOT_GIVEN: Final = msgspec.UNSET
"""Where None is a value like any other."""

LONGEST_SECONDS: Final = timedelta(days=365_000).total_seconds()
"""Longer times have no date, and would not fit into a table."""

Span = float | timedelta
Moment = Span | datetime
"""A time from now, in seconds unless it says otherwise; or a point in time, which has to know its time zone."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Which answers a question takes. Constants are in their JSON form."""

    schema: dict[str, Any]
    choices: tuple[Any, ...] = ()
    default: Any = NOT_GIVEN


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time, if there is one: from when it is counted, or on the clock."""

    seconds: float | None = None
    until: float | None = None
    """In seconds since 1970."""


def answers(schema: Any, choices: Sequence[Any] | None, default: Any, deadline: Moment | None) -> Answers:
    """Return which answers fit what was asked for. Raises ValueError if that makes no sense."""
    if schema is not None and not _is_type(schema):
        raise ValueError(f"the schema of an answer is a type, such as int or a dataclass, and not {schema!r}")
    annotation = answer_type(schema, choices)
    options = tuple(_constant(choice, annotation, "a choice") for choice in choices or ())
    if choices is not None and not options:
        raise ValueError("a question with choices needs at least one")
    answer = NOT_GIVEN if default is NOT_GIVEN else _constant(default, annotation, "the default")
    if options and answer is not NOT_GIVEN and answer not in options:
        raise ValueError(f"the default {default!r} is none of the choices")
    if answer is not NOT_GIVEN and deadline is None:
        raise ValueError("a default answer needs a deadline, after which it is taken")
    return Answers(schema=schema_of(annotation), choices=options, default=answer)


def text(given: Any, what: str) -> str:
    """Return a text that was given. Raises ValueError if it is none; `what` it is for is said there."""
    if not isinstance(given, str):
        raise ValueError(f"{what} must be a text, and not {given!r}")
    return given


def answer_type(schema: Any, choices: Sequence[Any] | None) -> Any:
    """Return the type of the answer to a question."""
    if schema is not None:
        return schema
    return str if choices is None else Any


def answer_of(plain: Any, schema: Any, choices: Sequence[Any] | None) -> Any:
    """Return the answer as whoever asks wants it, given its JSON form. Raises ValueError if its type will not have it."""
    annotation = answer_type(schema, choices)
    for choice in choices or ():
        if _constant(choice, annotation, "a choice") == plain:
            return choice
    return from_constant(plain, annotation)


def limit(moment: Moment | None, what: str) -> Limit:
    """Return a time limit. Raises ValueError if it is none; `what` it is for is said there."""
    if moment is None:
        return Limit()
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{what} must know its time zone: {moment.isoformat()} has none")
        return Limit(until=moment.astimezone(UTC).timestamp())
    if not isinstance(moment, int | float | timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{what} must be a number of seconds, a timedelta or a datetime, and not {moment!r}")
    seconds = moment.total_seconds() if isinstance(moment, timedelta) else float(moment)
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"{what} must be a time from now on, within a thousand years, and not {moment!r}")
    return Limit(seconds=seconds)


def _is_type(schema: Any) -> bool:
    return isinstance(schema, type) or type(schema).__module__ in ("types", "typing", "typing_extensions")


def _constant(value: Any, annotation: Any, what: str) -> Any:
    try:
        plain = to_constant(value, annotation)
        from_constant(plain, annotation)
    except ValueError as error:
        raise ValueError(f"{what} does not fit: {error}") from None
    return plain
