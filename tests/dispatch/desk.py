"""What the tests of the dispatch stand on: services that remember, and tasks made by hand."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from perdure.dispatch.base import AttemptInfo, BlobName, Feed, StepCall, Task
from perdure.dispatch.local import LocalDispatch
from perdure.graph.declare import NodeType
from perdure.graph.handles import Outputs
from perdure.ids import digest_of
from perdure.store.codecs import default_codecs

CODECS = default_codecs()

Executor = Literal["auto", "thread", "process"]


class Desk:
    """Services that keep everything in memory, as an engine would in its journal."""

    def __init__(self, **secrets: str) -> None:
        self.logged: list[tuple[str, str, dict[str, Any]]] = []
        self.progressed: list[tuple[float, float | None]] = []
        self.published: list[Any] = []
        self.checkpoints: list[Any] = []
        self.steps: dict[tuple[str, int], msgspec.Raw] = {}
        self.calls: list[StepCall] = []
        self.hold = asyncio.Event()
        """What waits goes on only while this is set."""
        self.hold.set()
        self._secrets = secrets
        self._folder: Path | None = None
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._loop = asyncio.get_running_loop()

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._on_loop()
        self.logged.append((level, message, dict(fields)))
        for waiting in self._waiting.pop(message, []):
            waiting.set()

    def progress(self, done: float, total: float | None) -> None:
        self._on_loop()
        self.progressed.append((done, total))

    def publish(self, value: Any) -> None:
        self._on_loop()
        self.published.append(decoded(encoded(value)))

    async def checkpoint(self, state: Any) -> None:
        self._on_loop()
        self.log("desk", "checkpoint", {})
        await self.hold.wait()
        self.checkpoints.append(encoded(state))
        self.steps.clear()

    async def recorded_step(self, call: StepCall) -> msgspec.Raw | None:
        self._on_loop()
        self.calls.append(call)
        return self.steps.get((call.name, call.occurrence))

    async def record_step(self, call: StepCall, result: Any) -> None:
        self._on_loop()
        self.steps[call.name, call.occurrence] = encoded(result)

    async def secret(self, name: str) -> str:
        self._on_loop()
        if name not in self._secrets:
            raise KeyError(f"there is no secret {name!r}: set it")
        return self._secrets[name]

    async def scratch(self) -> Path:
        self._on_loop()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="desk-"))
            weakref.finalize(self, shutil.rmtree, self._folder)
        return self._folder

    async def keep_file(self, path: Path) -> BlobName:
        content = await asyncio.to_thread(path.read_bytes)
        (await self.scratch() / digest_of(content)).write_bytes(content)
        return BlobName(digest_of(content), len(content))

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        named = await self.scratch() / (blob.digest + suffix)
        if suffix and not named.exists():
            named.symlink_to(named.with_name(blob.digest))
        return named

    async def heard(self, message: str) -> dict[str, Any]:
        """Wait until the body has logged this, and return the fields."""
        while not (found := [fields for _, said, fields in self.logged if said == message]):
            heard = asyncio.Event()
            self._waiting.setdefault(message, []).append(heard)
            await heard.wait()
        return found[0]

    @property
    def messages(self) -> list[str]:
        return [message for level, message, _ in self.logged if level != "desk"]

    def _on_loop(self) -> None:
        assert asyncio.get_running_loop() is self._loop


class Tray:
    """An outlet that keeps everything, and has room for so many items until more room is made."""

    def __init__(self, room: float = float("inf"), refuse_after: float = float("inf")) -> None:
        self.items: list[Any] = []
        self.batches: list[int] = []
        self.waits = 0
        self._room = room
        self._refuse_after = refuse_after
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def pack(self, value: Any) -> Any:
        if isinstance(value, Outputs):
            return {name: encoded(part) for name, part in value.handles().items()}
        return encoded(value)

    def offer(self, packed: Sequence[Any]) -> bool:
        assert asyncio.get_running_loop() is self._loop
        if len(self.items) + len(packed) > self._refuse_after:
            raise ValueError("not these items")
        self.items.extend(packed)
        self.batches.append(len(packed))
        self._changed.set()
        return len(self.items) < self._room

    async def room(self) -> None:
        assert asyncio.get_running_loop() is self._loop
        self.waits += 1
        await self.until(lambda: len(self.items) < self._room)

    def make_room(self, room: float) -> None:
        self._room = room
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that depends on what was offered."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    @property
    def values(self) -> list[Any]:
        return [decoded(item) for item in self.items]


class Pipe:
    """A feed whose batches are put in by hand. It ends, or is cut off, after the last."""

    def __init__(self, *batches: Sequence[Any], is_open: bool = False, error: Exception | None = None) -> None:
        self.taken = 0
        self.used = 0
        self._batches = [[encoded(value) for value in batch] for batch in batches]
        self._is_open = is_open
        self._error = error
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def put(self, *values: Any) -> None:
        self._batches.append([encoded(value) for value in values])
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        self._is_open, self._error = False, error
        self._changed.set()

    async def take(self) -> Sequence[msgspec.Raw] | None:
        assert asyncio.get_running_loop() is self._loop
        self.taken += 1
        while not self._batches and self._is_open:
            self._changed.clear()
            await self._changed.wait()
        if self._batches:
            return self._batches.pop(0)
        if self._error is not None:
            raise self._error
        return None


def task_for(
    node_type: NodeType[..., Any],
    desk: Desk,
    *,
    attempt: int = 1,
    restored: Any = None,
    properties: Mapping[str, Any] | None = None,
    outlet: Tray | None = None,
    feeds: Mapping[str, Feed] | None = None,
    **arguments: Any,
) -> Task:
    """Return an attempt at a node, with encoded arguments."""
    info = AttemptInfo(
        run_id="run-1",
        node_id="node-1",
        attempt=attempt,
        idempotency_key="run-1/node-1/0",
        restored=None if restored is None else encoded(restored),
    )
    return Task(
        node_type=node_type,
        info=info,
        arguments={name: encoded(value) for name, value in arguments.items()},
        properties={name: encoded(value) for name, value in (properties or {}).items()},
        decode=CODECS.decode,
        services=desk,
        outlet=outlet,
        feeds=feeds or {},
    )


async def run(
    dispatch: LocalDispatch, node_type: NodeType[..., Any], desk: Desk | None = None, **arguments: Any
) -> Any:
    """Execute a body once and return what it returned, decoded if it comes from another process."""
    result = await dispatch.execute(task_for(node_type, desk or Desk(), **arguments))
    if isinstance(result, Outputs):
        return Outputs(**{name: decoded(value) for name, value in result.handles().items()})
    return decoded(result)


async def timed_out_when_heard(message: str, dispatch: LocalDispatch, task: Task, desk: Desk) -> Any:
    """Execute a body under a time limit that is over as soon as it has logged the message."""
    async with asyncio.timeout(None) as scope, asyncio.TaskGroup() as group:
        group.create_task(_expire(scope, desk, message))
        return await dispatch.execute(task)


async def _expire(scope: asyncio.Timeout, desk: Desk, message: str) -> None:
    await desk.heard(message)
    scope.reschedule(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    while not condition():  # what is waited for happens in other threads
        await asyncio.sleep(0)


def executed_by(node_type: NodeType[..., Any], executor: Executor) -> NodeType[..., Any]:
    """Return the node type as it would be if it had been declared with this executor."""
    moved = copy.copy(node_type)
    moved.policy = msgspec.structs.replace(node_type.policy, executor=executor)
    return moved


def encoded(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(CODECS.encode(value, where="test"))


def decoded(value: Any, annotation: Any = Any) -> Any:
    return CODECS.decode(value, annotation) if isinstance(value, msgspec.Raw) else value
