"""One attempt at one node: gather what it needs, run its body, turn what comes out into a result.

This is the one place where a failure of a node's body is caught. Anything else that goes wrong here is a bug of ours and
ends the run's task group.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from perdure.dispatch.base import AttemptInfo, BlobName, Task, slot_kind
from perdure.dispatch.failure import failure_of, plain_fields, storable
from perdure.engine.arguments import arguments_at_hand, gather_arguments
from perdure.engine.assets import Files
from perdure.engine.concluding import Concluded, conclude, is_light_result, looks_at
from perdure.engine.failures import AttemptTimeout, record_of
from perdure.engine.hub import Flash
from perdure.engine.keys import idempotency_key
from perdure.engine.values import Decode
from perdure.engine.weight import is_light
from perdure.errors import (
    ArgumentNotReadable,
    AttemptOver,
    BlobDamaged,
    BlobMissing,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
    ValueNotReadable,
)
from perdure.graph.constants import from_constant
from perdure.graph.declare import NodeType
from perdure.graph.plan import NodePlan
from perdure.ids import NodeId
from perdure.journal.events import Encoded, ErrorRecord
from perdure.store.base import BlobUse, LogLine
from perdure.store.codecs import NewBlob, content_refs

if TYPE_CHECKING:
    from perdure.engine.driver import Driver


T = TypeVar("T")

FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0

log = logging.getLogger("perdure.actor")


class Actor:
    """Runs one attempt. It is also what the body's context asks for services."""

    def __init__(self, driver: Driver, plan: NodePlan, node_type: NodeType[..., Any], attempt: int) -> None:
        self._driver = driver
        self._plan = plan
        self._type = node_type
        self.node_id: NodeId = plan.node.id
        self.attempt = attempt
        self.stop_reason: str | None = None
        """Why the engine has told the body to stop, if it has."""
        self.has_begun = False
        """Whether `run` has been entered: a task that is cancelled before that ends without a word."""
        self.task: asyncio.Task[Any] | None = None
        """The task in which `run` runs. Whoever starts it says so."""
        self._prepared: Task | None = None
        self._files: Files | None = None
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False
        self._is_over = False
        self._late: list[Exception | None] = []
        """What the body came to, if that no longer counts: nothing, or what it raised."""

    async def run(self) -> None:
        """Run the attempt to its end and report to the driver, whatever happens in the body."""
        self.has_begun = True
        self._started = self._driver.machinery.clock.monotonic()
        try:
            outputs, blobs = await self._attempt()
        except asyncio.CancelledError as error:
            if not self._is_told_to_stop and self._driver.is_interrupted:
                raise
            self._report(error)  # if nobody has told it to stop, the body has cancelled itself
        except Exception as error:  # a body may raise anything
            if self._is_told_to_stop and not isinstance(error, AttemptOver):
                self._late.append(error)
            self._report(error)
        else:
            self._is_over = True
            self._driver.attempt_completed(self, outputs, blobs, self._elapsed_ms())
        finally:
            if self._files is not None:
                self._files.close()

    @property
    def _is_told_to_stop(self) -> bool:
        return self.stop_reason is not None or self._is_overdue

    def _report(self, error: BaseException) -> None:
        self._is_over = True
        if self.stop_reason is not None:
            self._driver.attempt_stopped(self)
        elif (
            self._driver.was_taken_up and not self._is_overdue and (failure := failure_of(error)).is_a(ValueNotReadable)
        ):
            has_begun = not failure.is_a(ArgumentNotReadable)
            self._driver.attempt_unreadable(self, failure.message, has_begun=has_begun)
        else:
            self._driver.attempt_failed(self, self._record_of(error), self._elapsed_ms())
        for late in self._late:
            self._driver.result_discarded(self, late)

    def _record_of(self, error: BaseException) -> ErrorRecord:
        if self._is_overdue and (limit := self._plan.policy.timeout) is not None:
            error = AttemptTimeout(f"the attempt took longer than {limit.total_seconds():g} s")
        return record_of(error, self._plan.policy.retry_on)

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        task = self._prepared or self._task_at_hand()
        if task is None:
            task = await self._patiently(self._fetch_task)
        try:
            result = await self._driver.machinery.dispatch.execute(task)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._is_told_to_stop:
            self._late.append(None)
            raise asyncio.CancelledError
        if self.task is not None and self.task.cancelling():
            await self._take_back_cancellations(self.task)
        if isinstance(result, Concluded):
            concluded = result
        elif is_light_result(result):
            concluded = self._conclude(result)
        else:
            concluded = await self._driver.machinery.values.beside(self._conclude_beside, result)
        if not concluded.blobs:
            return concluded.outputs, ()
        if concluded.are_kept:
            return concluded.outputs, self._driver.machinery.values.used(concluded.blobs)
        return concluded.outputs, await self._kept(concluded.blobs)

    # What the body needs

    def prepare(self) -> None:
        """Get ready what the body needs, if that is at hand: there is time for it while the start is being written."""
        if not self.has_begun:
            with suppress(Exception):  # whatever is wrong, the attempt finds it again and reports it
                self._prepared = self._task_at_hand()

    def _task_at_hand(self) -> Task | None:
        """Return what is to be executed; None if something for it has to be fetched from blobs."""
        driver = self._driver
        given = arguments_at_hand(self._plan, driver.projection)
        restored = driver.projection.node(self.node_id).checkpoint
        if given is None or any(map(content_refs, given.values())) or (restored is not None and content_refs(restored)):
            return None
        if self._plan.constants:
            given = self._constants() | given
            if any(map(content_refs, given.values())):
                return None
        return self._task(given, driver.machinery.values.decode_whole, restored)

    async def _fetch_task(self) -> Task:
        values = self._driver.machinery.values
        given = self._constants() | await gather_arguments(self._plan, self._driver.projection, values)
        if slot_kind(self._type) == "process":
            given = {handle: await values.inlined(value) for handle, value in given.items()}
        restored = self._driver.projection.node(self.node_id).checkpoint
        if restored is not None:
            restored = await values.inlined(restored)
        return self._task(given, await values.reader(*given.values()), restored)

    def _task(self, given: dict[str, Encoded], decode: Decode, restored: Encoded | None) -> Task:
        kind = slot_kind(self._type)
        own = {handle.name: given.pop(handle.name) for handle in self._type.properties if handle.name in given}
        return Task(
            node_type=self._type,
            info=self._info(restored),
            arguments=given,
            properties=own,
            decode=decode,
            services=self,
            looks=looks_at(self.node_id, self._driver.decider.plan) if kind == "process" else (),
            finish=self._conclude_beside if kind == "thread" else None,
            on_begin=None if self._plan.policy.timeout is None else self._watch_time,
            on_late=None if kind == "loop" else self._ended_late,
        )

    async def _take_back_cancellations(self, task: asyncio.Task[Any]) -> None:
        """Undo what the body has done to its own task: libraries end their waits by cancelling whoever waits."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # where a cancellation strikes that has not yet
        while task.cancelling():
            task.uncancel()

    # What comes of the body

    def _conclude(self, result: Any) -> Concluded:
        """Encode what the body returned, and note what decisions need to know of it. In any thread."""
        return conclude(result, self.node_id, self._driver.decider.plan, self._driver.machinery.values)

    def _conclude_beside(self, result: Any) -> Concluded:
        """As `_conclude`, in a thread that can wait: it keeps the blobs, too. If they cannot be kept, others have patience."""
        concluded = self._conclude(result)
        if not concluded.blobs:
            return concluded
        try:
            self._driver.machinery.values.keep_at_once(concluded.blobs)
        except StoreError:
            return concluded
        return msgspec.structs.replace(concluded, are_kept=True)

    def _ended_late(self, error: Exception | None) -> None:
        """Note that a body has ended whose attempt is over, or about to be."""
        if error is not None and failure_of(error).is_a(AttemptOver, asyncio.CancelledError):
            return
        if self._is_over:
            self._driver.result_discarded(self, error)
        else:
            self._late.append(error)

    # Time

    def _watch_time(self) -> None:
        """Count from here: the body begins. What it waited for before does not count."""
        if self._plan.policy.timeout is not None and not self._is_over:
            self._timer = self._later(self._plan.policy.timeout.total_seconds(), self._run_out_of_time)

    def _run_out_of_time(self) -> None:
        """Tell the body to stop. One that does not within the grace period is left behind."""
        if self.task is None or self._is_told_to_stop:
            return
        self._is_overdue = True
        self.task.cancel()
        self._timer = self._later(self._driver.projection.run.settings.grace_seconds, self._leave_behind)

    def _leave_behind(self) -> None:
        if not self._is_over and self.stop_reason is None:
            self._driver.attempt_overdue(self, self._record_of(AttemptTimeout()), self._elapsed_ms())

    def _later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, work)

    def _elapsed_ms(self) -> int:
        return int((self._driver.machinery.clock.monotonic() - self._started) * 1_000)

    # Blobs

    async def _kept(self, blobs: Sequence[NewBlob]) -> tuple[BlobUse, ...]:
        return await self._patiently(functools.partial(self._driver.machinery.values.keep, blobs))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something with blobs, again and again while they are out of reach or have no room.

        When patience ends, the run is dropped from memory as it is when the database fails: no body is to blame.
        """
        try:
            return await work()
        except StoreError as error:
            return await self._again(work, error)

    async def _again(self, work: Callable[[], Awaitable[T]], error: StoreError) -> T:
        clock = self._driver.machinery.clock
        deadline = clock.monotonic() + self._driver.machinery.values.patience_seconds
        delay = FIRST_RETRY_SECONDS
        while not isinstance(error, BlobMissing | BlobDamaged):
            if isinstance(error, StoreReadOnly | StoreDamaged) or clock.monotonic() >= deadline:
                self._driver.storage_failed(error)
                break
            log.warning("blobs_not_ready", extra={"error": str(error), "retry_in_seconds": delay})
            await clock.sleep(delay)
            delay = min(delay * 2, LAST_RETRY_SECONDS)
            try:
                return await work()
            except StoreError as another:
                error = another
        raise error

    def _constants(self) -> dict[str, Encoded]:
        """Return the constants of the graph as the values that they stand for."""
        constants = self._plan.constants
        if not constants:
            return {}
        annotations = {handle.name: handle.annotation for handle in (*self._type.inputs, *self._type.properties)}
        encode = self._driver.machinery.values.codecs.encode
        where = f"node {self.node_id!r}"
        return {
            handle: msgspec.Raw(encode(from_constant(constant, annotations.get(handle, Any)), where=where))
            for handle, constant in constants.items()
        }

    def _info(self, restored: Encoded | None) -> AttemptInfo:
        run = self._driver.projection.run
        node = self._driver.projection.node(self.node_id)
        return AttemptInfo(
            run_id=run.run_id,
            node_id=self.node_id,
            attempt=self.attempt,
            idempotency_key=idempotency_key(run.run_id, node),
            restored=restored,
        )

    # Services for the body's context

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

    async def checkpoint(self, state: Any) -> None:
        encoded, blobs = await self._packed(state, f"the checkpoint of node {self.node_id!r}")
        await self._driver.checkpoint(self, encoded, blobs)

    async def recorded_step(self, name: str, occurrence: int) -> Encoded | None:
        recorded = self._driver.projection.steps.get((self.node_id, storable(name), occurrence))
        if recorded is None:
            return None
        return await self._patiently(functools.partial(self._driver.machinery.values.inlined, recorded))

    async def record_step(self, name: str, occurrence: int, result: Any) -> None:
        encoded, blobs = await self._packed(result, f"step {name!r} of node {self.node_id!r}")
        await self._driver.step_completed(self, storable(name), occurrence, encoded, blobs)

    async def secret(self, name: str) -> str:
        return self._driver.machinery.secrets(name)

    async def scratch(self) -> Path:
        return await self._patiently(self._own_files().scratch)

    async def keep_file(self, path: Path) -> BlobName:
        return await self._patiently(functools.partial(self._own_files().keep_file, path))

    async def local_file(self, blob: BlobName, suffix: str) -> Path:
        return await self._patiently(functools.partial(self._own_files().local_file, blob, suffix))

    def _own_files(self) -> Files:
        if self._files is None:
            self._files = Files(self._driver.machinery.values.blobs)
        return self._files

    async def _packed(self, value: Any, where: str) -> tuple[Encoded, tuple[BlobUse, ...]]:
        values = self._driver.machinery.values
        if is_light(value):
            packed = values.packed(value, where=where)
        else:
            packed = await values.beside(functools.partial(values.packed, where=where), value)
        return msgspec.Raw(packed.raw), await self._kept(packed.blobs) if packed.blobs else ()
