"""Nodes that are fed from outside: what comes is recorded together with how far the outside has been read."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.emission import Emission, Unread
from perdure.engine.streams.outbox import Outbox
from perdure.engine.streams.packing import PackedEntry
from perdure.graph.constants import from_outside
from perdure.graph.triggers import TriggerInput, as_trigger, item_type
from perdure.journal.events import Encoded

log = logging.getLogger("perdure.driver")

if TYPE_CHECKING:
    from perdure.dispatch.base import Task
    from perdure.engine.driving.driver import Driver
    from perdure.graph.declare import NodeType
    from perdure.graph.plan import NodePlan


class PackedInput(PackedEntry, frozen=True, gc=False):
    """An entry that has come from outside."""

    input_id: str = ""
    cursor: Encoded | None = None
    acknowledge: Callable[[], Awaitable[None]] | None = None


class TriggerEmission(Emission):
    """Where the inputs of a trigger go. They follow what was recorded, and are never compared with it."""

    def __init__(self, actor: TriggerActor, outbox: Outbox, *, first: int) -> None:
        super().__init__(actor, outbox, first=first, recorded=None)
        self._trigger = actor

    def pack(self, value: Any) -> PackedEntry:
        if not isinstance(value, TriggerInput):
            raise TypeError(f"a trigger yields TriggerInput(data, id=…, cursor=…), and not {type(value).__name__}")
        arrived = cast("TriggerInput[Any, Any]", value)
        if not isinstance(arrived.input_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the id of an input is a text, and {arrived.input_id!r} is none")
        packed = self._actor.pack(from_outside(arrived.data, self._trigger.item_type))
        cursor = None
        if arrived.cursor is not None:
            encode = self._actor.values.codecs.encode
            cursor = msgspec.Raw(encode(arrived.cursor, where=f"the cursor of trigger {self._actor.node_id!r}"))
        return PackedInput(
            packed.entry,
            packed.blobs,
            packed.are_kept,
            input_id=storable(arrived.input_id),
            cursor=cursor,
            acknowledge=arrived.acknowledge,
        )

    def _give(self, packed: PackedEntry) -> None:
        if self._is_unread:  # the stream may be closed; whoever runs the trigger again would find the input again
            return
        super()._give(packed)
        if isinstance(packed, PackedInput):
            self._trigger.input_received(packed)


class TriggerActor(Actor):
    """Runs a trigger, until somebody stops it."""

    def __init__(self, driver: Driver, plan: NodePlan, node_type: NodeType[..., Any], attempt: int) -> None:
        super().__init__(driver, plan, node_type, attempt)
        self._is_closed = asyncio.Event()
        self._is_draining = False
        trigger = as_trigger(node_type.fn)
        self.item_type: Any = Any if trigger is None else item_type(trigger)
        """What the trigger says that it gives."""

    def drain(self) -> None:
        """The run is being let go: a trigger can be ended at any time, because it goes on from its cursor."""
        self._is_draining = True

    @property
    def only_waits(self) -> bool:
        return self._is_draining or super().only_waits

    def close(self) -> None:
        """Take no more from outside: the body is ended, and what it gave is all there is."""
        if self._emitting is not None:
            self._emitting.end()
        self._is_closed.set()

    async def _execute(self, task: Task) -> Any:
        loop = asyncio.get_running_loop()
        executing = loop.create_task(super()._execute(task))
        closing = loop.create_task(self._is_closed.wait())
        try:
            await asyncio.wait((executing, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            executing.cancel()
            await asyncio.wait((executing,))
        if self._is_closed.is_set():
            log.debug("trigger_closed", extra={"node_id": self.node_id, "ended": not executing.cancelled()})
            raise Unread
        return executing.result()

    async def _emission(self, outbox: Outbox) -> Emission:
        stream = self._driver.projection.node(self.node_id).stream
        assert stream is not None, "the stream of a node that runs is open"
        return TriggerEmission(self, outbox, first=stream.entries)

    def input_received(self, packed: PackedInput) -> None:
        """Record what has come, together with its entry."""
        self._driver.flow.input_received(self.node_id, packed.input_id, packed.cursor)
        if packed.cursor is not None:
            self.leave_behind()
        if packed.acknowledge is not None:
            self._driver.when_durable(functools.partial(self._acknowledge, packed.acknowledge))

    def _acknowledge(self, acknowledge: Callable[[], Awaitable[None]]) -> None:
        async def tell() -> None:
            try:
                await acknowledge()
            except Exception as error:  # it is the user's, and may raise anything; the input is recorded all the same
                log.warning("not_acknowledged", extra={"node_id": self.node_id, "error": repr(error)})

        self._driver.spawn(tell())


def is_trigger(node_type: NodeType[..., Any]) -> bool:
    """Whether a node is fed from outside."""
    return as_trigger(node_type.fn) is not None
