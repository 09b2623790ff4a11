"""The triggers of runs, for those who look at them: what feeds each run from outside, and how far it has been read.

Nothing here drives a run or needs its code. That a node of a user's own type is a trigger stands in the log.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from perdure.engine.inspect import iso_time, load_graph
from perdure.engine.runs.sources import TRIGGERS, registered
from perdure.graph.model import BUILT_IN, Graph, Node
from perdure.ids import NodeId, RunId
from perdure.journal import events as e
from perdure.journal.states import TERMINAL, NodeState, NodeStatus, RunStatus, WaitStatus
from perdure.store.base import Store
from perdure.store.shapes import RunFilter, StoredRun

LIVING = tuple(status for status in RunStatus if status not in TERMINAL)
PAGE = 200


class TriggerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger of a run as other programs read it. The cursor is in its stored form."""

    run_id: RunId
    workflow: str
    run_status: RunStatus
    node_id: NodeId
    type: str
    config: dict[str, Any]
    """What stands in the graph for it, without passwords."""
    status: NodeStatus
    cursor: e.Encoded | None
    """How far the outside has been read; None if nothing has come, or it is not known."""
    inputs: int
    """How many inputs have come."""
    next_at: str | None
    """When it goes on by itself, if it waits for that."""


async def triggers_of(store: Store, stored: StoredRun) -> list[TriggerReport]:
    """Return the triggers of a run, in the order of its graph; nothing if that is gone."""
    graph = await load_graph(store, stored.run)
    return [] if graph is None else await _reports(store, stored, graph)


async def living_triggers(store: Store, *, limit: int) -> list[TriggerReport]:
    """Return the triggers of all runs that have not ended, newest runs first, so many at most."""
    found: list[TriggerReport] = []
    graphs: dict[tuple[str, int], Graph | None] = {}
    before: tuple[int, str] | None = None
    while len(found) < limit:
        page = await store.list_runs(RunFilter(status=LIVING), before=before, limit=PAGE)
        if not page:
            break
        before = (page[-1].created_at, page[-1].run_id)
        for summary in page:
            version = (summary.workflow, summary.version)
            if version not in graphs:
                graphs[version] = await load_graph(store, summary)
            if (graph := graphs[version]) is not None and any(map(_may_be_trigger, graph.nodes)):
                stored = await store.load_run(summary.run_id)
                found += [] if stored is None else await _reports(store, stored, graph)
    return found[:limit]


async def _reports(store: Store, stored: StoredRun, graph: Graph) -> list[TriggerReport]:
    states = {state.node_id: state for state in stored.nodes}
    unclear = {node.id for node in graph.nodes if _may_be_trigger(node) and node.type not in TRIGGERS}
    given = {node_id for node_id in unclear if node_id in states and states[node_id].stream is not None}
    own = await registered(store, stored.run.run_id, given)
    return [
        _report(stored, node, states.get(node.id)) for node in graph.nodes if node.type in TRIGGERS or node.id in own
    ]


def _may_be_trigger(node: Node) -> bool:
    return node.type in TRIGGERS or node.type not in BUILT_IN


def _report(stored: StoredRun, node: Node, state: NodeState | None) -> TriggerReport:
    dues = [
        wait.due
        for wait in stored.waits
        if wait.node_id == node.id and wait.status is WaitStatus.OPEN and wait.due is not None
    ]
    has_ended = stored.run.status in TERMINAL
    return TriggerReport(
        run_id=stored.run.run_id,
        workflow=stored.run.workflow,
        run_status=stored.run.status,
        node_id=node.id,
        type=node.type,
        config={name: _without_password(value) for name, value in node.data.items()},
        status=NodeStatus.IDLE if state is None else state.status,
        cursor=None if state is None else state.checkpoint,
        inputs=0 if state is None or state.stream is None else state.stream.entries,
        next_at=None if has_ended else iso_time(min(dues, default=None)),
    )


def _without_password(value: Any) -> Any:
    if not isinstance(value, str) or "://" not in value:
        return value
    try:
        password = urlsplit(value).password
    except ValueError:  # it only looks like an address
        return value
    return value.replace(f":{password}@", ":***@", 1) if password else value
