"""The inside of a child process: takes orders from the engine, runs bodies, and says what came of them.

    main thread    imports node types and runs bodies, one after the other
    line thread    a loop that reads and writes frames, and to which the services belong

A child does not outlive its engine: Linux kills it when the engine's thread ends, and everywhere it ends itself, and all
processes of its group, when the engine hangs up. Signals that are meant for the engine, such as those of a terminal or of a
service manager, do not stop it: what becomes of bodies is for the engine to decide.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import functools
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn, assert_never

import msgspec

from perdure.dispatch.base import Task
from perdure.dispatch.body import live_in_thread
from perdure.dispatch.failure import Failure, failure_of
from perdure.dispatch.frames import (
    READ_AHEAD_BYTES,
    Cancel,
    Close,
    Execute,
    Failed,
    FromChild,
    Line,
    Ready,
    Refusal,
    Reply,
    Returned,
    Started,
    ToChild,
)
from perdure.dispatch.imports import find_node_type
from perdure.dispatch.inlet import Inlet
from perdure.dispatch.places import ThreadPlace
from perdure.dispatch.remote import Questions, RemoteServices, ValueCodec, refused
from perdure.graph.handles import Outputs
from perdure.journal.events import Encoded
from perdure.journal.truth import by_handle, truths_of

_PR_SET_PDEATHSIG = 1


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told on its command line. Anyone on the machine can read it."""

    module: str
    """Its `main` is called with this: it stands above this package and knows the codecs."""
    path: tuple[str, ...]
    line: int
    parent: int
    max_frame_bytes: int


def serve(birth: Birth, codec: ValueCodec) -> None:
    """Execute what the engine orders until it has no more orders."""
    _die_with(birth.parent)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    sys.argv[:] = [birth.module]
    # A handler instead of SIG_IGN, which programs started by bodies would inherit.
    signal.signal(signal.SIGINT, _ignore)
    _Child(birth, codec).serve()


class _Order(msgspec.Struct, frozen=True):
    message: Execute
    values: list[bytes]


