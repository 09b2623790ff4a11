"""Places: where a body runs, and how it reaches its services and calls functions of the other colour from there.

A body runs on the engine's loop (`LoopPlace`) or in a thread beside a loop (`ThreadPlace`): one of the engine's threads,
or the main thread of a child process. Services are always called on the loop to which they belong.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from perdure.dispatch.base import AttemptInfo, Outlet
from perdure.dispatch.failure import contained
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.outlets import Belt, offer_each
from perdure.dispatch.threads import ThreadPool
from perdure.errors import AttemptOver, EngineStopped

T = TypeVar("T")

MAX_TOLD = 1_000
"""How many calls of `tell` may wait for the loop before the next one waits too."""
LOOP_CHECK_SECONDS = 1.0
"""How often a thread that waits for the loop makes sure that there still is one."""

_making_places = threading.Lock()


class Place(Protocol):
    """Where a body runs."""

    @property
    def is_over(self) -> bool:
        """Whether the attempt was cancelled or has ended."""
        ...

    def beside(self) -> ThreadPlace:
        """Return the place of those parts of the body that are not async."""
        ...

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        """Have a service called, without waiting for it. From any thread, like `hand`."""
        ...

    def hand(self, function: Callable[..., T], *args: Any) -> T:
        """Call a service that does not wait. Raises AttemptOver if the attempt is over."""
        ...

    async def ask(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a service that waits. Raises AttemptOver if the attempt is over, or ends meanwhile."""
        ...

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Like `ask`, but block meanwhile. Raises TypeError where that would block the loop for which it waits."""
        ...

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of either colour for the body, without blocking the loop on which the body runs."""
        ...

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a part of the body itself. When this returns or raises, that part has ended.

        Raises CancelledError instead if the attempt is over.
        """
        ...

    async def emit(self, items: Any, outlet: Outlet) -> None:
        """Offer every item of a generator: the rest of a part of the body, so that the same holds as for `invoke`."""
        ...

    async def conclude(self, function: Callable[..., Any], *args: Any) -> None:
        """Call the last part of the body, which is called also when the attempt is over."""
        ...


class LoopPlace:
    """On the engine's loop, in the task of whoever executes the body. What would block goes to a thread."""

    __slots__ = ("_beside", "_info", "_inlet", "_loop_thread", "_task", "_threads", "is_over")

    def __init__(
        self, info: AttemptInfo, task: asyncio.Task[Any] | None, inlet: Inlet, threads: Callable[[], ThreadPool]
    ) -> None:
        self._info = info
        self._task = task
        self._inlet = inlet
        self._threads = threads
        self._loop_thread = threading.get_ident()
        self._beside: ThreadPlace | None = None
        self.is_over = False

    def end(self) -> None:
        """Tell whatever is left of the body that the attempt is over."""
        # In this order, as `beside` does the reverse: at least one side sees what the other has done.
        self.is_over = True
        if self._beside is not None:
            self._beside.end()

    def pass_to(self, task: asyncio.Task[Any] | None) -> None:
        """Have what is left of the body belong to another task."""
        self._task = task

    def beside(self) -> ThreadPlace:
        # Few bodies need one, and it may be a thread of the body's own that asks.
        with _making_places:
            if self._beside is None:
                self._beside = ThreadPlace(self._info, self._inlet)
                if self.is_over:
                    self._beside.end()
            return self._beside

    # A body may hand its context on to threads, and to loops in them.

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        if threading.get_ident() != self._loop_thread:
            return self.beside().tell(function, *args)
        function(*args)
        return None

    def hand(self, function: Callable[..., T], *args: Any) -> T:
        if threading.get_ident() != self._loop_thread:
            return self.beside().hand(function, *args)
        refuse_if_over(self.is_over, self._info)
        return function(*args)

    async def ask(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        if threading.get_ident() != self._loop_thread:
            return await self.beside().ask(function, *args)
        refuse_if_over(self.is_over, self._info)
        return await function(*args)

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        if threading.get_ident() == self._loop_thread:
            raise TypeError("In an async body a stream is read with `async for`: `for` would block everything else.")
        return self.beside().wait(function, *args)

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._loop_thread:
            return await self.beside().call(function, *args, **kwargs)
        bound = functools.partial(function, *args, **kwargs)
        result = bound() if is_async(function) else await self._threads().run(bound)
        return await result if inspect.isawaitable(result) else result

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_over:
            raise asyncio.CancelledError
        try:
            return await (
                function(*args, **kwargs) if is_async(function) else self._blocking(function, *args, **kwargs)
            )
        except asyncio.CancelledError:
            self.end()
            raise
        except GeneratorExit as error:
            if is_being_closed(error, self._task):
                raise
            raise contained(error) from error

    async def emit(self, items: Any, outlet: Outlet) -> None:
        await self.invoke(offer_each, aiter(items), outlet)

    async def conclude(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            await (function(*args) if is_async(function) else self._blocking(function, *args))
        except GeneratorExit as error:
            if is_being_closed(error, self._task):
                raise
            raise contained(error) from error

    async def _blocking(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = await self._threads().run_to_end(functools.partial(function, *args, **kwargs))
        return await result if inspect.isawaitable(result) else result


class ThreadPlace:
    """In a thread, beside the loop to which the services belong. What is async runs on a loop of the thread's own.

    Everything but `end` and `settle` is called by the body, from its thread or from threads that it has started.
    """

    __slots__ = ("_asked", "_belt", "_info", "_inlet", "_runner", "_running", "is_over")

    def __init__(self, info: AttemptInfo, inlet: Inlet) -> None:
        self._info = info
        self._inlet = inlet
        self._asked: set[concurrent.futures.Future[Any]] = set()
        self._belt: Belt | None = None
        self._runner: asyncio.Runner | None = None
        self._running: asyncio.Task[Any] | None = None
        self.is_over = False

    def end(self) -> None:
        """Tell the body that the attempt is over: what waits raises AttemptOver, what is async is cancelled."""
        self.is_over = True
        for asked in tuple(self._asked):
            asked.cancel()
        running = self._running
        if running is not None:
            _cancel_from_outside(running)

    def beside(self) -> ThreadPlace:
        return self

    def close(self) -> None:
        """Let the thread's own loop go. Called by the thread when the body has ended."""
        if self._runner is not None:
            self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the body on the thread's own loop."""
        if self._runner is None:
            # Not the current loop of this thread, which may not be the last to run it, and has other bodies to run.
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(self._cancellable(coroutine))

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a service and wait for it. Raises AttemptOver if the attempt is over, or ends meanwhile."""
        asked = self._start(function, *args)
        try:
            return self._answer(asked)
        finally:
            self._asked.discard(asked)

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        self._inlet.call(function, *args)
        if self._inlet.waiting > MAX_TOLD and not self.is_over:
            self.hand(_nothing)

    def hand(self, function: Callable[..., T], *args: Any) -> T:
        return self.wait(functools.partial(_as_awaitable, function), *args)

    async def ask(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        asked = self._start(function, *args)
        answer = asyncio.wrap_future(asked)
        try:
            while not answer.done():
                await asyncio.wait((answer,), timeout=LOOP_CHECK_SECONDS)
                self._refuse_if_stopped(asked)
            if answer.cancelled():
                raise self._unanswered()
            return answer.result()
        finally:
            self._asked.discard(asked)
            answer.cancel()

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(function, *args, **kwargs)
        result = bound() if is_async(function) else await asyncio.to_thread(bound)
        return await result if inspect.isawaitable(result) else result

    def call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of either colour from a body that is not async."""
        result = function(*args, **kwargs)
        return self.run(_outcome(result)) if inspect.isawaitable(result) else result

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_over:
            raise asyncio.CancelledError
        return await self._part(function, *args, **kwargs)

    async def emit(self, items: Any, outlet: Outlet) -> None:
        self._belt = Belt(outlet, self, self._inlet)
        await self.invoke(self._belt.carry, iter(items))

    def settle(self) -> None:
        """Raise what became of the last items, if they were not welcome. On the loop, when the body has ended."""
        if self._belt is not None:
            self._belt.settle()

    async def conclude(self, function: Callable[..., Any], *args: Any) -> None:
        await self._part(function, *args)

    async def _part(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running = self._running
        try:
            # A body that is not async runs outside of any loop, so that it may start its own.
            if running is None:
                return self.call_here(function, *args, **kwargs)
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except GeneratorExit as error:
            if running is not None and is_being_closed(error, running):
                raise
            raise contained(error) from error

    async def _cancellable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._running = asyncio.current_task()
        try:
            return await coroutine
        finally:
            self._running = None

    def _start(self, function: Callable[..., Awaitable[T]], *args: Any) -> concurrent.futures.Future[T]:
        refuse_if_over(self.is_over, self._info)
        service = _call(function, *args)
        try:
            asked = asyncio.run_coroutine_threadsafe(service, self._inlet.loop)
        except RuntimeError:
            service.close()
            raise _stopped() from None
        self._asked.add(asked)
        # The attempt may have ended since it was looked at, and `end` may have missed this one.
        if self.is_over:
            asked.cancel()
        return asked

    def _answer(self, asked: concurrent.futures.Future[T]) -> T:
        while True:
            try:
                return asked.result(timeout=LOOP_CHECK_SECONDS)
            except concurrent.futures.CancelledError:
                raise self._unanswered() from None
            except TimeoutError:
                if asked.done():  # it was the service that raised, or the answer has come just after
                    return asked.result()
                self._refuse_if_stopped(asked)

    def _refuse_if_stopped(self, asked: concurrent.futures.Future[Any]) -> None:
        if not asked.done() and not self._inlet.is_open:
            raise _stopped()

    def _unanswered(self) -> AttemptOver | EngineStopped:
        return AttemptOver(self._info.node_id, self._info.attempt) if self.is_over else _stopped()


async def contain(begin: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Call what brings a body to life. Nothing that a body raises ends more than its attempt."""
    caller: Any = asyncio.current_task()
    cancelled_before = caller.cancelling()
    try:
        return await begin(*args)
    except BaseException as error:  # a body may raise anything
        is_cancelled = isinstance(error, asyncio.CancelledError) and caller.cancelling() > cancelled_before
        if is_cancelled or (told := contained(error)) is error or is_being_closed(error, caller):
            raise
        raise told from error


def refuse_if_over(is_over: bool, info: AttemptInfo) -> None:
    """Raise AttemptOver for an attempt that is."""
    if is_over:
        raise AttemptOver(info.node_id, info.attempt)


def is_being_closed(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error tells the coroutines of a task that they end, as they do with their loop: no body has raised it."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no loop is running
        return True


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function certainly gives something to await, and does nothing else."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(without_partial(function))


def without_partial(function: Any) -> Any:
    """Return the function to which `functools.partial` has given arguments."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _cancel_from_outside(running: asyncio.Task[Any]) -> None:
    try:
        running.get_loop().call_soon_threadsafe(running.cancel)
    except RuntimeError:  # its loop has been closed: it has ended
        return


async def _call(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    return await function(*args)


async def _outcome(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _as_awaitable(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


def _nothing() -> None:
    """What is called only to wait until it is."""


def _stopped() -> EngineStopped:
    return EngineStopped("The engine has stopped, and no longer answers this body.")
