"""One attempt at one node: gather what it needs, run its body, turn what comes out into a result.

This is the one place where a failure of a node's body is caught. Anything else that goes wrong here is a bug of ours and
ends the run's task group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.dispatch.base import AttemptInfo, Task, slot_kind
from perdure.engine.arguments import gather_arguments
from perdure.engine.failures import AttemptTimeout, record_of
from perdure.engine.hub import Flash
from perdure.graph.constants import from_constant
from perdure.graph.declare import NodeType
from perdure.graph.handles import Outputs
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.graph.plan import NodePlan
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.journal.values import part_handle, part_of
from perdure.store.base import BlobUse, LogLine

if TYPE_CHECKING:
    from perdure.engine.driver import Driver


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

    async def run(self) -> None:
        """Run the attempt to its end and report to the driver, whatever happens in the body."""
        self.has_begun = True
        clock = self._driver.machinery.clock
        started = clock.monotonic()
        try:
            outputs, blobs = await self._attempt()
        except asyncio.CancelledError as error:
            if self.stop_reason is not None:
                self._driver.attempt_stopped(self)
            elif cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise
            else:  # nobody asked the body to stop: it cancelled itself
                self._driver.attempt_failed(
                    self, record_of(error, self._plan.policy.retry_on), _elapsed_ms(clock, started)
                )
        except Exception as error:  # a body may raise anything
            self._driver.attempt_failed(self, record_of(error, self._plan.policy.retry_on), _elapsed_ms(clock, started))
        else:
            self._driver.attempt_completed(self, outputs, blobs, _elapsed_ms(clock, started))

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        values = self._driver.machinery.values
        given = self._constants() | await gather_arguments(self._plan, self._driver.projection, values.opened)
        if slot_kind(self._type) == "process":
            given = {handle: await values.inlined(value) for handle, value in given.items()}
        decode = await values.reader(*given.values())
        properties = {handle.name for handle in self._type.properties}
        task = Task(
            node_type=self._type,
            info=await self._info(),
            arguments={handle: value for handle, value in given.items() if handle not in properties},
            properties={handle: value for handle, value in given.items() if handle in properties},
            decode=decode,
            services=self,
        )
        result = await self._execute(task)
        outputs, blobs = await values.pack_all(_named(result), where=f"node {self.node_id!r}")
        return outputs | await self._parts_of_large(outputs), blobs

    async def _parts_of_large(self, outputs: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Keep at hand what decisions look at inside values that are too large to be kept with the run."""
        parts: dict[str, Encoded] = {}
        for edge in self._plan.picked:
            value = outputs.get(edge.source_handle)
            if value is None or (whole := await self._driver.machinery.values.opened(value)) is value:
                continue
            with suppress(LookupError):  # a part that is not there is not there for the condition either
                parts[part_handle(edge.source_handle, edge.path)] = part_of(whole, edge.path)
        return parts

    async def _execute(self, task: Task) -> Any:
        limit = self._plan.policy.timeout
        if limit is None:
            return await self._driver.machinery.dispatch.execute(task)
        scope = asyncio.timeout(limit.total_seconds())
        try:
            async with scope:
                return await self._driver.machinery.dispatch.execute(task)
        except TimeoutError as error:
            if scope.expired():
                raise AttemptTimeout(f"the attempt took longer than {limit.total_seconds():g} s") from error
            raise

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

    async def _info(self) -> AttemptInfo:
        run = self._driver.projection.run
        node = self._driver.projection.node(self.node_id)
        return AttemptInfo(
            run_id=run.run_id,
            node_id=self.node_id,
            attempt=self.attempt,
            idempotency_key=f"{run.run_id}/{self.node_id}/{node.generation}",
            restored=None if node.checkpoint is None else await self._driver.machinery.values.inlined(node.checkpoint),
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
                message=message,
                fields=dict(fields),
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
        values = self._driver.machinery.values
        encoded, blobs = await values.pack(state, where=f"the checkpoint of node {self.node_id!r}")
        await self._driver.checkpoint(self, encoded, blobs)

    async def recorded_step(self, name: str, occurrence: int) -> Encoded | None:
        recorded = self._driver.projection.steps.get((self.node_id, name, occurrence))
        return None if recorded is None else await self._driver.machinery.values.inlined(recorded)

    async def record_step(self, name: str, occurrence: int, result: Any) -> None:
        values = self._driver.machinery.values
        encoded, blobs = await values.pack(result, where=f"step {name!r} of node {self.node_id!r}")
        await self._driver.step_completed(self, name, occurrence, encoded, blobs)

    async def secret(self, name: str) -> str:
        return self._driver.machinery.secrets(name)


def _named(result: Any) -> Mapping[str, Any]:
    """Return what a body returned, by output handle."""
    return result.handles() if isinstance(result, Outputs) else {DEFAULT_OUTPUT: result}


def _elapsed_ms(clock: Any, started: float) -> int:
    return int((clock.monotonic() - started) * 1_000)
