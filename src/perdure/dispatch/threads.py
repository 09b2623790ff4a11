"""Threads that run what would block the loop.

Threads live long and take their work from one queue. What they return is gathered, and the loop is woken once for all
that has gathered. A call that is cancelled returns at once; a thread that is inside a function cannot be stopped, so it
counts as *lost* until the function returns. While at most as many as the pool's size are lost, each is replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from perdure.dispatch.failure import contained
from perdure.dispatch.inlet import Inlet
from perdure.errors import EngineStopped

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ThreadPool:
    """Runs functions in at most `size` threads, and in as many again while threads are lost.

    It belongs to the loop of its inlet, and is used only there.
    """

    def __init__(self, size: int, inlet: Inlet, *, close_seconds: float = 5.0) -> None:
        self._inlet = inlet
        self._size = size
        self._close_seconds = close_seconds
        self._queue: SimpleQueue[_Work[Any] | None] = SimpleQueue()
        self._works: set[_Work[Any]] = set()
        """Everything that was given to the queue and has not ended."""
        self._threads = 0
        self._retiring = 0
        self._lost = 0
        self._is_closed = False
        self._all_left = asyncio.Event()

    @property
    def lost(self) -> int:
        """How many threads are inside functions that nobody waits for any more."""
        return self._lost

    async def run(self, function: Callable[[], T], *, on_abandon: Callable[[], None] | None = None) -> T:
        """Return what the function returns, or raise what it raises (see `contained`), with the caller's contextvars.

        Cancelling this call raises CancelledError at once and calls `on_abandon`. A function that has not begun then
        never begins; one that has goes on by itself, and what comes of it is dropped.
        """
        work = self._submit(function, on_abandon)
        try:
            return await work.future
        except asyncio.CancelledError:
            self._abandon(work)
            raise
        finally:
            del work  # else an error would hold itself, through this frame

    async def run_to_end(self, function: Callable[[], T]) -> T:
        """Like `run`, but a cancellation waits until the function has returned. A second one does not."""
        work = self._submit(function, None)
        try:
            return await asyncio.shield(work.future)
        except asyncio.CancelledError:
            try:
                await asyncio.wait((work.future,))
                work.future.exception()  # it has been seen
            finally:
                self._abandon(work)
            raise
        finally:
            del work

    async def close(self) -> None:
        """Let every thread go, and wait a while for those that are inside a function."""
        self._is_closed = True
        for work in tuple(self._works):
            self._abandon(work)
            if not work.future.done():
                work.future.set_exception(EngineStopped("The engine has stopped before this body has ended."))
        for _ in range(self._threads - self._retiring):
            self._queue.put(None)
        self._retiring = self._threads
        try:
            async with asyncio.timeout(self._close_seconds):
                while self._threads:
                    await self._all_left.wait()
        except TimeoutError:
            _log.warning("threads_left_behind", extra={"threads": self._threads})

    def _submit(self, function: Callable[[], T], on_abandon: Callable[[], None] | None) -> _Work[T]:
        if self._is_closed:
            raise EngineStopped("The engine has stopped, and starts no more bodies.")
        work = _Work(function, self._inlet.loop.create_future(), on_abandon)
        self._works.add(work)
        self._queue.put(work)
        self._start_threads()
        return work

    def _abandon(self, work: _Work[Any]) -> None:
        if work.is_abandoned or work not in self._works:
            return
        # In this order, as `_serve` does the reverse: at least one side sees what the other has done.
        work.is_abandoned = True
        if work.is_started:
            work.is_lost = True
            self._lost += 1
        if work.on_abandon is not None:
            work.on_abandon()
        if not self._is_closed:
            self._start_threads()

    def _limit(self) -> int:
        return self._size + min(self._lost, self._size)

    def _start_threads(self) -> None:
        while self._threads < len(self._works) and self._threads < self._limit():
            self._threads += 1
            threading.Thread(target=self._serve, name="perdure body", daemon=True).start()

    def _serve(self) -> None:
        """What a thread does all its life."""
        try:
            while (work := self._queue.get()) is not None:
                work.is_started = True
                if work.is_abandoned:
                    self._inlet.call(self._end, work, None, None)
                else:
                    self._inlet.call(self._end, work, *_outcome(work.context, work.function))
                # Else what the work holds would live until the next one comes.
                work = None
            self._inlet.call(self._leave)
        except EngineStopped:
            _log.debug("thread_outlived_engine")

    def _end(self, work: _Work[T], result: T, error: Exception | None) -> None:
        self._works.discard(work)
        if work.is_lost:
            self._lost -= 1
            if self._threads - self._retiring > self._limit():
                self._retiring += 1
                self._queue.put(None)
        if work.is_abandoned or work.future.done():
            if work.is_lost:
                _log.debug("late_result_dropped", extra={"error": repr(error) if error else None})
        elif error is not None:
            work.future.set_exception(error)
        else:
            work.future.set_result(result)

    def _leave(self) -> None:
        self._threads -= 1
        self._retiring -= 1
        if not self._threads:
            self._all_left.set()


class _Work(Generic[T]):
    """A function on its way through the pool."""

    __slots__ = ("context", "function", "future", "is_abandoned", "is_lost", "is_started", "on_abandon")

    def __init__(
        self, function: Callable[[], T], future: asyncio.Future[T], on_abandon: Callable[[], None] | None
    ) -> None:
        self.function = function
        self.future = future
        self.on_abandon = on_abandon
        self.context = contextvars.copy_context()
        self.is_started = False
        self.is_abandoned = False
        self.is_lost = False


def _outcome(context: contextvars.Context, function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return context.run(function), None
    except BaseException as error:  # the function is user code, and nothing it raises may end the thread
        return None, contained(error)
