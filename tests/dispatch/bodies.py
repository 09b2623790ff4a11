"""Bodies that the tests of the dispatch execute, on the loop, in threads and in processes."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from perdure.dispatch.context import Context, SyncContext
from perdure.errors import AttemptOver
from perdure.graph.declare import NodeType, node
from perdure.graph.handles import Outputs


@dataclass
class Point:
    x: int
    y: int


class OwnError(Exception):
    """One that cannot be pickled, nor made from its arguments."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.lock = threading.Lock()


class EndOfWorld(BaseException):
    """One that `except Exception` does not stop."""


calls: list[str] = []


@node
def add(a: int, b: int = 2) -> int:
    return a + b


@node
async def add_async(a: int, b: int = 2) -> int:
    await asyncio.sleep(0)
    return a + b


@node
def mirrored(point: Point) -> Point:
    assert isinstance(point, Point)
    return Point(point.y, point.x)


@node
def halves(text: str) -> Outputs:
    middle = len(text) // 2
    return Outputs(left=text[:middle], right=text[middle:])


@node
def echo(value: Any) -> Any:
    return value


@node
def where() -> tuple[int, int, bool]:
    return os.getpid(), threading.get_ident(), threading.current_thread() is threading.main_thread()


@node
def nothing_to_keep() -> Any:
    return lambda: None


# What contexts are asked for


@node
def introduces_itself(ctx: SyncContext) -> dict[str, Any]:
    return _introduced(ctx)


@node
async def introduces_itself_async(ctx: Context) -> dict[str, Any]:
    return _introduced(ctx)


def _introduced(ctx: Context | SyncContext) -> dict[str, Any]:
    return {
        "run_id": ctx.run_id,
        "node_id": ctx.node_id,
        "attempt": ctx.attempt,
        "key": ctx.idempotency_key,
        "restored": ctx.restored,
        "cancelled": ctx.cancelled,
    }


@node
def talks(ctx: SyncContext) -> None:
    _talk(ctx)


@node
async def talks_async(ctx: Context) -> None:
    _talk(ctx)


def _talk(ctx: Context | SyncContext) -> None:
    ctx.log.debug("d")
    ctx.log.info("i", count=1, point=Point(1, 2), odd=object)
    ctx.log.warning("w \ud800 ü")
    ctx.log.error("e")
    ctx.progress(1)
    ctx.progress(2, 4)
    ctx.publish({"part": "ü"})


@node
def talks_without_end(ctx: SyncContext, times: int) -> None:
    for number in range(times):
        ctx.log.info("again", number=number)
        ctx.progress(number, times)


@node
def checkpoints(ctx: SyncContext) -> Any:
    ctx.checkpoint(Point(1, 2))
    ctx.checkpoint([3])
    return ctx.restored


@node
async def checkpoints_async(ctx: Context) -> Any:
    await ctx.checkpoint(Point(1, 2))
    await ctx.checkpoint([3])
    return ctx.restored


def doubled(number: int) -> int:
    calls.append(f"doubled {number}")
    return 2 * number


async def tripled(number: int) -> int:
    calls.append(f"tripled {number}")
    await asyncio.sleep(0)
    return 3 * number


def pointed(x: int, *, y: int) -> Point:
    calls.append("pointed")
    return Point(x, y)


def step_thread() -> int:
    return threading.get_ident()


@node
def steps(ctx: SyncContext) -> list[Any]:
    calls.clear()
    results = [ctx.step(doubled, 1), ctx.step(tripled, 2), ctx.step(doubled, 3), ctx.step(pointed, 1, y=2)]
    return [*results, list(calls)]


@node
async def steps_async(ctx: Context) -> list[Any]:
    calls.clear()
    results = [
        await ctx.step(doubled, 1),
        await ctx.step(tripled, 2),
        await ctx.step(doubled, 3),
        await ctx.step(pointed, 1, y=2),
    ]
    return [*results, list(calls)]


@node
def steps_and_checkpoints(ctx: SyncContext) -> list[int]:
    results = [ctx.step(doubled, 1), ctx.step(doubled, 2)]
    ctx.checkpoint(results)
    return [*results, ctx.step(doubled, 3), ctx.step(tripled, 4)]


@node
async def steps_and_checkpoints_async(ctx: Context) -> list[int]:
    results = [await ctx.step(doubled, 1), await ctx.step(doubled, 2)]
    await ctx.checkpoint(results)
    return [*results, await ctx.step(doubled, 3), await ctx.step(tripled, 4)]


@node
async def steps_awaited_backwards(ctx: Context) -> list[int]:
    first, second = ctx.step(tripled, 1), ctx.step(tripled, 2)
    last: Awaitable[int] = second
    return [await last, await first]


