"""Waiting inside a body: for an answer, a signal, a time, or to be told to go on.

A wait costs nothing. The body stays in memory for a moment; after that it is ended, and run again when something has come. What
was recorded then returns at once, so that the body gets to where it was: matched by what it waits for and by how often that came
before. Code before a wait repeats, unless it is in `step`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

import msgspec

from perdure.dispatch.attempt import Attempt
from perdure.dispatch.base import Task
from perdure.dispatch.counting import Counting
from perdure.dispatch.places import Place, ThreadPlace
from perdure.dispatch.waits import (
    NOT_GIVEN,
    Came,
    Moment,
    WaitFor,
    asked,
    question,
    signal_named,
    slept,
    suspension,
)
from perdure.graph.constants import from_constant
from perdure.graph.questions import answer_of

T = TypeVar("T")


class _Waits(Attempt):
    """What both colours have in common."""

    def now(self) -> datetime:
        """Return the engine's time, which tests can move."""
        return self._place_of_all.hand(self._services.now)

    def _numbered(self, wanted: WaitFor) -> WaitFor:
        """Count a wait when it is called for, not when it is awaited: the order of the calls is what repeats."""
        return msgspec.structs.replace(wanted, occurrence=self._counting.wait(wanted.name))

    def begin_counting_anew(self) -> None:
        """After a checkpoint, or an input of a trigger that has a cursor: a body that goes on from there counts from there."""
        self._counting.begin_anew()

    def _restore(self, state: Any) -> None:
        """Have a body that was told to go on before it was ended see its state, like one that runs again."""
        if state is not NOT_GIVEN:
            self.__dict__["restored"] = state

    def _answer(self, came: Came, prompt: str, schema: Any, choices: Sequence[Any] | None) -> Any:
        return answer_of(self._value_of(came, f"nobody has answered {prompt!r} in time"), schema, choices)

    def _signalled(self, came: Came, signal: str, schema: Any) -> Any:
        value = self._value_of(came, f"signal {signal!r} has not come in time")
        return value if schema is None else from_constant(value, schema)

    def _value_of(self, came: Came, if_over: str) -> Any:
        if came.is_over:
            raise TimeoutError(if_over)
        return None if came.value is None else self._task.decode(came.value, Any)