class _Child:
    """Runs bodies in the main thread and talks to the engine in another."""

    def __init__(self, birth: Birth, codec: ValueCodec) -> None:
        self._birth = birth
        self._codec = codec
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._is_up = threading.Event()
        self._place: _MainPlace | None = None
        self._line: Line
        self._inlet: Inlet
        self._questions: Questions

    def serve(self) -> None:
        threading.Thread(target=self._hold_line, name="perdure line", daemon=True).start()
        self._is_up.wait()
        while (order := self._orders.get()) is not None:
            self._execute(order)

    # In the main thread

    def _execute(self, order: _Order) -> None:
        info = order.message.info
        services = RemoteServices(info, self._line, self._questions, self._codec)
        place = self._place = _MainPlace(info, self._inlet, self._line)
        # A body may have changed it.
        signal.signal(signal.SIGTERM, self._interrupt)
        try:
            message, values = self._outcome(order, services, place)
        except BaseException as error:  # whatever a body raises is its own failure, and not the child's
            message, values = Failed(failure=_failure_of(error)), []
        self._place = None
        place.end()
        self._conclude(services, message, values)

    def _outcome(
        self, order: _Order, services: RemoteServices, place: _MainPlace
    ) -> tuple[Returned | Failed, list[bytes]]:
        # Sent before the body begins: of one that ends its process at once, the engine must know that it did begin.
        place.hand(self._line.send, Started())
        sys.path[:] = order.message.path
        result: Any = live_in_thread(self._task(order, services), place)
        node_id = order.message.info.node_id
        named = by_handle(result)
        truths = truths_of(named, order.message.looks, node_id)
        handles = tuple(named) if isinstance(result, Outputs) else None
        encode = functools.partial(self._codec.encode, where=f"node {node_id!r}")
        return Returned(handles=handles, truths=truths), [encode(value) for value in named.values()]

    def _task(self, order: _Order, services: RemoteServices) -> Task:
        message = order.message
        encoded = [Encoded(value) for value in order.values]
        count = len(message.arguments)
        restored = encoded.pop() if message.has_restored else None
        return Task(
            node_type=find_node_type(message.node_type, message.source),
            info=msgspec.structs.replace(message.info, restored=restored),
            arguments=dict(zip(message.arguments, encoded[:count], strict=True)),
            properties=dict(zip(message.properties, encoded[count:], strict=True)),
            decode=self._codec.decode,
            services=services,
        )

    def _conclude(self, services: RemoteServices, message: Returned | Failed, values: list[bytes]) -> None:
        """Say what came of the body. Nothing of it is said afterwards."""
        try:
            self._call(self._say_last, services, message, values)
        except Exception as error:  # what it returned is larger than a frame may be
            self._call(self._say_last, services, Failed(failure=_failure_of(error)), [])

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        asyncio.run_coroutine_threadsafe(function(*args), self._inlet.loop).result()

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._place is not None:
            self._place.interrupt()

    # In the line thread

    def _hold_line(self) -> None:
        asyncio.run(self._talk())

    async def _talk(self) -> None:
        try:
            await self._take_frames()
        finally:  # the engine has hung up: at once, whatever else this loop has to do
            _end_everything()

    async def _take_frames(self) -> None:
        connection = socket.socket(fileno=self._birth.line)
        # Programs that bodies start must not keep the line open.
        connection.set_inheritable(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=READ_AHEAD_BYTES)
        self._line = Line(reader, writer, max_frame_bytes=self._birth.max_frame_bytes)
        self._inlet = Inlet(asyncio.get_running_loop())
        self._questions = Questions(self._line)
        self._line.send(Ready())
        self._is_up.set()
        while (frame := await self._line.receive_to_child()) is not None:
            self._take(*frame)

    def _take(self, message: ToChild, values: list[bytes]) -> None:
        match message:
            case Execute():
                self._orders.put(_Order(message, values))
            case Reply(ask=ask):
                self._questions.answer(ask, values)
            case Refusal(ask=ask, failure=failure):
                if self._place is not None:
                    self._questions.refuse(ask, refused(failure, self._place.info))
            case Cancel():
                self._cancel()
            case Close():
                self._orders.put(None)
            case _:
                assert_never(message)

    def _cancel(self) -> None:
        if self._place is not None:
            self._place.end()
            # Wakes the main thread from whatever it waits for; the handler sees that the attempt is over.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    async def _say_last(self, services: RemoteServices, message: FromChild, values: list[bytes]) -> None:
        self._line.send(message, values)
        services.is_closed = True
        await self._line.drain()


class _MainPlace(ThreadPlace):
    """The main thread of a child, where a body that is not async can be interrupted."""

    def __init__(self, info: Any, inlet: Inlet, line: Line) -> None:
        super().__init__(info, inlet)
        self.info = info
        self._line = line
        self._is_interruptible = False

    def interrupt(self) -> None:
        """Raise CancelledError in the body, once, if it runs and the attempt is over."""
        if self.is_over and self._is_interruptible:
            self._is_interruptible = False
            raise asyncio.CancelledError

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        super().tell(function, *args)
        self._ease()

    def hand(self, function: Callable[..., Any], *args: Any) -> Any:
        result = super().hand(function, *args)
        self._ease()
        return result

    async def invoke(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._is_interruptible = self._running is None
        try:
            return await super().invoke(function, *args, **kwargs)
        finally:
            self._is_interruptible = False

    def _ease(self) -> None:
        """Let the body wait if the engine does not keep up with what it says."""
        if self._line.unsent > READ_AHEAD_BYTES and not self.is_over:
            self.wait(self._line.drain)


def _failure_of(error: BaseException) -> Failure:
    try:
        return failure_of(error)
    except MemoryError:
        return Failure(type_names=("MemoryError", "Exception", "BaseException"), message="")


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Do nothing."""


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died before it could be asked to take this process along
        _end_everything()


def _end_everything() -> NoReturn:
    """End this process, without a word, and all that it has started and that has not left its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