@node
async def step_off_the_loop(ctx: Context) -> bool:
    return await ctx.step(step_thread) != threading.get_ident()


@node
def reads_secret(ctx: SyncContext, name: str) -> list[str]:
    secret = ctx.secret(name)
    return [str(secret), repr(secret), f"{secret}", secret.reveal()]


@node
async def reads_secret_async(ctx: Context, name: str) -> list[str]:
    secret = await ctx.secret(name)
    return [str(secret), repr(secret), f"{secret}", secret.reveal()]


@node
def gives_secret_away(ctx: SyncContext) -> Any:
    return {"token": ctx.secret("token")}


@node
def publishes_nonsense(ctx: SyncContext) -> str:
    try:
        ctx.publish(threading.Lock())
    except Exception as error:
        return type(error).__name__
    return "nothing was raised"


@node
async def talks_from_a_thread(ctx: Context) -> None:
    await asyncio.to_thread(_talk, ctx)


@node
async def uses_a_loop_in_a_thread(ctx: Context) -> list[Any]:
    async def elsewhere() -> list[Any]:
        await ctx.checkpoint("from elsewhere")
        return [await ctx.step(tripled, 1), await ctx.step(doubled, 2)]

    return await asyncio.to_thread(asyncio.run, elsewhere())


@node
def leaves_a_thread_behind(ctx: SyncContext, name: str) -> None:
    def outlive() -> None:
        release[name].wait()
        try:
            ctx.checkpoint("too late")
        except AttemptOver as error:
            released[name] = type(error).__name__
        finally:
            outlived[name].set()

    release[name], outlived[name] = threading.Event(), threading.Event()
    threading.Thread(target=outlive, daemon=True).start()


@node
def asks_in_vain(ctx: SyncContext) -> list[str]:
    seen: list[str] = []
    for ask in (lambda: ctx.checkpoint(1), lambda: ctx.checkpoint(2), lambda: ctx.step(doubled, 1)):
        try:
            ask()
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
    return seen


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@node
def reads_variable() -> str:
    seen = variable.get()
    variable.set("changed by a body")
    return seen


# What goes wrong


@node
def fails(kind: str) -> NoReturn:
    _fail(kind)


@node
async def fails_async(kind: str) -> NoReturn:
    await asyncio.sleep(0)
    _fail(kind)


def _fail(kind: str) -> NoReturn:
    match kind:
        case "value":
            raise ValueError("ünwise \ud800")
        case "own":
            raise OwnError(7, reason="no luck")
        case "nested":
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise RuntimeError("outer") from error
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
        case "system exit":
            sys.exit(3)
        case "keyboard interrupt":
            raise KeyboardInterrupt
        case "base":
            raise EndOfWorld("the end")
        case "cancelled":
            raise asyncio.CancelledError("by itself")
        case "stop":
            raise StopIteration("stopped")
        case "memory":
            raise MemoryError
        case _:
            raise AssertionError(kind)


