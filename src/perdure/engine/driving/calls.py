"""What a body may ask while it is called for one item."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.dispatch.base import BlobName, StepCall
from perdure.dispatch.waits import NOT_GIVEN, Came, WaitFor
from perdure.engine.attempts.assets import Files
from perdure.errors import CheckpointNotHere
from perdure.journal.events import Encoded
from perdure.journal.states import WaitKind

if TYPE_CHECKING:
    from perdure.engine.driving.actor import Actor


class ItemServices:
    """Its steps are told apart from those of other items."""

    __slots__ = ("_actor", "_files", "_is_closed", "_left_seconds", "_position", "_waiting", "limit", "name")

    def __init__(self, actor: Actor, position: int, name: str) -> None:
        self._actor = actor
        self._position = position
        self.name = name
        """What the item is called, whenever and by whomever it is tried."""
        self._files: Files | None = None
        self.limit: asyncio.Timeout | None = None
        """The time that the call is given, if it is limited."""
        self._is_closed = False
        self._waiting = 0
        self._left_seconds = 0.0

    def close(self) -> None:
        """The call has ended, and its scratch folder with it."""
        self._is_closed = True
        self._actor.call_ended(self._step(""))
        if self._files is not None:
            self._files.close()

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._actor.log(level, message, {**fields, "item": self._position})

    def progress(self, done: float, total: float | None) -> None:
        self._actor.progress(done, total)

    def publish(self, value: Any) -> None:
        self._actor.publish(value)

    def now(self) -> datetime:
        return self._actor.now()

    async def checkpoint(self, state: Any) -> None:
        raise CheckpointNotHere(self._actor.node_id)

    async def recorded_step(self, call: StepCall) -> Encoded | None:
        return await self._actor.recorded_step(self._own(call))

    async def record_step(self, call: StepCall, result: Any) -> None:
        await self._actor.record_step(self._own(call), result)

    async def outcome(self, wanted: WaitFor, value: Any = NOT_GIVEN) -> Came:
        if wanted.kind is WaitKind.SUSPEND and value is not NOT_GIVEN:
            raise CheckpointNotHere(self._actor.node_id)
        with self._time_stands_still():
            return await self._actor.outcome(wanted, value, scope=self._step(""))

    @contextmanager
    def _time_stands_still(self) -> Generator[None]:
        """Waiting does not count, whatever else the call does meanwhile."""
        limit, loop = self.limit, asyncio.get_running_loop()
        if limit is None or limit.expired():
            yield
            return
        if not self._waiting and (ends_at := limit.when()) is not None:
            self._left_seconds = ends_at - loop.time()
            limit.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and not self._is_closed:
                limit.reschedule(loop.time() + self._left_seconds)

    async def secret(self, name: str) -> str:
        return await self._actor.secret(name)

    async def scratch(self) -> Path:
        return await self._actor.patiently(self._own_files().scratch)

    async def keep_file(self, path: Path) -> BlobName:
        return await self._actor.patiently(functools.partial(self._own_files().keep_file, path))

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        return await self._actor.patiently(functools.partial(self._own_files().local_file, blob, suffix))

    def _own_files(self) -> Files:
        if self._files is None:
            self._files = Files(self._actor.values.blobs)
        return self._files

    def _own(self, call: StepCall) -> StepCall:
        return msgspec.structs.replace(call, name=self._step(call.name))

    def _step(self, name: str) -> str:
        return f"{self.name}/{name}"
