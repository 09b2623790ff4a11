"""Doing something to a coroutine wherever it can be disturbed: at its first suspension, at its second, and so on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Disturbed(Generic[T]):
    """Awaits a coroutine, and calls `disturb` when it has suspended for the `at`-th time.

    `suspensions` says how often it did. With an `at` beyond that, nothing is disturbed.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, at: int, disturb: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._at = at
        self._disturb = disturb
        self.suspensions = 0

    @property
    def has_happened(self) -> bool:
        return self.suspensions >= self._at

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                awaited = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return cast("T", end.value)
            self.suspensions += 1
            if self.suspensions == self._at:
                # Not before the suspension is complete: a task that cancels itself is cancelled at its next one.
                asyncio.get_running_loop().call_soon(self._disturb)
            sent = thrown = None
            try:
                sent = yield awaited
            except BaseException as error:  # whatever the loop throws in belongs to the coroutine
                thrown = error


async def disturbed_at(at: int, coroutine: Coroutine[Any, Any, T], disturb: Callable[[], object]) -> bool:
    """Run a coroutine to its end, with `disturb` called at its `at`-th suspension. Return whether it came to that.

    What the coroutine raises is raised here.
    """
    awaiting = Disturbed(coroutine, at=at, disturb=disturb)
    await awaiting
    return awaiting.has_happened


async def cancelled_at(at: int, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Run a coroutine in a task of its own and cancel it at its `at`-th suspension. Return whether it came to that.

    What the coroutine raises otherwise is raised here.
    """

    async def run() -> None:
        await awaiting

    awaiting = Disturbed(coroutine, at=at, disturb=lambda: task.cancel())
    task = asyncio.get_running_loop().create_task(run())
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
    return awaiting.has_happened
