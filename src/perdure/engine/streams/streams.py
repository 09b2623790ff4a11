"""The streams of one run: what its nodes give item by item, who reads it, and what of it is on its way to the store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from perdure.engine.recording.machinery import Machinery
from perdure.engine.recording.patience import patiently
from perdure.engine.streams.entries import Entry, entries_of
from perdure.engine.streams.inbox import PAGE_ROWS, START, Inbox, Place, Spawn, View
from perdure.engine.streams.live import EdgeFacts
from perdure.engine.streams.outbox import MAX_AHEAD_BYTES, Batch, Outbox
from perdure.errors import JournalDamaged, StoreError
from perdure.graph.declare import NodeType
from perdure.graph.model import CONDITION, DEFAULT_OUTPUT, Edge
from perdure.graph.plan import NodePlan, Plan
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.decide import Decider
from perdure.journal.projection import Projection
from perdure.journal.values import truth_handle
from perdure.store.shapes import ItemRange
from perdure.store.transitions import ItemDrop, ItemRow


class Streams:
    """Keeps an outbox for every node that gives a stream, from the moment somebody needs it."""

    def __init__(
        self,
        plan: Plan,
        types: Mapping[str, NodeType[..., Any]],
        projection: Projection,
        machinery: Machinery,
        *,
        ranges: Iterable[ItemRange],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_put: Callable[[], None],
        on_storage_failed: Callable[[StoreError], None],
    ) -> None:
        self._plan = plan
        self._types = types
        self._projection = projection
        self._machinery = machinery
        self._spawn: Spawn = lambda read: spawn(_as_far_as_possible(read))
        self._on_put = on_put
        self._on_storage_failed = on_storage_failed
        self._outboxes: dict[NodeId, Outbox] = {}
        self._rows: list[ItemRow] = []
        self._batches: list[tuple[Outbox, Batch]] = []
        self._restored: dict[NodeId, list[ItemRange]] = {}
        self._at_hand: dict[NodeId, dict[int, Entry]] = {}
        """Entries that are rows of a branch which this process has begun, until somebody needs the stream."""
        for found in ranges:
            self._restored.setdefault(found.node_id, []).append(found)

    # Producers and readers

    def outbox(self, node_id: NodeId) -> Outbox:
        """Return what a node gives. Its stream is open."""
        if (known := self._outboxes.get(node_id)) is not None:
            return known
        plan = self._plan.nodes[node_id]
        stream = self._projection.node(node_id).stream
        assert stream is not None, "the stream of the node is open"
        assert plan.flow is not None, "only a node that knows streams has one"
        policy = plan.policy
        outbox = Outbox(
            node_id,
            stream.branch_id,
            is_ordered=policy.ordered or not plan.flow.mapped,
            is_held=policy.replay == "hold" and not plan.flow.mapped,
            on_put=self._on_put,
        )
        restored = [(found.position, found.count) for found in self._rows_of(node_id, stream.branch_id)]
        if (
            kept := sum(count for _, count in restored)
        ) != stream.entries:  # what is left must not be taken for all of it
            problem = f"of the {stream.entries} entries of the stream of {node_id!r}, {kept} are kept"
            raise JournalDamaged(self._projection.run.run_id, problem)
        outbox.restore(restored, is_closed=stream.is_closed, at_hand=self._at_hand.pop(node_id, {}))
        self._outboxes[node_id] = outbox
        return outbox

    def inbox(self, edge: Edge, *, start: int, on_news: Callable[[], None]) -> Inbox:
        """Return what arrives on an edge, from item number `start` on."""
        outbox = self.outbox(edge.source)
        reader = self._plan.nodes[edge.target]
        view = self._view(edge, reader)

        async def read_page(after: Place) -> Sequence[ItemRow]:
            return await self._read_page(outbox, after)

        inbox = Inbox(outbox, edge, view, read_page=read_page, spawn=self._spawn, on_news=on_news)
        if start:
            inbox.start_at(start, **self._place_of(outbox, view, start))
        outbox.readers.append(inbox)
        return inbox

    def edge_facts(self) -> Iterator[EdgeFacts]:
        """Yield how each stream flows to each of those who read it."""
        for outbox in self._outboxes.values():
            for reader in outbox.readers:
                yield reader.facts()

    async def read(self, outbox: Outbox, *, first: int = 0) -> AsyncGenerator[Entry]:
        """Yield the recorded entries of a stream in the order in which readers see them, without the first ones."""
        position = 0
        async for rows in self.pages(outbox):
            for row in rows:
                for entry in entries_of(row):
                    if position >= first:
                        yield entry
                    position += 1

    async def pages(self, outbox: Outbox) -> AsyncGenerator[Sequence[ItemRow]]:
        """Yield the rows of a stream in the order in which readers see them, some at a time."""
        after = START
        while rows := await self._read_page(outbox, after):
            yield rows
            after = (rows[-1].position, rows[-1].seq)

    def _view(self, edge: Edge, reader: NodePlan) -> View:
        source = self._plan.nodes[edge.source].flow
        assert source is not None, "the source of a live edge knows streams"
        assert reader.flow is not None, "its target as well"
        is_call = not source.is_generator
        keeps_holes = edge.mode != "stream" and reader.flow.join is None
        is_condition = edge.target_handle == CONDITION
        return View(
            handle=edge.source_handle,
            is_call=is_call,
            keeps_holes=keeps_holes,
            has_one_each=keeps_holes if is_call else self._has_one_item_each(edge.source),
            truth=truth_handle(edge.source_handle, edge.path) if is_condition else None,
        )

    def _rows_of(self, node_id: NodeId, branch_id: BranchId) -> list[ItemRange]:
        """Return where the entries are that others have recorded. Those of earlier branches are of other streams."""
        return [found for found in self._restored.get(node_id, ()) if found.branch_id == branch_id]

    def _place_of(self, outbox: Outbox, view: View, item: int) -> dict[str, Any]:
        """Return how much of a stream can be passed over unread on the way to an item."""
        if not outbox.is_ordered or not view.has_one_each:
            return {}
        rows = sorted(self._rows_of(outbox.node_id, outbox.branch_id), key=lambda row: row.position)
        behind = bisect_right([row.position + row.count for row in rows], item)
        if not behind:
            return {}
        last = rows[behind - 1]
        return {"entries": last.position + last.count, "after": (last.position, last.seq)}

    def _has_one_item_each(self, node_id: NodeId) -> bool:
        """Whether each entry of a generator is one item, so that the item has the position of the entry."""
        plan = self._plan.nodes[node_id]
        node_type = self._types[plan.node.type]
        is_mapped = plan.flow is not None and bool(plan.flow.mapped)
        return not is_mapped and [handle.name for handle in node_type.outputs] == [DEFAULT_OUTPUT]

    async def _read_page(self, outbox: Outbox, after: Place) -> Sequence[ItemRow]:
        async def read() -> Sequence[ItemRow]:
            return await self._machinery.store.load_items(
                self._projection.run.run_id,
                outbox.branch_id,
                outbox.node_id,
                after=after,
                in_order=outbox.is_ordered,
                limit=PAGE_ROWS,
            )

        return await patiently(read, self._machinery, self._on_storage_failed)

    # The way to the store

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that is not on its way to the store yet."""
        if not self._outboxes:  # as in nearly every run
            return bool(self._rows)
        return bool(self._rows) or any(outbox.is_dirty for outbox in self._outboxes.values())

    @property
    def is_empty(self) -> bool:
        """Whether no stream flows."""
        return not self._outboxes

    def record_all(self, decider: Decider, *, at: int) -> None:
        """Decide that everything that was given goes to the store."""
        for outbox in self._outboxes.values():
            if outbox.is_dirty:
                self._record(outbox, decider, at)

    def record(self, node_id: NodeId, decider: Decider, *, at: int) -> None:
        """As `record_all`, for one node."""
        outbox = self._outboxes.get(node_id)
        if outbox is not None and outbox.is_dirty:
            self._record(outbox, decider, at)

    def _record(self, outbox: Outbox, decider: Decider, at: int) -> None:
        node = self._projection.node(outbox.node_id)
        if not decider.is_current(node.node_id, node.attempt):
            outbox.discard()
            return
        batch = outbox.cut(Seq(self._projection.run.last_seq + 1))
        decider.entries_recorded(node.node_id, node.attempt, batch.ranges, batch.digest, consumed=batch.consumed, at=at)
        self._rows += batch.rows
        self._batches.append((outbox, batch))

    def take(self, decider: Decider) -> tuple[tuple[ItemRow, ...], tuple[ItemDrop, ...], list[tuple[Outbox, Batch]]]:
        """Return the rows that go with what was decided, the streams whose rows are removed, and what is to be shown."""
        if not (self._rows or self._batches or decider.has_drops):
            return (), (), []
        rows, self._rows = self._rows, []
        batches, self._batches = self._batches, []
        drops: list[ItemDrop] = []
        for node, first in decider.take_drops():
            assert node.stream is not None, "only streams have entries"
            drops.append(ItemDrop(node_id=node.node_id, branch_id=node.stream.branch_id, first=first))
        if drops and rows:
            rows = [row for row in rows if not any(_removes(drop, row) for drop in drops)]
        return tuple(rows), tuple(drops), batches

    def begin_anew(self, node_id: NodeId) -> None:
        """Take back what was recorded of a stream after its last checkpoint, and nobody has seen."""
        stream = self._projection.node(node_id).stream
        assert stream is not None, "only a stream begins anew"
        first = stream.checkpointed
        self._restored[node_id] = [found for found in self._restored.get(node_id, ()) if found.position < first]
        if (outbox := self._outboxes.get(node_id)) is not None:
            outbox.cut_back(first)

    def bring(self, nodes: Collection[NodeId], rows: Sequence[ItemRow]) -> None:
        """Go on with entries of some nodes that are rows of a branch, and with nothing else that was known of their streams."""
        for node_id in nodes:
            self.forget(node_id)
        self._take_note(rows)
        for node_id in nodes:
            own = [row for row in rows if row.node_id == node_id]
            if sum(len(bytes(row.items)) for row in own) <= MAX_AHEAD_BYTES:
                self._at_hand[node_id] = {
                    position: entry for row in own for position, entry in enumerate(entries_of(row), start=row.position)
                }

    def bring_back(self, rows: Sequence[ItemRow]) -> None:
        """Go on with entries that are copied to a branch, and with nothing else that was known of streams."""
        self._outboxes.clear()
        self._restored.clear()
        self._at_hand.clear()
        self._take_note(rows)

    def _take_note(self, rows: Sequence[ItemRow]) -> None:
        for row in rows:
            place = ItemRange(
                node_id=row.node_id, branch_id=row.branch_id, position=row.position, count=row.count, seq=row.seq
            )
            self._restored.setdefault(row.node_id, []).append(place)
        self._rows += rows

    def forget(self, node_id: NodeId) -> None:
        """Keep nothing of a node's stream in memory."""
        self._outboxes.pop(node_id, None)
        self._restored.pop(node_id, None)
        self._at_hand.pop(node_id, None)


def _removes(drop: ItemDrop, row: ItemRow) -> bool:
    return (drop.node_id, drop.branch_id) == (row.node_id, row.branch_id) and row.position >= drop.first


async def _as_far_as_possible(read: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with suppress(StoreError):  # whoever drives the run has heard of it
        await read()
