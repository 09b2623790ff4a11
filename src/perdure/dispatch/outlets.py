"""The way of a generator's items to their outlet, from the loop and from threads, and how generators are closed.

On the loop each item is offered as it is yielded. In a thread items gather while the loop has not looked, and are offered
together: neither side waits for the other until MAX_AHEAD of them have gathered, or the outlet has no room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from perdure.dispatch.base import MAX_AHEAD, Outlet
from perdure.dispatch.inlet import Inlet

T = TypeVar("T")

ITEMS_PER_TURN: Final = 64
"""After so many items a generator on the loop lets others have their turn, and sooner if it takes TURN_SECONDS."""
TURN_SECONDS: Final = 0.002
CLOSE_TRIES: Final = 3
"""How often a generator is told to end that yields when it is told to."""


async def offer_each(items: AsyncIterator[Any], outlet: Outlet) -> None:
    """Offer each item of a generator on the loop, and close it if it does not come to its end.

    Cancelling this closes the generator. One that goes on after it was cancelled yields in vain.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    turn, turn_ends = ITEMS_PER_TURN, loop.time() + TURN_SECONDS
    try:
        async for value in items:
            if task.cancelling() > cancelled_before:
                raise asyncio.CancelledError
            if not outlet.offer((outlet.pack(value),)):
                await outlet.room()
            turn -= 1
            if turn == 0 or loop.time() > turn_ends:
                await asyncio.sleep(0)
                turn, turn_ends = ITEMS_PER_TURN, loop.time() + TURN_SECONDS
    except GeneratorExit:  # the generator has raised it and is over, or the program ends and nothing can be awaited
        raise
    except BaseException as error:  # whatever it was, the generator is closed
        await _aclose_after(error, items)
        raise


class Attempt(Protocol):
    """What items in a thread belong to: the place of the body."""

    is_over: bool

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a function on the loop and wait for it. Raises AttemptOver if the attempt is over, or ends meanwhile."""
        ...


class Belt:
    """Carries the items of one generator from its thread to the loop."""

    def __init__(self, outlet: Outlet, attempt: Attempt, inlet: Inlet) -> None:
        self._outlet = outlet
        self._attempt = attempt
        self._inlet = inlet
        self._gathered: list[Any] = []
        """Added to in the thread, and taken from its beginning on the loop: each in one step that nothing can divide."""
        self._is_told = False
        """Whether the loop is about to take what has gathered."""
        self._is_held = False
        """Whether the generator is to wait before it yields more."""
        self._error: Exception | None = None

    def carry(self, items: Iterator[Any]) -> None:
        """Offer each item of a generator, and close it if it does not come to its end. In the thread.

        When this returns or raises, the loop is about to take what it has not taken: before any later call of the inlet.
        """
        attempt, gathered, pack = self._attempt, self._gathered, self._outlet.pack
        try:
            for value in items:
                gathered.append(pack(value))
                if not self._is_told:
                    self._is_told = True
                    self._inlet.call(self._take)
                if self._is_held or attempt.is_over or len(gathered) >= MAX_AHEAD:
                    attempt.wait(self._caught_up)
        except BaseException as error:  # whatever it was, the generator is closed
            _close_after(error, items)
            raise

    def settle(self) -> None:
        """Raise what the outlet has raised when the thread did not look any more. On the loop."""
        if self._error is not None:
            raise self._error

    async def _caught_up(self) -> None:
        """Return when the loop has taken all that has gathered and there is room for more. On the loop."""
        self._take()
        self.settle()
        if self._is_held:
            await self._outlet.room()
            self._is_held = False

    def _take(self) -> None:
        # Before anything is taken: an item that comes in meanwhile is either taken below or tells the loop again.
        self._is_told = False
        count = len(self._gathered)
        if not count or self._attempt.is_over or self._error is not None:
            return
        packed = self._gathered[:count]
        del self._gathered[:count]
        try:
            self._is_held = not self._outlet.offer(packed) or self._is_held
        except Exception as error:  # an outlet refuses items for reasons of its own, and the generator is to hear of it
            self._error = error
            self._is_held = True


async def _aclose_after(error: BaseException, items: Any) -> None:
    """Close an async generator, if it is one, because of an error. What it raises then must not hide why."""
    if not hasattr(items, "aclose"):
        return
    try:
        await items.aclose()
    except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as second:
        _note(error, second)


def _close_after(error: BaseException, items: Any) -> None:
    """Close a generator, if it is one, because of an error. What it raises then must not hide why."""
    if not hasattr(items, "close"):
        return
    for _ in range(CLOSE_TRIES):
        try:
            items.close()
        except BaseException as second:  # it is the body's own code, and may raise anything
            _note(error, second)
        if getattr(items, "gi_frame", None) is None:  # it has ended
            return


def _note(error: BaseException, second: BaseException) -> None:
    error.add_note(f"The generator was closed, and then raised {type(second).__name__}: {second}")
