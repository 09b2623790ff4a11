"""What the engine does for a body while it runs: whatever its context offers comes here."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.dispatch.base import BlobName, StepCall
from perdure.dispatch.failure import plain_fields, storable
from perdure.engine.attempts.assets import Files
from perdure.engine.attempts.values import Values
from perdure.engine.attempts.weight import is_light
from perdure.engine.recording.hub import Flash
from perdure.engine.recording.patience import patiently
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.store.codecs import NewBlob
from perdure.store.shapes import LogLine
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

T = TypeVar("T")


class Serving:
    """The side of an attempt that its body sees."""

    def __init__(self, driver: Driver, node_id: NodeId, attempt: int) -> None:
        self._driver = driver
        self.node_id = node_id
        self.attempt = attempt
        self._files: Files | None = None
        self._checkpoints = 0

    @property
    def values(self) -> Values:
        return self._driver.machinery.values

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        run = self._driver.projection.run
        self._driver.machinery.hub.log_lines.append(
            LogLine(
                run_id=run.run_id,
                branch_id=run.branch_id,
                node_id=self.node_id,
                attempt=self.attempt,
                at=self._driver.machinery.clock.now_micros(),
                level=level,
                message=storable(str(message)),
                fields=plain_fields(fields) if fields else {},
            )
        )

    def progress(self, done: float, total: float | None) -> None:
        run_id = self._driver.projection.run.run_id
        self._driver.machinery.hub.flash(
            Flash(run_id=run_id, node_id=self.node_id, kind="progress", done=done, total=total)
        )

    def publish(self, value: Any) -> None:
        run_id = self._driver.projection.run.run_id
        self._driver.machinery.hub.flash(Flash(run_id=run_id, node_id=self.node_id, kind="publish", value=value))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._driver.machinery.clock.now_micros() / 1_000_000, UTC)

    async def recorded_step(self, call: StepCall) -> Encoded | None:
        recorded = self._driver.projection.steps.get((self.node_id, storable(call.name), call.occurrence))
        if recorded is None or self.has_left_behind(call):
            return None
        return await self.patiently(functools.partial(self._driver.machinery.values.inlined, recorded))

    def has_left_behind(self, call: StepCall) -> bool:
        """Whether a step was called for before the last checkpoint: it is none of those that are counted since."""
        return call.checkpoints != self._checkpoints

    def leave_behind(self) -> None:
        """Expect the body to come back to nothing: a checkpoint was recorded."""
        self._checkpoints += 1

    async def secret(self, name: str) -> str:
        return self._driver.machinery.secrets(name)

    async def scratch(self) -> Path:
        return await self.patiently(self._own_files().scratch)

    async def keep_file(self, path: Path) -> BlobName:
        return await self.patiently(functools.partial(self._own_files().keep_file, path))

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        return await self.patiently(functools.partial(self._own_files().local_file, blob, suffix))

    def _own_files(self) -> Files:
        if self._files is None:
            self._files = Files(self._driver.machinery.values.blobs)
        return self._files

    async def packed(self, value: Any, where: str) -> tuple[Encoded, tuple[BlobUse, ...]]:
        """Return a value encoded, with the blobs that it refers to, which are durable."""
        values = self._driver.machinery.values
        if is_light(value):
            packed = values.packed(value, where=where)
        else:
            packed = await values.beside(functools.partial(values.packed, where=where), value)
        return msgspec.Raw(packed.raw), await self.kept(packed.blobs) if packed.blobs else ()

    async def kept(self, blobs: Sequence[NewBlob]) -> tuple[BlobUse, ...]:
        """Make blobs durable."""
        return await self.patiently(functools.partial(self._driver.machinery.values.keep, blobs))

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that has to do with storage, and wait while that is out of reach."""
        return await patiently(work, self._driver.machinery, self._driver.storage_failed)
