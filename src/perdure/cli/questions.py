"""Questions to people, in a terminal: what is asked, what an answer has to be like, and what somebody typed as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec

from perdure.cli.terminal import Paper
from perdure.cli.words import day_and_time, limit, plain, plain_lines, value_text
from perdure.clock import SystemClock
from perdure.engine.driving.interactions import checked_answer
from perdure.graph.constants import is_array, is_object
from perdure.journal.events import Encoded
from perdure.journal.states import WaitState
from perdure.store.shapes import OpenWait

MOST_SHOWN_LINES = 40
"""Of what is to be seen before one answers, no more is printed: `perdure answer --json` has all of it."""
MOST_DEPTH = 4
"""How many names of types are followed, one inside the other."""
ANYTHING = "anything"

_KINDS = {
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_FORMATS = {
    "date": "a date (2026-01-31)",
    "date-time": "a date and time (2026-01-31T12:00:00Z)",
    "time": "a time of day (12:00:00)",
    "duration": "a length of time (PT1H30M)",
    "uuid": "a UUID",
    "decimal": "a decimal number (1.50)",
}
_YES_NO: Mapping[str, bool] = {"yes": True, "y": True, "no": False, "n": False}


def question_lines(found: OpenWait, show: Encoded | None, sheet: Paper) -> Iterator[str]:
    """Yield a question as the person reads it who answers: what is asked, what there is to see, and the choices."""
    wait, pen = found.wait, sheet.pen
    until = limit(wait.due, now=SystemClock().now_micros())
    where = f"{plain(wait.node_id)} of run {plain(found.run_id)} ({plain(found.workflow)})"
    yield pen.faint(f"{where}, asked {day_and_time(wait.opened_at)}{until}")
    yield pen.strong(plain_lines(prompt_of(wait)))
    if show is not None:
        yield ""
        yield from _shown(show, sheet)
    if choices := choices_of(wait):
        yield ""
        is_numbered = _has_numbers(choices)
        for number, choice in enumerate(choices, start=1):
            yield f"  {f'{number})' if is_numbered else '-'} {as_typed(choice)}"


def _shown(show: Encoded, sheet: Paper) -> Iterator[str]:
    lines = value_text(show).splitlines()
    yield from (f"  {line}" for line in lines[:MOST_SHOWN_LINES])
    if len(lines) > MOST_SHOWN_LINES:
        yield sheet.pen.faint(f"  … and {len(lines) - MOST_SHOWN_LINES:,} more lines")


def prompt_of(wait: WaitState) -> str:
    """Return what people are asked; of a node that was suspended, why."""
    return "" if wait.question is None else wait.question.prompt


def choices_of(wait: WaitState) -> list[Any]:
    """Return the answers among which people choose; none if they are free."""
    return [] if wait.question is None else [msgspec.json.decode(choice) for choice in wait.question.choices]


def takes(wait: WaitState) -> str:
    """Return which answers a question takes."""
    if choices := choices_of(wait):
        return f"one of {', '.join(map(as_typed, choices))}"
    return schema_words(_schema(wait))


def as_typed(value: Any) -> str:
    """Return a value as it is typed as an answer."""
    return plain(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def read_answer(text: str, wait: WaitState) -> tuple[Any, list[str]]:
    """Return the answer that a text stands for, and what is wrong with it: the JSON that it is, if that fits, else the text, else
    true and false for yes and no.

    Where none fits, the JSON makes for the better complaint.
    """
    readings: list[Any] = [text]
    with suppress(msgspec.DecodeError, UnicodeError):
        readings.insert(0, msgspec.json.decode(text))
    if text.lower() in _YES_NO and not choices_of(wait):
        readings.append(_YES_NO[text.lower()])
    for reading in readings:
        if not checked_answer(wait, reading)[1]:
            return reading, []
    return readings[0], checked_answer(wait, readings[0])[1]


def ask_here(found: OpenWait, show: Encoded | None, sheet: Paper) -> Any:
    """Ask in the terminal until there is an answer that fits, and return it. Raises click.UsageError if there is none."""
    for line in question_lines(found, show, sheet):
        click.echo(line)
    click.echo()
    while True:
        try:
            text = input(f"Your answer ({_hint(found.wait)}): ").strip()
        except EOFError:
            click.echo()
            raise click.UsageError(f"No answer was given. The question is still open: {found.wait.wait_id}") from None
        if not text:
            continue
        value, problems = _typed_answer(text, found.wait)
        if not problems:
            return value
        for problem in problems:
            click.echo(f"{sheet.pen.bad('✗')} {plain(problem)}")
        click.echo(sheet.pen.faint(f"  It takes {takes(found.wait)}."))


def _hint(wait: WaitState) -> str:
    """Return what to type, in a few words."""
    if choices := choices_of(wait):
        return f"1–{len(choices)}" if _has_numbers(choices) and len(choices) > 1 else "one of these"
    return "yes or no" if _is_boolean(wait) else takes(wait)


def _typed_answer(text: str, wait: WaitState) -> tuple[Any, list[str]]:
    """Return what somebody typed at the prompt, and what is wrong with it: a choice may be named by its number."""
    value, problems = read_answer(text, wait)
    choices = choices_of(wait)
    if problems and _has_numbers(choices) and text.isdecimal() and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1], []
    return value, problems


def _has_numbers(choices: Sequence[Any]) -> bool:
    """Whether choices are numbered. Those that are numbers themselves are not: nobody could tell which is meant."""
    return not any(isinstance(choice, int | float) for choice in choices)


def _is_boolean(wait: WaitState) -> bool:
    return _schema(wait).get("type") == "boolean"


def _schema(wait: WaitState) -> dict[str, Any]:
    return {} if wait.question is None else wait.question.schema


def schema_words(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as a person would say it: `a list in which each is a text`, `an object with name (a text)`."""
    return _words(schema, schema.get("$defs", {}), MOST_DEPTH)


def _words(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> str:
    if isinstance(reference := schema.get("$ref"), str):
        found = defs.get(reference.rpartition("/")[2])
        return _words(found, defs, depth - 1) if is_object(found) and depth else ANYTHING
    if "const" in schema:
        return as_typed(schema["const"])
    if is_array(options := schema.get("enum")):
        return f"one of {', '.join(map(as_typed, options))}"
    for key in ("anyOf", "oneOf"):
        if is_array(options := schema.get(key)):
            return " or ".join(dict.fromkeys(_words(part, defs, depth) for part in options))
    return _words_of_type(schema, defs, depth)


def _words_of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> str:
    kind = schema.get("type")
    if is_array(kind):
        return " or ".join(_KINDS.get(str(part), ANYTHING) for part in kind)
    if kind == "string" and schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    told = _KINDS.get(str(kind), ANYTHING)
    if kind == "array" and is_object(items := schema.get("items")) and items:
        return f"{told} in which each is {_words(items, defs, depth)}"
    if kind == "object" and is_object(fields := schema.get("properties")) and fields:
        required: Sequence[str] = schema.get("required", ())
        listed = (
            f"{plain(name)} ({_words(part, defs, depth)}{'' if name in required else ', may be left out'})"
            for name, part in fields.items()
        )
        return f"{told} with {', '.join(listed)}"
    return told + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    parts = [
        f"{words} {schema[key]}"
        for key, words in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
            ("minLength", "of at least"),
            ("maxLength", "of at most"),
        )
        if key in schema
    ]
    letters = " characters" if {"minLength", "maxLength"} & schema.keys() else ""
    return f" {' '.join(parts)}{letters}" if parts else ""
