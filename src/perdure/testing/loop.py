"""A loop in virtual time: it never waits, but moves its clock on to the next timer when nothing else is left to do.

A test that waits for hours takes milliseconds, and one in which nothing can happen any more fails at once instead of
hanging. With a seed, the loop also shuffles what is ready to run, so that one seed is one interleaving of all tasks:
the same one each time, as long as nothing outside of the loop takes part.

What does take part from outside (a database server) is told to the loop by `outside`: meanwhile no time passes. While a
thread or a process works for the test, which is told by `at_work`, time passes as it really does; and also while a worker on
the loop itself has sockets open, from which something may come.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from perdure.clock import Clock

T = TypeVar("T")

START_MICROS = 1_700_000_000_000_000
"""What virtual wall time begins with."""
BEGIN_SECONDS = 1_000.0
"""What the time of a virtual loop begins with."""
_REAL_WAIT_SECONDS = 1.0
_RESOLUTION_SECONDS = 1e-6
_TIMER_SECONDS = 1e-9
"""How far timers of the same moment lie apart."""
_MOST_MOMENTS = 10_000


class NothingLeft(RuntimeError):
    """Every task waits for another one: without virtual time, this test would hang for ever."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on when it was made, and not on where in memory it is."""

    def __init__(self, coroutine: Any, *, loop: VirtualLoop, **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _NumberedFuture(asyncio.Future[Any]):
    """As `NumberedTask`, for futures."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Worker:
    """Something that works for a test, outside of the loop or on it, and sometimes waits for what the loop brings."""

    def __init__(self, *, is_on_loop: bool = False) -> None:
        self.is_on_loop = is_on_loop
        self.waits = 0
        """For how many things it waits."""

    @contextmanager
    def waiting(self) -> Generator[None]:
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1


_current: ContextVar[Worker | None] = ContextVar("perdure_testing_worker", default=None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time moves only when every task waits. Blocking calls are made on the spot instead of in threads."""

    def __init__(
        self, *, seed: int | None = None, begin_seconds: float = BEGIN_SECONDS, is_patient: bool = False
    ) -> None:
        """`is_patient` lets time pass as it really does while something outside is at work, however long that takes."""
        self.numbers = itertools.count()
        self._now = begin_seconds
        self._outside = 0
        self._is_patient = is_patient
        self._workers: set[Worker] = set()
        self._until_idle: list[asyncio.Future[None]] = []
        self._timers: dict[float, int] = {}
        """How many timers there are, or were, for each moment."""
        self.sockets: set[int] = set()
        """What workers wait for to be read or written."""
        self._shuffle = None if seed is None else random.Random(seed).shuffle
        super().__init__(_Selector(self))
        self._clock_resolution = _RESOLUTION_SECONDS
        self.set_task_factory(_numbered_task)

    def time(self) -> float:
        return self._now

    @contextmanager
    def outside(self) -> Generator[None]:
        """Wait in real time, and let no virtual time pass, while something outside of the loop is at work."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    async def idle(self) -> None:
        """Wait until nothing is ready to run: what came from outside comes then, however fast whoever brings it was."""
        future = self.create_future()
        self._until_idle.append(future)
        await future

    @contextmanager
    def at_work(self, worker: Worker | None = None) -> Generator[None]:
        """Let time pass as it really does while a worker works, whom the loop cannot hurry."""
        worker = Worker() if worker is None else worker
        self._workers.add(worker)
        token = _current.set(worker)
        try:
            yield
        finally:
            _current.reset(token)
            self._workers.discard(worker)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # it belongs to whoever awaits the call, whatever it is
            future.set_exception(error)
        return future

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, **options: Any
    ) -> asyncio.TimerHandle:
        # Sums of the same delays differ in their last digits, and equal ones have no order: what is due in the same microsecond
        # is called in the order in which it was asked for, whenever that is.
        moment = round(when, 6)
        if len(self._timers) > _MOST_MOMENTS:
            self._timers = {kept: number for kept, number in self._timers.items() if kept >= self._now}
        number = self._timers.get(moment, 0)
        self._timers[moment] = number + 1
        return super().call_at(moment + number * _TIMER_SECONDS, callback, *args, **options)

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def wait(self, seconds: float | None, select: Callable[[float], list[Any]]) -> list[Any]:
        """Stand in for the selector's waiting."""
        if seconds is not None and seconds <= 0:
            self._mix()
            return select(0)
        if self._until_idle:
            waiting, self._until_idle = self._until_idle, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            return select(0)
        if (self._is_patient and self._outside) or self._is_worked_for():
            return self._wait_in_earnest(seconds, select)
        # Whatever outside takes longer than this may wait for a timer in here.
        if events := select(_REAL_WAIT_SECONDS if self._outside else 0):
            return events
        if seconds is not None:
            self._now += seconds
        elif not self._outside:
            raise NothingLeft("Nothing is ready, no timer is set, and nothing outside is at work.")
        return []

    def _is_worked_for(self) -> bool:
        return any(not worker.waits and (self.sockets or not worker.is_on_loop) for worker in self._workers)

    def _wait_in_earnest(self, seconds: float | None, select: Callable[[float], list[Any]]) -> list[Any]:
        began = time.monotonic()
        events = select(_REAL_WAIT_SECONDS if seconds is None else seconds)
        passed = time.monotonic() - began
        self._now += passed if seconds is None or events else max(passed, seconds)
        return events

    def _mix(self) -> None:
        if self._shuffle is not None:
            ready: Any = getattr(self, "_ready")  # noqa: B009  # a deque of handles, in every version of asyncio
            handles = list(ready)
            self._shuffle(handles)
            ready.clear()
            ready.extend(handles)


def _numbered_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    return NumberedTask(coroutine, loop=loop, **options)


class _Selector(selectors.BaseSelector):
    """A selector that leaves waiting to the loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._real.register(fileobj, events, data)
        if _current.get() is not None:
            self._loop.sockets.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._real.unregister(fileobj)
        self._loop.sockets.discard(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._loop.wait(timeout, self._real.select)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualClock(Clock):
    """The clock of a virtual loop. `wall_offset_seconds` sets its wall time wrong, as a machine's may be."""

    def __init__(self, *, wall_offset_seconds: float = 0.0) -> None:
        self._wall_offset = wall_offset_seconds

    def now_micros(self) -> int:
        return START_MICROS + round((self.monotonic() + self._wall_offset) * 1_000_000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def host_seconds(self) -> float:
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Run a coroutine to its end in virtual time. With a seed, what is ready runs in an order drawn from it."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed=seed)) as runner:
        return runner.run(main)
