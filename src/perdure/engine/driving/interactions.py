"""Questions to people, as those see them who answer: what is asked, and whether something is an answer."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

import msgspec

from perdure.engine.attempts.values import Values
from perdure.errors import ValueNotReadable
from perdure.graph.constants import to_constant
from perdure.ids import NodeId, RunId
from perdure.journal.events import Encoded
from perdure.journal.states import Question, WaitKind, WaitState
from perdure.store.shapes import OpenWait

_FORMATS: dict[str, Any] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}
"""What JSON has no form of its own for, as schemas name it."""


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for its answer, or a node that waits to be told to go on."""

    interaction_id: str
    run_id: RunId
    workflow: str
    node_id: NodeId
    kind: WaitKind
    prompt: str
    schema: dict[str, Any]
    """What an answer has to be like, as JSON Schema."""
    choices: list[Any]
    show: Any
    """What the person who answers should see; in its stored JSON form, if its class is not known here."""
    default: Any
    """What counts after the deadline."""
    asked_at: datetime
    deadline: datetime | None


async def interaction_of(found: OpenWait, values: Values) -> Interaction:
    """Return a question as people see it."""
    wait = found.wait
    asked = wait.question or Question(prompt="")

    async def shown(encoded: Any) -> Any:
        return None if encoded is msgspec.UNSET else await _shown(encoded, values)

    return Interaction(
        interaction_id=wait.wait_id,
        run_id=found.run_id,
        workflow=found.workflow,
        node_id=wait.node_id,
        kind=wait.kind,
        prompt=asked.prompt,
        schema=asked.schema,
        choices=[msgspec.json.decode(choice) for choice in asked.choices],
        show=await shown(asked.show),
        default=await shown(asked.default),
        asked_at=_moment(wait.opened_at),
        deadline=None if wait.due is None else _moment(wait.due),
    )


async def _shown(encoded: Encoded, values: Values) -> Any:
    try:
        return await values.unpack(encoded)
    except ValueNotReadable:  # whoever answers may have none of the workflow's classes
        return msgspec.json.decode(await values.inlined(encoded))


def checked_answer(wait: WaitState, value: Any) -> tuple[Any, list[str]]:
    """Return an answer in its JSON form, and what is wrong with it."""
    if wait.kind is WaitKind.SUSPEND or wait.question is None:
        return value, []
    try:
        plain = to_constant(value, type(value))
    except ValueError as error:
        return value, [str(error)]
    choices = [msgspec.json.decode(choice) for choice in wait.question.choices]
    if choices:
        listed = ", ".join(map(_as_json, choices))
        return plain, [] if plain in choices else [f"{_as_json(plain)} is none of {listed}"]
    return plain, schema_problems(plain, wait.question.schema)


def schema_problems(plain: Any, schema: dict[str, Any]) -> list[str]:
    """Return why a value in its JSON form does not fit a schema; nothing if it fits."""
    validator = _validator(msgspec.json.encode(schema))
    found: list[Any] = sorted(validator.iter_errors(plain), key=lambda error: error.json_path)
    return [f"{error.message}" if error.json_path == "$" else f"{error.json_path}: {error.message}" for error in found]


@functools.lru_cache(maxsize=128)
def _validator(schema: bytes) -> Any:
    """Return what knows what fits a schema. To make it takes longer than to use it, and thousands may answer one question."""
    # Takes a while to load, and only who answers needs it.
    jsonschema: Any = import_module("jsonschema")
    formats = jsonschema.FormatChecker(formats=())
    for name, kind in _FORMATS.items():
        formats.checks(name, raises=msgspec.ValidationError)(_reader(kind))
    draft = jsonschema.Draft202012Validator
    types = draft.TYPE_CHECKER.redefine("integer", _is_integer)
    return jsonschema.validators.extend(draft, type_checker=types)(msgspec.json.decode(schema), format_checker=formats)


def _is_integer(_: object, value: object) -> bool:
    """Whoever is promised an int is given no 5.0, which is one for JSON Schema."""
    return type(value) is int


def _reader(kind: Any) -> Callable[[object], bool]:
    def is_one(value: object) -> bool:
        if isinstance(value, str):
            msgspec.convert(value, kind)
        return True

    return is_one


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)
