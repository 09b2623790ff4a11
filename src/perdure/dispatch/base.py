"""Where node bodies execute: the seam between the engine and the loop, threads, processes and, later, other machines.

The engine starts an attempt only when it holds a slot of the kind that its body needs. A dispatch runs bodies and knows
nothing of runs, leases or the journal; what a body wants from the engine goes through `Services`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from perdure.graph.declare import NodeType
from perdure.journal.events import Encoded
from perdure.journal.truth import Look

SlotKind = Literal["loop", "thread", "process"]


class BlobName(msgspec.Struct, frozen=True):
    """What content is kept under: its sha256 in hexadecimal, and its size."""

    digest: str
    size: int


class Services(Protocol):
    """What a body may ask of the engine while it runs. Called on the engine's loop only.

    What waits raises AttemptOver once the attempt is cancelled or superseded. A value that comes from another process
    is `Encoded`, with everything inside it; every other one is as the body gave it.
    """

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...

    def progress(self, done: float, total: float | None) -> None: ...

    def publish(self, value: Any) -> None: ...

    async def checkpoint(self, state: Any) -> None:
        """Return when the state is durable (in `sync`)."""
        ...

    async def recorded_step(self, name: str, occurrence: int) -> Encoded | None:
        """Return the recorded result of a step, if it was taken in an earlier try."""
        ...

    async def record_step(self, name: str, occurrence: int, result: Any) -> None:
        """Return when the result is durable (in `sync`)."""
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


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt this is: plain data, the same in every process."""

    run_id: str
    node_id: str
    attempt: int
    idempotency_key: str
    restored: Encoded | None = None


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
    looks: tuple[Look, ...] = ()
    """What conditions look at in the result of a body in another process: there alone it can be judged."""
    finish: Callable[[Any], Any] | None = None
    """Called with what a body returned that has a thread of this process, in that thread. Its result is the call's."""
    on_begin: Callable[[], None] | None = None
    """Called on the loop when the body has a place and begins."""
    on_late: Callable[[Exception | None], None] | None = None
    """Called on the loop when the body ends after its call was cancelled, with what it raised."""


class Judged(msgspec.Struct, frozen=True):
    """What a body in another process returned, and whether the parts that conditions look at are true."""

    result: Any
    truths: Mapping[str, bool]
    """By the name under which a truth is kept. Those that the encoded value tells by itself are left out."""


class Dispatch(Protocol):
    """Executes bodies."""

    async def execute(self, task: Task) -> Any:
        """Run the body once and return what it returned, or raise an `Exception`: what it raised, or a BodyError.

        What a body in another process returned is `Encoded`, or `Outputs` of such, in `Judged` if the task has `looks`;
        what it raised is `BodyRaised`, as is whatever would end more than its attempt (`SystemExit`, `GeneratorExit`, a
        `CancelledError` that nobody asked for).

        Cancelling this call tells the body to stop. A body on the loop may make something else of it, and the call then
        returns or raises that. When the call returns or raises, the body has ended, except for one in a thread, which
        cannot be stopped: that one is left behind until it ends by itself, and its thread is replaced while not too many
        are.
        """
        ...

    def vacate(self, kind: SlotKind, release: Callable[[SlotKind], None]) -> None:
        """Call `release` with the kind once there is a place for one more such body.

        That is at once, unless too many were left behind.
        """
        ...

    async def close(self) -> None: ...


@functools.lru_cache(maxsize=1_024)
def slot_kind(node_type: NodeType[..., Any]) -> SlotKind:
    """Return what kind of place the node type's body needs."""
    match node_type.policy.executor:
        case "process":
            return "process"
        case "thread":
            return "thread"
        case "auto":
            return "loop" if node_type.is_async else "thread"
