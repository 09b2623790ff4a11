"""Where node bodies execute: the seam between the engine and the loop, threads, processes and, later, other machines.

The engine starts an attempt only when it holds a slot of the kind that its body needs. A dispatch runs bodies and knows
nothing of runs, leases or the journal; what a body wants from the engine goes through `Services`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.graph.declare import NodeType
from perdure.journal.events import Encoded
from perdure.journal.truth import Look

BodyKind = Literal["loop", "thread", "process"]
"""Where a body runs."""
SlotKind = Literal["loop", "thread", "process", "free"]
"""What kind of place a body needs. There are any number of free ones, for those who wait for each other's items."""

MAX_AHEAD: Final = 256
"""How many items a generator in a thread may yield before the loop has taken them."""


class BlobName(msgspec.Struct, frozen=True):
    """What content is kept under: its sha256 in hexadecimal, and its size."""

    digest: str
    size: int


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """Which step a body takes."""

    name: str
    occurrence: int
    """How many calls of that name came before, since the body's last checkpoint."""
    checkpoints: int
    """How many checkpoints the body had taken when it called, since it was begun."""


class Services(Protocol):
    """What a body may ask of the engine while it runs. Called on the engine's loop only.

    What waits raises AttemptOver once the attempt is cancelled or superseded. A value that comes from another process
    is `Encoded`, with everything inside it; every other one is as the body gave it.
    """

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...

    def progress(self, done: float, total: float | None) -> None: ...

    def publish(self, value: Any) -> None: ...

    def now(self) -> datetime:
        """Return the engine's time."""
        ...

    async def checkpoint(self, state: Any) -> None:
        """Return when the state is durable (in `sync`)."""
        ...

    async def recorded_step(self, call: StepCall) -> Encoded | None:
        """Return the recorded result of a step, if it was taken in an earlier try."""
        ...

    async def record_step(self, call: StepCall, result: Any) -> None:
        """Return when the result is durable (in `sync`). Of a step that was called for before a checkpoint which has been stored
        since, nothing is recorded: no body comes back to it."""
        ...

    async def outcome(self, wanted: WaitFor, value: Any = NOT_GIVEN) -> Came:
        """Wait for something from outside, and return what has come of it: durable, and the same each time the body runs.

        `value` is what is shown beside a question, or the state that goes with a suspension. A body that waits for long is
        cancelled, and run again when something comes.
        """
        ...

    async def secret(self, name: str) -> str:
        """Return the secret; raises KeyError with the remedy when there is none."""
        ...

    async def scratch(self) -> Path:
        """Return a folder for files of the attempt. It is made when it is first asked for, and ends with the attempt."""
        ...

    async def keep_file(self, path: Path) -> BlobName:
        """Make the content of a file durable. One in the scratch folder is moved away from there, any other is copied."""
        ...

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        """Return a file with content that was kept, checked, whose name ends so. Nobody writes to it."""
        ...


class Outlet(Protocol):
    """Where a generator's items go."""

    def pack(self, value: Any) -> Any:
        """Encode what the body yielded (a value or Outputs). In the thread of the body; raises ValueNotStorable."""
        ...

    def offer(self, packed: Sequence[Any]) -> bool:
        """Take packed items, in order. On the engine's loop. False if the body should wait before it yields more.

        What it raises ends the attempt.
        """
        ...

    async def room(self) -> None:
        """Return when there is room for more. On the engine's loop."""
        ...


