"""From threads into a loop: calls are made in order, and the loop is woken once per batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from perdure.errors import EngineStopped


class Inlet:
    """Carries calls from any thread to one loop.

    Each call is made once, on the loop, in the order in which they came; one that raises is reported to the loop's
    exception handler and disturbs no other. However many calls wait, the loop is woken once for all of them: waking it
    costs more than most calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    @property
    def waiting(self) -> int:
        """How many calls the loop has not taken up."""
        return len(self._calls)

    @property
    def is_open(self) -> bool:
        """Whether the loop is there to take calls."""
        return self.loop.is_running() and not self.loop.is_closed()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop call the function soon. Raises EngineStopped if there is no loop left to do it."""
        self._calls.append((function, args))
        self.wake()

    def leave(self, function: Callable[..., object], *args: Any) -> None:
        """Have the function called with what is called next: the caller sees to it that the loop wakes, or takes."""
        self._calls.append((function, args))

    def wake(self) -> None:
        """Have the loop take up what waits. Raises EngineStopped if there is no loop left to do it."""
        if self._is_woken or not self._calls:
            return
        self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self.take)
        except RuntimeError:
            raise EngineStopped("The engine has stopped, and takes nothing more from this body.") from None

    def take(self) -> None:
        """Call what waits. On the loop only."""
        # Before the first call is taken: one that comes in meanwhile is either taken below or wakes the loop again.
        self._is_woken = False
        for _ in range(len(self._calls)):
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception as error:  # whatever is called must not keep the rest of the batch from being called
                problem = {"message": f"{function!r} failed when called from another thread", "exception": error}
                self.loop.call_exception_handler(problem)
