"""How many items there are for a node that is mapped and has not done them all: as many as what it is mapped over has given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from perdure.engine.attempts.arguments import gather_arguments
from perdure.engine.attempts.items import items_of_list
from perdure.engine.attempts.values import Values
from perdure.engine.streams.entries import Entry, items_in
from perdure.graph.model import Edge
from perdure.graph.plan import Flow, NodePlan, Plan
from perdure.ids import NodeId
from perdure.journal.projection import Projection

EntriesOf = Callable[[NodeId], Awaitable[Mapping[int, Entry]]]
"""Reads what a node has given, by position."""


class Supplied(msgspec.Struct, frozen=True, kw_only=True):
    """How many items there are for a node."""

    items: int
    may_grow: bool
    """Whether more may come when the run goes on."""


class Supply:
    """Counts what nodes of a run are mapped over."""

    def __init__(self, plan: Plan, projection: Projection, values: Values, entries_of: EntriesOf) -> None:
        self._plan = plan
        self._projection = projection
        self._values = values
        self._entries_of = entries_of

    async def of(self, node_id: NodeId) -> Supplied:
        """Return how many items there are for a node that is mapped. It has begun. Raises InputUnusable and ValueNotReadable if
        it is mapped over something that has none."""
        plan = self._plan.nodes[node_id]
        assert plan.flow is not None, "only a node that is mapped has items"
        counted = [Supplied(items=length, may_grow=False) for length in await self._lengths(plan, plan.flow)]
        for edge in plan.flow.live:
            if edge.mode != "stream":
                counted.append(await self._given_on(edge, plan.flow))
        return min(counted, key=lambda found: (found.items, found.may_grow))

    async def _lengths(self, plan: NodePlan, flow: Flow) -> list[int]:
        """Return how long the lists are that the node is mapped over."""
        live = {edge.target_handle for edge in flow.live}
        lists = [handle for handle in flow.mapped if handle not in live]
        given = await gather_arguments(plan, self._projection, self._values) if lists else {}
        return [
            len(items_of_list(given[handle], handle, self._values)) if handle in given else len(plan.constants[handle])
            for handle in lists
        ]

    async def _given_on(self, edge: Edge, reader: Flow) -> Supplied:
        """Return how many items have come from a stream, or will because what gives them has as many itself."""
        source, stream = self._plan.nodes[edge.source].flow, self._projection.node(edge.source).stream
        assert source is not None, "what is read item by item gives a stream"
        is_open = stream is not None and not stream.is_closed
        is_in_step = not source.is_generator and reader.join is None
        if is_in_step and is_open and source.join != "latest":
            return await self.of(edge.source)
        entries = await self._entries_of(edge.source)
        if is_in_step:
            return Supplied(items=len(entries), may_grow=is_open)
        is_call = not source.is_generator
        given = (items_in(entry, edge.source_handle, is_call=is_call) for entry in entries.values())
        return Supplied(items=sum(item is not None for items in given for item in items), may_grow=is_open)
