"""Threads that run what would block the loop.

Threads live long and take their work from one queue. A thread that is awake takes what is there, one piece after the other,
so that many short functions cost one wake and not one each; more threads are woken only while those that are awake are
held up inside functions (`_look_after`). What they return is gathered, and the loop is woken once for all that has gathered.

A call that is cancelled returns at once; a thread that is inside a function cannot be stopped, so it counts as *lost* until
the function returns. While at most as many as the pool's size are lost, each is replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from perdure.dispatch.failure import contained
from perdure.dispatch.inlet import Inlet
from perdure.errors import EngineStopped

T = TypeVar("T")

LOOK_SECONDS: Final = 0.001
"""How often to look whether threads are held up, while work waits for them."""
CROWDED_LOOK_SECONDS: Final = 0.005
"""The same while no more threads can be had."""
GROWTH: Final = 3
"""For each thread that is held up, so many more are woken at a time."""

_log = logging.getLogger(__name__)


class ThreadPool:
    """Runs functions in at most `size` threads, and in as many again while threads are lost.

    It belongs to the loop of its inlet, and is used only there.
    """

    def __init__(self, size: int, inlet: Inlet, *, close_seconds: float = 5.0) -> None:
        self._inlet = inlet
        self._size = size
        self._close_seconds = close_seconds
        self._lock = threading.Lock()
        """Held to add or take work, to fall asleep and to wake: no work waits while the only thread falls asleep."""
        self._pending: deque[_Work[Any]] = deque()
        self._asleep: list[_Server] = []
        """The one that fell asleep last is woken first: it is the one that the machine remembers best."""
        self._retiring = 0
        """How many threads are to end themselves."""
        self._leaving = 0
        """How many have begun to, but are still among the servers."""
        self._works: set[_Work[Any]] = set()
        """Everything that was given to the pool and has not ended."""
        self._servers: set[_Server] = set()
        self._lost = 0
        self._vacating: deque[Callable[[], None]] = deque()
        self._looked_at = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._is_refused = False
        """Whether the system had no thread to give when it was last asked."""
        self._is_closed = False
        self._all_left = asyncio.Event()

    @property
    def lost(self) -> int:
        """How many threads are inside functions that nobody waits for any more."""
        return self._lost

    async def run(
        self,
        function: Callable[[], T],
        *,
        on_begin: Callable[[], None] | None = None,
        on_abandon: Callable[[], None] | None = None,
        on_late: Callable[[Exception | None], None] | None = None,
    ) -> T:
        """Return what the function returns, or raise what it raises (see `contained`), with the caller's contextvars.

        Cancelling this call raises CancelledError at once and calls `on_abandon`. A function that has not begun then
        never begins; one that has goes on by itself, and `on_late` is called at its end with what it raised. `on_begin` is
        called when it has begun. All of these are called on the loop.
        """
        work = self._submit(_Work(function, self._inlet.loop, on_begin, on_abandon, on_late))
        try:
            return await work.future
        except asyncio.CancelledError:
            self._abandon(work)
            raise
        finally:
            del work  # else an error would hold itself, through this frame

    async def run_to_end(self, function: Callable[[], T]) -> T:
        """Like `run`, but a cancellation waits until the function has returned. A second one does not."""
        work = self._submit(_Work(function, self._inlet.loop))
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

    @property
    def has_place(self) -> bool:
        """Whether there is a thread for one more function when one has ended: not too many are lost."""
        return len(self._vacating) >= self._lost - self._size

    def vacate(self, release: Callable[[], None]) -> None:
        """Call `release` once a thread can be had for one more function: at once, unless too many are lost."""
        self._vacating.append(release)
        self._let_in()

    async def close(self) -> None:
        """Let every thread go, and wait a while for those that are inside a function."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        for work in tuple(self._works):
            self._abandon(work)
            if not work.future.done():
                work.future.set_exception(EngineStopped("The engine has stopped before this body has ended."))
        with self._lock:
            self._pending.clear()
            self._retiring = len(self._servers) - self._leaving
            self._wake(len(self._asleep))
        self._all_left.clear()
        try:
            async with asyncio.timeout(self._close_seconds):
                while self._servers:
                    await self._all_left.wait()
        except TimeoutError:
            _log.warning("threads_left_behind", extra={"threads": len(self._servers)})

    # On the loop

    def _submit(self, work: _Work[T]) -> _Work[T]:
        if self._is_closed:
            raise EngineStopped("The engine has stopped, and starts no more bodies.")
        self._works.add(work)
        with self._lock:
            self._pending.append(work)
            is_served = len(self._servers) - self._leaving - len(self._asleep) > self._lost
        if is_served or not self._rouse(1):
            self._look_later()
        return work

    def _abandon(self, work: _Work[Any]) -> None:
        if work.is_abandoned or work not in self._works:
            return
        with self._lock:
            work.is_abandoned = True
        if work.is_started:
            work.is_lost = True
            self._lost += 1
            if self._lost > self._size:
                _log.error("too_many_threads_lost", extra={"lost": self._lost, "threads": self._size})
        else:
            self._works.discard(work)
        if work.on_abandon is not None:
            work.on_abandon()

    def _look_later(self) -> None:
        if self._looking is None:
            now = self._looked_at = time.perf_counter()
            for server in self._servers:
                server.mark(now)
            has_more = bool(self._asleep) or (self._room() > 0 and not self._is_refused)
            delay = LOOK_SECONDS if has_more else CROWDED_LOOK_SECONDS
            self._looking = self._inlet.loop.call_later(delay, self._look_after)

    def _look_after(self) -> None:
        """Take what has ended meanwhile, and wake more threads if work waits because those awake are held up.

        Only the time that they spend inside functions counts: a thread that waits for the interpreter would only wait
        in company if more were woken.
        """
        self._looking = None
        self._inlet.take()
        if not self._pending or self._is_closed:
            return
        now = time.perf_counter()
        passed = now - self._looked_at
        with self._lock:
            awake = self._servers.difference(self._asleep)
            useful = len(awake) - self._leaving - self._lost
            waiting = len(self._pending)
        # Those that are lost are inside functions all the time.
        spent = sum(min(server.spent(now), passed) for server in awake) - self._lost * passed
        if 2 * spent >= useful * passed:
            self._rouse(min(waiting, max(1, GROWTH * useful)))
        self._look_later()

    def _rouse(self, most: int) -> int:
        """Wake or start up to `most` threads, as far as they can be had, and return how many."""
        with self._lock:
            woken = self._wake(most)
        wanted = max(0, min(most - woken, self._room()))
        return woken + sum(self._start_thread() for _ in range(wanted))

    def _wake(self, most: int) -> int:
        """Wake up to `most` threads and return how many. The lock is held."""
        count = min(most, len(self._asleep))
        for _ in range(count):
            self._asleep.pop().bell.release()
        return count

    def _room(self) -> int:
        """How many more threads there may be."""
        return self._size + min(self._lost, self._size) - len(self._servers) + self._leaving

    def _start_thread(self) -> bool:
        server = _Server()
        try:
            threading.Thread(target=self._serve, args=(server,), name="perdure body", daemon=True).start()
        except RuntimeError as error:  # the system has no more: those that there are go on, and it is asked again
            if not self._is_refused:
                _log.error("thread_refused", extra={"threads": len(self._servers), "error": str(error)})
            self._is_refused = True
            return False
        self._servers.add(server)
        self._is_refused = False
        return True

    def _end(self, work: _Work[T], result: T, error: Exception | None) -> None:
        self._works.discard(work)
        if work.is_lost:
            self._lost -= 1
            self._let_in()
            self._retire()
            if work.on_late is not None:
                work.on_late(error)
        elif work.future.done():
            return
        elif error is not None:
            work.future.set_exception(error)
        else:
            work.future.set_result(result)

    def _let_in(self) -> None:
        while len(self._vacating) > max(0, self._lost - self._size):
            self._vacating.popleft()()

    def _retire(self) -> None:
        """Let a thread go that stood in for one that is no longer lost."""
        with self._lock:
            if self._room() + self._retiring < 0:
                self._retiring += 1
                self._wake(1)

    def _left(self, server: _Server) -> None:
        with self._lock:
            self._servers.discard(server)
            self._leaving -= 1
        if not self._servers:
            self._all_left.set()

    # In the threads

    def _serve(self, server: _Server) -> None:
        """What a thread does all its life."""
        try:
            while (work := self._next(server)) is not None:
                if work.on_begin is not None:
                    self._inlet.call(work.on_begin)
                server.began = time.perf_counter()
                result, error = _outcome(work.context, work.function)
                tell = self._inlet.call if server.end() > LOOK_SECONDS else self._inlet.leave
                tell(self._end, work, result, error)
                # Else what the work holds would live until the next one comes.
                work = result = error = None
            self._inlet.call(self._left, server)
        except EngineStopped:
            _log.debug("thread_outlived_engine")

    def _next(self, server: _Server) -> _Work[Any] | None:
        """Return the next piece of work, if need be after a sleep; None when the thread is to end."""
        while True:
            with self._lock:
                while self._pending:
                    work = self._pending.popleft()
                    if not work.is_abandoned:
                        work.is_started = True
                        return work
                if self._retiring:
                    self._retiring -= 1
                    self._leaving += 1
                    return None
                self._asleep.append(server)
            # What was left for the loop is to be heard of now: else it is when the loop looks after those who work.
            self._inlet.wake()
            server.bell.acquire()


