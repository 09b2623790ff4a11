"""What can be given to a run from outside: items for its inputs that are streams, and for its inboxes.

Each costs the same however many wait already. Whether an item comes before the end of its input is decided by the store, so that
whoever gives it always learns which of the two came first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.driving.sending import Sent, cursor_text, send_id
from perdure.engine.runs.sources import sources
from perdure.engine.runs.told import Told
from perdure.engine.starting.inputs import check_item, cursor_order, stream_inputs
from perdure.errors import CommandIdTaken, CursorRegressed, InputClosed, WrongInputs
from perdure.graph.inbox import is_further
from perdure.graph.model import Graph
from perdure.graph.questions import text
from perdure.ids import CommandId, NodeId
from perdure.journal.states import ENDED, TERMINAL, NodeState, RunState
from perdure.store.shapes import CLOSE, COMMANDS_PER_RUN, NEWEST, SEND

FEW = 10
"""Most often the last command is the one that is looked for."""


class Fed(Told):
    """The side of a run that takes items."""

    async def send(self, name: str, item: Any, *, item_id: str | None = None) -> None:
        """Give an item to an input that is a stream. Durable when this returns; items arrive in the order of sending.

        The same `item_id` twice has no effect. Raises WrongInputs if there is no such input or the item does not fit,
        InputClosed if no more items are taken, and CommandIdTaken if another item was sent under the same id.
        """
        run, _ = await self._require_fitting(name, item)
        encoded, blobs = await self._engine.values.pack(item, where=f"an item for input {name!r}")
        sent = Sent(input=name, item=bytes(encoded).decode(), blobs=blobs)
        command_id = None if item_id is None else send_id(name, storable(text(item_id, "the id of an item")))
        if command_id is None or not await self._has(command_id):
            await self._require_open(run, name)
        await self._give(sent, command_id or CommandId(self._engine.chance.new_id()))

    async def close(self, name: str) -> None:
        """Say that no more items come for an input that is a stream. To do it again has no effect."""
        run = await self.state()
        known = stream_inputs(await self._engine.graph_of(run))
        if name not in known:
            raise _unknown_stream(run, name, known)
        await self._close(name)

    async def deliver(self, node: str, data: Any, *, id: str, cursor: str | int | None = None) -> bool:  # noqa: A002
        """Give something to a trigger of the run that is an inbox. Durable when this returns; False if it had this id before,
        with whatever data: those who deliver something again may word it otherwise, and nothing comes of it.

        The cursor, if there is one, says how far the outside has been read. Raises CursorRegressed if that is not further than
        before, WrongInputs if there is no such inbox or the data does not fit, and InputClosed if nothing more is taken.
        """
        input_id = storable(text(id, "the id of an input"))
        run, graph = await self._require_fitting(node, data)
        command_id = send_id(node, input_id)
        if await self._has(command_id):
            return False
        there = await self._require_open(run, node)
        written = None if cursor is None else storable(str(cursor))
        if written is not None:
            await self._require_further(run, graph, there, NodeId(node), input_id, written)
        encoded, blobs = await self._engine.values.pack(data, where=f"what is delivered to {node!r}")
        sent = Sent(input=node, item=bytes(encoded).decode(), blobs=blobs, input_id=input_id, cursor=written)
        try:
            return await self._give(sent, command_id)
        except CommandIdTaken:  # somebody else has delivered it in this moment
            return False

    async def stop(self) -> None:
        """Have all triggers and inputs of the run end: it completes when what has come is worked off."""
        stored = await self.load()
        # What is said to a node that has not begun waits for that, and what is said after it waits with it.
        for node in await sources(self._engine.store, stored, await self._engine.prepared(stored.run)):
            await self._close(node)

    async def _close(self, name: str) -> None:
        await self._command(CLOSE, msgspec.to_builtins(Sent(input=name)), _close_id(name))

    async def _give(self, sent: Sent, command_id: CommandId) -> bool:
        """Have an item taken. False if it was given before. Raises InputClosed if somebody was faster to close the input:
        nothing comes of the item then."""
        command = self._worded(SEND, msgspec.to_builtins(sent), command_id)
        is_new = await self._add(command, before=_close_id(sent.input))
        if is_new:
            await self._engine.fed(self.run_id)
        elif not await self._has(command_id):
            raise InputClosed(self.run_id, sent.input)
        return is_new

    async def _has(self, command_id: CommandId) -> bool:
        return await self._engine.store.load_command(self.run_id, command_id) is not None

    async def _require_fitting(self, name: str, item: Any) -> tuple[RunState, Graph]:
        run = await self.state()
        graph = await self._engine.graph_of(run)
        known = stream_inputs(graph)
        if name not in known:
            raise _unknown_stream(run, name, known)
        if (problem := check_item(item, known[name])) is not None:
            raise WrongInputs(run.workflow, [f"{name!r}: {problem}"], nothing="sent")
        return run, graph

    async def _require_open(self, run: RunState, name: str) -> NodeState | None:
        """Return what has become of the node, if anything has. That somebody has just closed the input shows in `_give`."""
        node = await self._engine.store.load_node(self.run_id, NodeId(name))
        is_over = node is not None and (node.status in ENDED or (node.stream is not None and node.stream.is_closed))
        if run.status in TERMINAL or name in run.inputs or is_over:
            raise InputClosed(self.run_id, name)
        return node

    async def _require_further(
        self, run: RunState, graph: Graph, there: NodeState | None, node: NodeId, input_id: str, cursor: str
    ) -> None:
        order = cursor_order(graph, node)
        try:
            is_further(cursor, cursor, order)  # whether it is one at all
            async for last in self._last_cursors(there, node):
                if not is_further(cursor, last, order):
                    raise CursorRegressed(node, input_id, repr(cursor), repr(last))
        except ValueError:
            raise WrongInputs(
                run.workflow, [f"{node!r}: {cursor!r} is no cursor: it takes numbers"], nothing="sent"
            ) from None

    async def _last_cursors(self, there: NodeState | None, node: NodeId) -> AsyncIterator[str]:
        """Yield how far an inbox was read: as it is recorded, and as it stands in the last that has yet to be taken up."""
        if there is not None and there.checkpoint is not None:
            yield cursor_text(there.checkpoint)
        before, limit = NEWEST, FEW
        while page := await self._engine.store.latest_commands(self.run_id, before=before, limit=limit):
            for command in page:
                cursor = command.payload.get("cursor")
                if command.kind == SEND and command.payload.get("input") == node and cursor is not None:
                    yield str(cursor)
                    return
            before, limit = (page[-1].created_at, page[-1].command_id), COMMANDS_PER_RUN


def _close_id(name: str) -> CommandId:
    return CommandId(f"{CLOSE}/{name}")


def _unknown_stream(run: RunState, name: str, known: Mapping[str, Any]) -> WrongInputs:
    there = ", ".join(map(repr, known)) or "none"
    return WrongInputs(
        run.workflow, [f"there is no input {name!r} that is a stream (there is {there})"], nothing="sent"
    )