@node
def crashes(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "abort":
            os.abort()
        case _:
            raise AssertionError(how)


@node
def yields() -> Any:
    return (number for number in range(3))


@node
async def ignores_one_cancellation(ctx: Context) -> str:
    ctx.log.info("begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ctx.log.info("ignored")
    return "done all the same"


@node
async def waits_async(ctx: Context) -> str:
    try:
        ctx.log.info("begun", pid=os.getpid())
        await asyncio.Event().wait()
    finally:
        ctx.log.info("ended")
    return "never"


@node
def waits(ctx: SyncContext) -> None:
    try:
        ctx.log.info("begun", pid=os.getpid())
        threading.Event().wait()
    finally:
        ctx.log.info("ended")


@node
def spins(ctx: SyncContext) -> None:
    try:
        ctx.log.info("begun")
        while True:
            pass
    finally:
        ctx.log.info("ended")


@node
def waits_with_a_helper(ctx: SyncContext) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as helper:
        ctx.log.info("begun", pid=os.getpid(), helper=helper.pid)
        threading.Event().wait()


@node
def will_not_stop(ctx: SyncContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx.log.info("begun", pid=os.getpid())
    while True:
        try:
            threading.Event().wait()
        except BaseException as error:
            ctx.log.info("undeterred", error=type(error).__name__)


@node
def hangs_up(ctx: SyncContext) -> None:
    ctx.publish(os.getpid())
    os.closerange(3, 1_000)
    signal.pause()


_marks: mmap.mmap | None = None


@node(executor="process")
def opens_marks(path: str) -> None:
    """From here on this process writes marks without letting another of its threads have a turn."""
    global _marks
    with open(path, "r+b") as file:
        _marks = mmap.mmap(file.fileno(), 0)
    sys.setswitchinterval(10)


@node(executor="process")
def marks_and_dies(path: str) -> None:
    if _marks is None:
        opens_marks.fn(path)
    assert _marks is not None
    _marks[0] += 1
    os.kill(os.getpid(), signal.SIGKILL)


@node
def forks_and_crashes() -> None:
    if os.fork() == 0:
        signal.pause()
    os.kill(os.getpid(), signal.SIGSEGV)


@node
def listens(ctx: SyncContext) -> str:
    ctx.log.info("begun")
    while not ctx.cancelled:
        pass
    try:
        ctx.checkpoint("too late")
    except AttemptOver as error:
        released["listens"] = str(error)
    return "too late"


@node
def waits_for_a_checkpoint(ctx: SyncContext) -> None:
    try:
        ctx.checkpoint("state")
    except Exception as error:
        released["checkpoint"] = type(error).__name__
        release["checkpoint"].set()
        raise


released: dict[str, str] = {}
release: dict[str, threading.Event] = {"checkpoint": threading.Event()}
outlived: dict[str, threading.Event] = {}


# Classes


@node
class Recording:
    """Logs each part of its life, and fails where it is told to."""

    fail_in: str = ""
    wait_in: str = ""

    def __init__(self) -> None:
        self.parts: list[str] = ["init"]

    def initialize(self, ctx: SyncContext) -> None:
        self._part(ctx, "initialize")

    def pre_process(self, ctx: SyncContext) -> None:
        self._part(ctx, "pre_process")

    def run(self, ctx: SyncContext, word: str) -> list[str]:
        self._part(ctx, "run")
        return [*self.parts, word]

    def finalize(self, ctx: SyncContext) -> None:
        self._part(ctx, "finalize")

    def _part(self, ctx: SyncContext, name: str) -> None:
        self.parts.append(name)
        ctx.log.info(name)
        if self.wait_in == name:
            threading.Event().wait()
        if name in self.fail_in.split(","):
            raise RuntimeError(f"failed in {name}")


@node
class RecordingAsync:
    """The same with every part async."""

    fail_in: str = ""
    wait_in: str = ""

    def __init__(self) -> None:
        self.parts: list[str] = ["init"]

    async def initialize(self, ctx: Context) -> None:
        await self._part(ctx, "initialize")

    async def pre_process(self, ctx: Context) -> None:
        await self._part(ctx, "pre_process")

    async def run(self, ctx: Context, word: str) -> list[str]:
        await self._part(ctx, "run")
        return [*self.parts, word]

    async def finalize(self, ctx: Context) -> None:
        await self._part(ctx, "finalize")

    async def _part(self, ctx: Context, name: str) -> None:
        self.parts.append(name)
        ctx.log.info(name)
        if self.wait_in == name:
            await asyncio.Event().wait()
        if name in self.fail_in.split(","):
            raise RuntimeError(f"failed in {name}")


@node
class Mixed:
    """An async body whose other parts are not, and which count their steps together."""

    def initialize(self, ctx: SyncContext) -> None:
        self.thread = threading.get_ident()
        self.first = ctx.step(doubled, 1)

    async def run(self, ctx: Context) -> list[Any]:
        return [self.thread != threading.get_ident(), self.first, await ctx.step(doubled, 2)]

    def finalize(self) -> None:
        calls.append(f"finalized off the loop: {self.thread != threading.get_ident()}")


@node
class MixedSync:
    """A body that is not async whose other parts are, all of them on one loop."""

    async def initialize(self) -> None:
        self.loop = asyncio.get_running_loop()

    def run(self, ctx: SyncContext, number: int) -> list[Any]:
        self.result = ctx.step(tripled, number)
        return [self.result, asyncio.run(tripled(1))]

    async def finalize(self, ctx: Context) -> None:
        assert asyncio.get_running_loop() is self.loop
        ctx.log.info("finalized", result=self.result)


@node
class PerItem:
    """One whose method is `process`, with a property that must be given."""

    factor: int

    def process(self, item: int) -> int:
        return self.factor * item


@node
class Unmade:
    """One that cannot even be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("not made")

    def run(self) -> None:
        raise AssertionError

    def finalize(self) -> None:
        raise AssertionError


class BlocksInPart:
    """A class whose `initialize` blocks until the gate is open; `type` is the node type."""

    gate: ClassVar[threading.Event] = threading.Event()
    type: ClassVar[NodeType[..., Any]]

    def initialize(self, ctx: SyncContext) -> None:
        ctx.log.info("initialize")
        self.gate.wait()
        ctx.log.info("initialized")

    async def run(self) -> None:
        raise AssertionError

    async def finalize(self, ctx: Context) -> None:
        ctx.log.info("finalize")


BlocksInPart.type = node(BlocksInPart)


@node
def many(count: int) -> str:
    return count * "x"