class _Server:
    """A thread of the pool: what wakes it, and how long it was inside functions."""

    __slots__ = ("_marked", "_total", "began", "bell")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.began = 0.0
        """When it entered the function that it is inside of; zero outside of any."""
        self._total = 0.0
        self._marked = 0.0

    def end(self) -> float:
        """Note that the function has returned, and return how long it took."""
        took = time.perf_counter() - self.began
        self.began = 0.0
        self._total += took
        return took

    def mark(self, now: float) -> None:
        """Count from here on."""
        self._marked += self.spent(now)

    def spent(self, now: float) -> float:
        """Return how long it was inside functions since `mark`."""
        began = self.began
        return self._total + (now - began if began else 0.0) - self._marked


class _Work(Generic[T]):
    """A function on its way through the pool."""

    __slots__ = (
        "context",
        "function",
        "future",
        "is_abandoned",
        "is_lost",
        "is_started",
        "on_abandon",
        "on_begin",
        "on_late",
    )

    def __init__(
        self,
        function: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        on_begin: Callable[[], None] | None = None,
        on_abandon: Callable[[], None] | None = None,
        on_late: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self.function = function
        self.future: asyncio.Future[T] = loop.create_future()
        self.on_begin = on_begin
        self.on_abandon = on_abandon
        self.on_late = on_late
        self.context = contextvars.copy_context()
        self.is_started = False
        self.is_abandoned = False
        self.is_lost = False


def _outcome(context: contextvars.Context, function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return context.run(function), None
    except BaseException as error:  # the function is user code, and nothing it raises may end the thread
        return None, contained(error)
