"""What a branch keeps of streams of which only some items begin again: read back from the rows in which they are, or from the one
value that a stream has become, and put into rows of the branch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from perdure.engine.attempts.failures import InputUnusable
from perdure.engine.attempts.values import Values
from perdure.engine.driving.goingback import JUMP, Back, is_switch
from perdure.engine.stored.past import EVENTS_PER_PAGE
from perdure.engine.streams.apart import taken_apart
from perdure.engine.streams.entries import Entry, entries_of, rows_of
from perdure.engine.streams.supply import Supplied, Supply
from perdure.errors import BlobDamaged, BlobMissing, CannotGoBack, JournalError, ValueNotReadable
from perdure.graph.plan import NodePlan, Plan
from perdure.ids import BranchId, CommandId, NodeId, RunId, Seq
from perdure.journal.decide import Decider
from perdure.journal.events import BranchCreated, ItemFailed, KeptItems, Recorded
from perdure.journal.flow import Range, batch_digest, bridged, positions_in
from perdure.journal.lineage import lineage
from perdure.journal.projection import Projection
from perdure.journal.repairing import Cone
from perdure.journal.states import MOVING, NodeState, NodeStatus
from perdure.journal.waiting import Waits
from perdure.store.base import Store
from perdure.store.shapes import StoredRun
from perdure.store.transitions import ItemRow

ROWS_PER_PAGE = 500
BEGINNING = (-1, -1)
MOST_NAMED = 5
"""How many items are named that are not there."""


class Reopening(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of streams, and the rows in which it is. They belong to a branch that is not there yet."""

    items: Mapping[NodeId, KeptItems]
    rows: tuple[ItemRow, ...]

    def rows_on(self, branch_id: BranchId, seq: Seq) -> list[ItemRow]:
        """Return the rows as they belong to a branch, created by this event."""
        return [msgspec.structs.replace(row, branch_id=branch_id, seq=seq) for row in self.rows]


def decider_of(stored: StoredRun, plan: Plan) -> Decider:
    """Return whoever decides about a run, to be asked what would follow."""
    return Decider(_projection_of(stored), plan)


async def load_reopenings(
    store: Store, values: Values, stored: StoredRun, plan: Plan
) -> Mapping[CommandId, Reopening | None]:
    """Return what is needed for a run that rests to go back to items where it was asked to, by command; None if it cannot. Who
    claims the run as it was loaded can rely on it: nobody has changed anything meanwhile."""
    found: dict[CommandId, Reopening | None] = {}
    for command in stored.commands if stored.run.status not in MOVING else ():
        if is_switch(command):  # it could not be, or it would be done
            found[command.command_id] = None
            continue
        if command.kind != JUMP or not (back := msgspec.convert(command.payload, Back)).items:
            continue
        found[command.command_id] = None
        decider = decider_of(stored, plan)
        if decider.why_not(back.change) is None:
            with suppress(CannotGoBack, JournalError, BlobMissing, BlobDamaged):
                cone = decider.cone_of_jump(back.change)
                found[command.command_id] = await load_reopening(store, values, stored, plan, cone)
    return found


async def load_reopening(store: Store, values: Values, stored: StoredRun, plan: Plan, cone: Cone) -> Reopening:
    """Return what is kept of streams if items begin again. Raises CannotGoBack if there are no such items, or it cannot be told
    which results are theirs."""
    reader = _Reader(store, values, stored, plan)
    items: dict[NodeId, KeptItems] = {}
    rows: list[ItemRow] = []
    for node_id, chosen in cone.items.items():
        entries = await reader.entries(node_id)
        if node_id == next(iter(cone.items)):
            await reader.require_there(node_id, chosen, entries)
        again = frozenset(positions_in(chosen))
        left = {position: entry for position, entry in entries.items() if position not in again}
        failed = len(await reader.failed(node_id) - again)
        items[node_id] = _kept(rows, plan.nodes[node_id], left, failed=failed, chosen=chosen)
    for node_id in cone.sources:
        if not await reader.has_rows(node_id):
            items[node_id] = _kept(rows, plan.nodes[node_id], await reader.entries(node_id))
    return Reopening(items=items, rows=tuple(rows))


def _projection_of(stored: StoredRun) -> Projection:
    return Projection(stored.run, stored.nodes, {}, Waits(stored.waits, stored.signals), stored.given)


def _kept(
    rows: list[ItemRow],
    plan: NodePlan,
    entries: Mapping[int, Entry],
    *,
    failed: int = 0,
    chosen: tuple[Range, ...] = (),
) -> KeptItems:
    """Put entries into rows, and return what is told of them."""
    own = rows_of(plan.node.id, BranchId(0), entries, Seq(0))
    rows += own
    renewed = bridged(chosen, entries)
    return KeptItems(
        ranges=tuple((row.position, row.count) for row in own),
        digest=batch_digest(bytes(row.items) for row in own) if own else "",
        failed=failed,
        chosen=chosen,
        renewed=tuple(renewed) if len(renewed) < len(chosen) else (),
        generates=plan.flow is not None and plan.flow.is_generator,
    )