class Feed(Protocol):
    """What a parameter annotated Stream[T] reads from."""

    used: int
    """How many items the body has got: whoever hands them to it counts."""

    async def take(self) -> Sequence[Encoded] | None:
        """Return the next items, at least one; None at the end. On the engine's loop. Raises if the stream was cut off.

        It is not called again before it has returned or raised, nor after the end.
        """
        ...


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which attempt this is: plain data, the same in every process."""

    run_id: str
    node_id: str
    attempt: int
    idempotency_key: str
    restored: Encoded | None = None
    from_outside: tuple[str, ...] = ()
    """Parameters whose values may be in their JSON form."""
    item: int | None = None
    """The position of the item, if the node is called once per item. `attempt` then counts the tries at this item."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one node, ready to execute."""

    node_type: NodeType[..., Any]
    info: AttemptInfo
    arguments: Mapping[str, Encoded]
    """Every parameter that has a value, encoded. Those without one take their default."""
    properties: Mapping[str, Encoded]
    """Attributes of a class node that have a value, encoded."""
    decode: Callable[[Encoded, Any], Any]
    """Decode one of these, the restored state or a step's result for an annotation, from any thread.

    Blobs that they refer to are at hand; what is to be decoded in another process refers to none.
    """
    services: Services
    decoded: Mapping[str, Any] | None = None
    """The arguments and properties of a body on the loop, decoded, if there was time for that before it begins."""
    outlet: Outlet | None = None
    """Where the items of a generator go. It has one; no other body does."""
    feeds: Mapping[str, Feed] = {}
    """What each parameter that reads a stream reads from, by its name."""
    looks: tuple[Look, ...] = ()
    """What conditions look at in the result of a body in another process: there alone it can be judged."""
    finish: Callable[[Any], Any] | None = None
    """Called with what a body returned that has a thread of this process, in that thread. Its result is the call's.

    Not for a generator, which returns nothing.
    """
    on_begin: Callable[[], None] | None = None
    """Called on the loop when the body has a place and begins."""
    on_late: Callable[[Exception | None], None] | None = None
    """Called on the loop when the body ends after its call was cancelled, with what it raised."""


class Judged(msgspec.Struct, frozen=True):
    """What a body in another process returned, and whether the parts that conditions look at are true."""

    result: Any
    truths: Mapping[str, bool]
    """By the name under which a truth is kept. Those that the encoded value tells by itself are left out."""


class Session(Protocol):
    """A node type brought to life for many items: for a class, one instance from initialize() to finalize()."""

    async def call(self, task: Task) -> Any:
        """Run the body for one item: see `Dispatch.execute`. Of a class that lives here, only `run` or `process` is called.

        Calls that are made at once run at once, and one that fails, ends or is cancelled leaves the others alone.
        """
        ...

    async def close(self, error: BaseException | None = None) -> None:
        """Finalize, once, when no call is under way any more. Closing again does nothing.

        With the `error` that ended the session, what finalize() raises is a note on that, and this returns; without one it
        is raised.
        """
        ...


class Dispatch(Protocol):
    """Executes bodies."""

    def prepare(self, task: Task) -> Task:
        """Do at once what can be done before the body begins, and return the task that is to be executed. What it raises,
        executing the task as it was raises as well."""
        ...

    def execute(self, task: Task) -> Coroutine[Any, Any, Any]:
        """Run the body once and return what it returned, or raise an `Exception`: what it raised, or a BodyError.

        What a body in another process returned is `Encoded`, or `Outputs` of such, in `Judged` if the task has `looks`;
        what it raised is `BodyRaised`, as is whatever would end more than its attempt (`SystemExit`, `GeneratorExit`, a
        `CancelledError` that nobody asked for).

        Cancelling this call tells the body to stop. A body on the loop may make something else of it, and the call then
        returns or raises that. When the call returns or raises, the body has ended, except for one in a thread, which
        cannot be stopped: that one is left behind until it ends by itself, and its thread is replaced while not too many
        are.

        A generator's items go to the outlet of the task, in order, and None is returned at its end. It is not resumed
        while the outlet has no room; in a thread it may be up to MAX_AHEAD items further by the time it hears of that. What
        it raises is raised when all that it yielded has been offered. If the call is cancelled, the generator is closed,
        and nothing is offered after that.
        """
        ...

    async def open(self, task: Task) -> Session:
        """Bring the node type to life for many items, with the properties of this task; its arguments are not looked at.

        A class is constructed here, its properties are set, and initialize() and pre_process() called; if that fails or
        is cancelled, it is finalized. They and finalize() have the context of this task. What lives in another process
        lives there once per call, from its construction to its end.
        """
        ...

    def has_place(self, kind: SlotKind) -> bool:
        """Whether there would be a place for one more such body if one of them had just ended."""
        ...

    def vacate(self, kind: SlotKind, release: Callable[[SlotKind], None]) -> None:
        """Call `release` with the kind once there is a place for one more such body.

        That is at once, unless too many were left behind.
        """
        ...

    async def close(self) -> None: ...


@functools.lru_cache(maxsize=1_024)
def slot_kind(node_type: NodeType[..., Any]) -> BodyKind:
    """Return what kind of place the node type's body needs."""
    match node_type.policy.executor:
        case "process":
            return "process"
        case "thread":
            return "thread"
        case "auto":
            return "loop" if node_type.is_async else "thread"
