"""Inputs that are streams: fed while the run lives, one item at a time, and closed when there are no more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.engine.attempts.items import items_of_list
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.bodies import STOPPING
from perdure.engine.driving.goingback import GOING_BACK, has_to_be_loaded
from perdure.graph.inbox import is_further
from perdure.graph.model import FED
from perdure.ids import CommandId, NodeId
from perdure.journal.events import Encoded
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.shapes import CLOSE, SEND, Command
from perdure.store.transitions import BlobUse

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver
    from perdure.graph.declare import NodeType
    from perdure.graph.plan import NodePlan

PAUSE = "pause"
RESUME = "resume"
IN_ORDER = (frozenset((SEND, CLOSE)), frozenset((PAUSE, RESUME)))
"""Commands that must not overtake each other."""


_CUT_SHORT = frozenset((*STOPPING, RunStatus.FAILED, RunStatus.CANCELLED))


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of the commands. The item is an encoded value as text."""

    input: str
    item: str = ""
    blobs: tuple[BlobUse, ...] = ()
    input_id: str | None = None
    cursor: str | None = None
    """How far the outside has been read, where a trigger is fed."""


def send_id(input_name: str, item_id: str) -> CommandId:
    """Return the id of the command that brings an item: another one for each input and each id, whatever is in them."""
    name = input_name.replace("%", "%25").replace("/", "%2F")
    return CommandId(f"{SEND}/{name}/{item_id}")


class InputActor(Actor):
    """Stands for an input: its items are known from the start, or come as commands until somebody closes it."""

    def __init__(self, driver: Driver, plan: NodePlan, node_type: NodeType[..., Any], attempt: int) -> None:
        super().__init__(driver, plan, node_type, attempt)
        self._is_closed = asyncio.Event()

    def prepare(self) -> None:
        """There is nothing to make ready."""

    def close(self) -> None:
        """No more items come."""
        self._is_closed.set()

    @property
    def waits_for_items(self) -> bool:
        return True

    def end_unread(self) -> None:
        super().end_unread()
        self.close()

    async def _attempt(self) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
        outbox = self._driver.streams.outbox(self.node_id)
        given = self._driver.projection.run.inputs.get(self.node_id)
        if given is None:
            await self._is_closed.wait()
        else:
            whole = await self.patiently(lambda: self.values.opened(given))
            items = items_of_list(whole, self.node_id, self.values)
            for position in range(outbox.low, len(items)):
                await outbox.room()
                outbox.put(position, items[position])
        return await self._finish_stream(outbox)


def is_input(plan: NodePlan) -> bool:
    """Whether a node stands for an input."""
    return plan.node.type in FED


def is_too_early(command: Command, driver: Driver, early: Collection[Command]) -> bool:
    """Whether a command has to wait: for an input that is not open yet, until a run that is being paused is paused and let go of,
    or for another that waits, and that it must not overtake."""
    if any(command.kind in kinds and before.kind in kinds for before in early for kinds in IN_ORDER):
        return True
    if command.kind in GOING_BACK:
        return driver.has_to_end or has_to_be_loaded(command, driver)
    if command.kind == RESUME:
        return driver.stopping.is_winding_down or driver.projection.run.status is RunStatus.PAUSING
    if command.kind not in (SEND, CLOSE):
        return False
    node_id = NodeId(str(command.payload.get("input", "")))
    if driver.projection.run.status in _CUT_SHORT:
        return not driver.flow.is_closed(node_id)  # it is kept for whoever tries the run again
    is_closed = driver.projection.status(node_id) in (NodeStatus.IDLE, NodeStatus.SCHEDULED, NodeStatus.SUSPENDED)
    return is_closed or driver.flow.is_ending(node_id)


def obey_sent(command: Command, driver: Driver) -> bool:
    """Do what a command says about an input. False if it is closed already."""
    sent = msgspec.convert(command.payload, Sent)
    node_id = NodeId(sent.input)
    node = driver.projection.node(node_id)
    if not driver.decider.is_current(node_id, node.attempt) or node.stream is None or node.stream.is_closed:
        return False
    if command.kind == CLOSE:
        driver.flow.close_input(node_id)
    else:
        driver.use_blobs(sent.blobs)
        outbox = driver.streams.outbox(node_id)
        outbox.put(outbox.low, sent.item.encode())
        if sent.input_id is not None:
            _note_input(sent, sent.input_id, driver)
    return True


def _note_input(sent: Sent, input_id: str, driver: Driver) -> None:
    """Record that something has come for a trigger, whose cursor only moves on."""
    node_id = NodeId(sent.input)
    last = driver.projection.node(node_id).checkpoint
    order = str(driver.decider.plan.nodes[node_id].node.data.get("order", "number"))
    moves = sent.cursor is not None and (last is None or is_further(sent.cursor, cursor_text(last), order))
    cursor = msgspec.Raw(msgspec.json.encode(sent.cursor)) if moves else None
    driver.flow.input_received(node_id, input_id, cursor)


def cursor_text(cursor: Encoded) -> str:
    """Return a cursor as it was delivered."""
    return msgspec.json.decode(cursor, type=str)
