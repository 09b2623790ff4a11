"""Which nodes of a run are fed from outside: the inputs of its workflow that are streams, and its triggers.

That a node of a user's own type is a trigger says its code, or the log once it has begun.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING

from perdure.graph.model import FED, FOLDER, INBOX, REDIS_STREAM, SCHEDULE
from perdure.graph.triggers import as_trigger
from perdure.ids import NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import NodeStatus
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

if TYPE_CHECKING:
    from perdure.engine.driving.catalogue import Prepared

TRIGGERS = frozenset((INBOX, SCHEDULE, FOLDER, REDIS_STREAM))
EVENTS_PER_PAGE = 500


async def sources(store: Store, stored: StoredRun, prepared: Prepared) -> list[NodeId]:
    """Return the nodes of a run that are fed from outside, those that have begun before those that have not. A trigger whose code
    is not here is known if it has begun."""
    types = prepared.types
    own = {name for name, node_type in types.items() if as_trigger(node_type.fn) is not None}
    begun = {node.node_id: node for node in stored.nodes if node.status is not NodeStatus.IDLE}
    unclear = [
        node.id
        for node in prepared.graph.nodes
        if node.type not in types and node.id in begun and begun[node.id].stream is not None
    ]
    told = await registered(store, stored.run.run_id, unclear)
    fed = FED | TRIGGERS | own
    found = [node.id for node in prepared.graph.nodes if node.type in fed or node.id in told]
    return sorted(found, key=lambda node_id: node_id not in begun)


async def registered(store: Store, run_id: RunId, candidates: Collection[NodeId]) -> set[NodeId]:
    """Return which of these nodes are triggers. That is recorded with the start of the first attempt, and no more is read."""
    found: set[NodeId] = set()
    pending = set(candidates)
    begun: NodeId | None = None
    if not pending:
        return found
    async for entry in log_of(store, run_id):
        if isinstance(entry.event, e.TriggerRegistered):
            found.add(entry.event.node_id)
        if begun is not None:
            pending.discard(begun)
        if not pending:
            break
        begun = entry.event.node_id if isinstance(entry.event, e.NodeStarted) else None
    return found & set(candidates)


async def log_of(store: Store, run_id: RunId) -> AsyncIterator[e.Recorded]:
    """Yield the events of a run, in order."""
    after = Seq(0)
    while page := await store.load_events(run_id, after=after, limit=EVENTS_PER_PAGE):
        for entry in page:
            yield entry
        after = page[-1].seq
