"""What a body can wait for: an answer, a signal, a time, or to be told to go on. Plain data, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure.graph.questions import NOT_GIVEN, Answers, Limit, Moment, answers, limit, text
from perdure.journal.events import Encoded
from perdure.journal.states import WaitKind

__all__ = ["NOT_GIVEN", "Came", "Moment", "WaitFor", "asked", "question", "signal_named", "slept", "suspension"]


class WaitFor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a body waits for."""

    kind: WaitKind
    name: str
    """What is waited for: whoever runs the body again finds the wait by it."""
    occurrence: int = 0
    prompt: str = ""
    answers: Answers = Answers(schema={})
    signal: str = ""
    limit: Limit = Limit()
    """How long to wait at most, or to sleep."""


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """What has come of a wait."""

    value: Encoded | None = None
    is_over: bool = False
    """The time was over before anything came."""


def question(prompt: str, schema: Any, choices: Sequence[Any] | None, default: Any, deadline: Moment | None) -> WaitFor:
    """Return what stands for a question. Raises ValueError if it cannot be asked."""
    fitting = answers(schema, choices, default, deadline)
    told = msgspec.json.encode([text(prompt, "what is asked"), fitting.schema, fitting.choices], order="deterministic")
    return WaitFor(
        kind=WaitKind.ASK,
        name=f"ask {hashlib.sha256(told).hexdigest()[:16]}",
        prompt=prompt,
        answers=fitting,
        limit=limit(deadline, "the deadline"),
    )


def asked(
    prompt: str,
    schema: dict[str, Any] | None,
    choices: Sequence[Any] | None,
    deadline: float | None,
    default: Sequence[Any] | None,
) -> WaitFor:
    """Return what a node that asks waits for, given its arguments: `default` is a list of one, because None may be one."""
    fitting = Answers(schema=schema or {}, choices=tuple(choices or ()), default=default[0] if default else NOT_GIVEN)
    prompt = text(prompt, "what is asked")
    return WaitFor(kind=WaitKind.ASK, name="ask", prompt=prompt, answers=fitting, limit=limit(deadline, "the deadline"))


def slept(
    moment: Moment | None,
    *,
    minutes: float | None = None,
    hours: float | None = None,
    days: float | None = None,
    weeks: float | None = None,
) -> WaitFor:
    """Return what stands for a time of sleep: until a point in time, or for the sum of what is given."""
    if any(part is not None for part in (minutes, hours, days, weeks)):
        if isinstance(moment, datetime):
            raise ValueError("a point in time takes no minutes, hours, days or weeks beside it")
        beside = timedelta(minutes=minutes or 0, hours=hours or 0, days=days or 0, weeks=weeks or 0)
        moment = beside + (moment if isinstance(moment, timedelta) else timedelta(seconds=moment or 0))
    if moment is None:
        raise ValueError("say how long to sleep: ctx.sleep(days=3), or until when")
    return WaitFor(kind=WaitKind.SLEEP, name="sleep", limit=limit(moment, "how long to sleep"))


def signal_named(name: str, timeout: Moment | None) -> WaitFor:
    """Return what stands for waiting for a signal."""
    if not text(name, "the name of a signal"):
        raise ValueError("a signal needs a name")
    return WaitFor(kind=WaitKind.SIGNAL, name=f"signal {name}", signal=name, limit=limit(timeout, "the timeout"))


def suspension(reason: str) -> WaitFor:
    """Return what stands for a body that stops until it is told to go on."""
    return WaitFor(kind=WaitKind.SUSPEND, name=f"suspend {text(reason, 'the reason')}", prompt=reason)