class _Reader:
    """Reads what streams of a run have given, entry by entry."""

    def __init__(self, store: Store, values: Values, stored: StoredRun, plan: Plan) -> None:
        self._plan = plan
        self._store = store
        self._values = values
        self._run_id: RunId = stored.run.run_id
        self._nodes = {node.node_id: node for node in stored.nodes}
        self._supply = Supply(plan, _projection_of(stored), values, self.entries)
        self._counts: dict[tuple[NodeId, BranchId], int] | None = None
        self._log: list[Recorded] | None = None

    async def entries(self, node_id: NodeId) -> Mapping[int, Entry]:
        """Return the entries of a node's stream by position."""
        node = self._nodes[node_id]
        if await self.has_rows(node_id):
            return await self._entries_in_rows(node)
        if node.status is not NodeStatus.COMPLETED or node.outputs is None:
            raise self._refusal(f"items that {node_id!r} had done are not kept: go back to it as a whole")
        lists = {handle: await self._values.opened(value) for handle, value in node.outputs.items()}
        try:
            total = None if node.stream is None else node.stream.entries
            apart = taken_apart(lists, total, is_uneven=self._is_uneven(node_id))
        except LookupError:  # somebody has said that it has given something else
            apart = None
        if apart is None:
            raise self._refusal(
                f"not every item of {node_id!r} has given something, and which result is of which item is not known: go back "
                "to it as a whole"
            )
        return dict(enumerate(apart))

    def _is_uneven(self, node_id: NodeId) -> bool:
        """Whether an entry of a node may have several items on an output."""
        flow = self._plan.nodes[node_id].flow
        return flow is not None and flow.is_generator and bool(flow.mapped)

    async def has_rows(self, node_id: NodeId) -> bool:
        """Whether all that a stream has given is there item by item."""
        if self._counts is None:
            self._counts = {}
            for found in await self._store.load_ranges(self._run_id):
                key = (found.node_id, found.branch_id)
                self._counts[key] = self._counts.get(key, 0) + found.count
        stream = self._nodes[node_id].stream
        return stream is not None and self._counts.get((node_id, stream.branch_id), 0) == stream.entries

    async def failed(self, node_id: NodeId) -> set[int]:
        """Return which items of a stream were given up."""
        stream = self._nodes[node_id].stream
        if stream is None or not stream.failed:
            return set()
        failed: set[int] = set()
        for entry in await self._line():
            match entry.event:
                case ItemFailed(node_id=other, position=position, final=True, fails_node=False) if other == node_id:
                    failed.add(position)
                case BranchCreated(dropped=dropped) if node_id in dropped:
                    failed.clear()
                case BranchCreated(items=items) if (kept := items.get(node_id)) is not None:
                    failed.difference_update(positions_in(kept.chosen))
                case _:
                    pass
        return failed

    async def require_there(self, node_id: NodeId, chosen: tuple[Range, ...], entries: Mapping[int, Entry]) -> None:
        """Refuse items that there are not for a node."""
        there = Supplied(items=len(entries), may_grow=False)
        if self._nodes[node_id].status is not NodeStatus.COMPLETED:
            try:
                there = await self._supply.of(node_id)
            except (InputUnusable, ValueNotReadable) as error:
                raise self._refusal(f"there are no items of {node_id!r} to choose: {error}") from error
        if missing := [position for position in positions_in(chosen) if position >= there.items]:
            raise self._refusal(_not_there(node_id, missing, there))

    async def _entries_in_rows(self, node: NodeState) -> dict[int, Entry]:
        assert node.stream is not None, "only streams have entries"
        entries: dict[int, Entry] = {}
        after = BEGINNING
        while page := await self._store.load_items(
            self._run_id, node.stream.branch_id, node.node_id, after=after, in_order=True, limit=ROWS_PER_PAGE
        ):
            for row in page:
                entries |= enumerate(entries_of(row), start=row.position)
            after = (page[-1].position, page[-1].seq)
        return entries

    async def _line(self) -> list[Recorded]:
        if self._log is None:
            log: list[Recorded] = []
            while page := await self._store.load_events(
                self._run_id, after=log[-1].seq if log else Seq(0), limit=EVENTS_PER_PAGE
            ):
                log += page
            self._log = lineage(log)
        return self._log

    def _refusal(self, why: str) -> CannotGoBack:
        return CannotGoBack(self._run_id, why)


def _not_there(node_id: NodeId, missing: list[int], there: Supplied) -> str:
    named = ", ".join(map(str, missing[:MOST_NAMED])) + (" and others" if len(missing) > MOST_NAMED else "")
    so_far = " so far" if there.may_grow else ""
    if not there.items:
        return f"there is no item {named} of {node_id!r}: it has none{so_far}. Go back to it as a whole"
    has = f"it has {there.items:,}{so_far}, from 0 to {there.items - 1}"
    return f"there is no item {named} of {node_id!r}: {has}. Choose among those, or go back to it as a whole"