class AsyncWaits(_Waits):
    """How an async body waits."""

    def __init__(self, task: Task, place: Place, counting: Counting) -> None:
        super().__init__(task, place, counting)
        self._place = place

    @overload
    def ask(
        self, prompt: str, *, show: Any = ..., deadline: Moment | None = ..., default: str = ...
    ) -> Coroutine[Any, Any, str]: ...

    @overload
    def ask(
        self,
        prompt: str,
        *,
        schema: type[T],
        choices: Sequence[T] | None = ...,
        show: Any = ...,
        deadline: Moment | None = ...,
        default: T = ...,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def ask(
        self, prompt: str, *, choices: Sequence[T], show: Any = ..., deadline: Moment | None = ..., default: T = ...
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def ask(
        self,
        prompt: str,
        *,
        schema: Any,
        choices: Sequence[Any] | None = ...,
        show: Any = ...,
        deadline: Moment | None = ...,
        default: Any = ...,
    ) -> Coroutine[Any, Any, Any]: ...

    def ask(
        self,
        prompt: str,
        *,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        show: Any = NOT_GIVEN,
        deadline: Moment | None = None,
        default: Any = NOT_GIVEN,
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person, and return the answer: a text, or what `schema` says, or one of the `choices`. However long it takes.

        After the `deadline`, the answer is the `default`; without one, TimeoutError is raised.
        """
        wanted = self._numbered(question(prompt, schema, choices, default, deadline))
        return self._ask(wanted, show, schema, choices)

    async def asked(
        self,
        prompt: str,
        schema: dict[str, Any] | None,
        choices: Sequence[Any] | None,
        deadline: float | None,
        default: Sequence[Any] | None,
        show: Any,
    ) -> Any:
        """Ask as the `ask` node does, and return the answer in its JSON form."""
        wanted = self._numbered(asked(prompt, schema, choices, deadline, default))
        came = await self._place.ask(self._services.outcome, wanted, show)
        return self._value_of(came, f"nobody has answered {prompt!r} in time")

    async def _ask(self, wanted: WaitFor, show: Any, schema: Any, choices: Sequence[Any] | None) -> Any:
        came = await self._place.ask(self._services.outcome, wanted, show)
        return self._answer(came, wanted.prompt, schema, choices)

    def sleep(
        self,
        seconds: Moment | None = None,
        *,
        minutes: float | None = None,
        hours: float | None = None,
        days: float | None = None,
        weeks: float | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Return when the time is over, or at a `datetime`."""
        return self._sleep(self._numbered(slept(seconds, minutes=minutes, hours=hours, days=days, weeks=weeks)))

    async def _sleep(self, wanted: WaitFor) -> None:
        await self._place.ask(self._services.outcome, wanted)

    @overload
    def wait_for(self, signal: str, *, schema: type[T], timeout: Moment | None = ...) -> Coroutine[Any, Any, T]: ...

    @overload
    def wait_for(self, signal: str, *, schema: Any = ..., timeout: Moment | None = ...) -> Coroutine[Any, Any, Any]: ...

    def wait_for(self, signal: str, *, schema: Any = None, timeout: Moment | None = None) -> Coroutine[Any, Any, Any]:
        """Return the value of the next signal of this name, also if it came before. Raises TimeoutError if none comes in time."""
        return self._wait_for(self._numbered(signal_named(signal, timeout)), schema)

    async def _wait_for(self, wanted: WaitFor, schema: Any) -> Any:
        return self._signalled(await self._place.ask(self._services.outcome, wanted), wanted.signal, schema)

    def suspend(self, reason: str = "", state: Any = NOT_GIVEN) -> Coroutine[Any, Any, Any]:
        """Stop here until somebody calls `run.resume(node, value)`, and return that value. The state is `restored` then."""
        return self._suspend(self._numbered(suspension(reason)), state)

    async def _suspend(self, wanted: WaitFor, state: Any) -> Any:
        came = await self._place.ask(self._services.outcome, wanted, state)
        self._restore(state)
        return self._value_of(came, "")


class SyncWaits(_Waits):
    """How a body waits that is not async. When it is ended while it waits, AttemptOver is raised where it does."""

    def __init__(self, task: Task, place: ThreadPlace, counting: Counting) -> None:
        super().__init__(task, place, counting)
        self._place = place

    @overload
    def ask(self, prompt: str, *, show: Any = ..., deadline: Moment | None = ..., default: str = ...) -> str: ...

    @overload
    def ask(
        self,
        prompt: str,
        *,
        schema: type[T],
        choices: Sequence[T] | None = ...,
        show: Any = ...,
        deadline: Moment | None = ...,
        default: T = ...,
    ) -> T: ...

    @overload
    def ask(
        self, prompt: str, *, choices: Sequence[T], show: Any = ..., deadline: Moment | None = ..., default: T = ...
    ) -> T: ...

    @overload
    def ask(
        self,
        prompt: str,
        *,
        schema: Any,
        choices: Sequence[Any] | None = ...,
        show: Any = ...,
        deadline: Moment | None = ...,
        default: Any = ...,
    ) -> Any: ...

    def ask(
        self,
        prompt: str,
        *,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        show: Any = NOT_GIVEN,
        deadline: Moment | None = None,
        default: Any = NOT_GIVEN,
    ) -> Any:
        """Ask a person, and return the answer: a text, or what `schema` says, or one of the `choices`. However long it takes.

        After the `deadline`, the answer is the `default`; without one, TimeoutError is raised.
        """
        wanted = self._numbered(question(prompt, schema, choices, default, deadline))
        return self._answer(self._place.wait(self._services.outcome, wanted, show), prompt, schema, choices)

    def sleep(
        self,
        seconds: Moment | None = None,
        *,
        minutes: float | None = None,
        hours: float | None = None,
        days: float | None = None,
        weeks: float | None = None,
    ) -> None:
        """Return when the time is over, or at a `datetime`."""
        wanted = slept(seconds, minutes=minutes, hours=hours, days=days, weeks=weeks)
        self._place.wait(self._services.outcome, self._numbered(wanted))

    @overload
    def wait_for(self, signal: str, *, schema: type[T], timeout: Moment | None = ...) -> T: ...

    @overload
    def wait_for(self, signal: str, *, schema: Any = ..., timeout: Moment | None = ...) -> Any: ...

    def wait_for(self, signal: str, *, schema: Any = None, timeout: Moment | None = None) -> Any:
        """Return the value of the next signal of this name, also if it came before. Raises TimeoutError if none comes in time."""
        wanted = self._numbered(signal_named(signal, timeout))
        return self._signalled(self._place.wait(self._services.outcome, wanted), signal, schema)

    def suspend(self, reason: str = "", state: Any = NOT_GIVEN) -> Any:
        """Stop here until somebody calls `run.resume(node, value)`, and return that value. The state is `restored` then."""
        came = self._place.wait(self._services.outcome, self._numbered(suspension(reason)), state)
        self._restore(state)
        return self._value_of(came, "")
