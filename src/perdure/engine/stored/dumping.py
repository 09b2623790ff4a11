"""A stored run as the checks of the journal look at it: `verify`, and the doctor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import GraphError
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
from perdure.graph.plan import Plan, compile_plan
from perdure.graph.writing import content_hash
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.dump import Dump, KeptEntries
from perdure.journal.followed import versions_followed
from perdure.store.base import Store
from perdure.store.shapes import RunDump, WorkflowVersion
from perdure.store.transitions import ItemRow


def dump_of(stored: RunDump, lost_blobs: Sequence[str] = (), unused_blobs: Sequence[str] = ()) -> Dump:
    """Return everything that is stored about a run as the checks of the journal look at it."""
    graph = None if stored.version is None else readable_graph(stored.version.graph)
    # Computed from the graph that is there: a stored hash would not show that somebody has changed the graph.
    version_hash = None if stored.version is None else "unreadable" if graph is None else content_hash(graph)
    return Dump(
        run=stored.stored.run,
        owner=stored.stored.owner,
        events=stored.events,
        nodes=stored.all_nodes,
        steps={(step.node_id, step.name, step.occurrence): step.result for step in stored.stored.steps},
        waits=stored.stored.waits,
        signals=stored.stored.signals,
        checkpoints=stored.checkpoints,
        branches=stored.branches,
        version_hash=version_hash,
        plan=None
        if graph is None
        else compile_plan(graph, {}, generators=generators_of(stored) | _sources(stored, graph)),
        earlier=_earlier(stored),
        kept=tuple(_kept(row) for row in stored.items),
        lost_blobs=tuple(lost_blobs),
        unused_blobs=tuple(unused_blobs),
    )


async def with_earlier(stored: RunDump, store: Store) -> RunDump:
    """Return what is stored about a run together with the versions that it has followed before."""
    run = stored.stored.run
    found: list[WorkflowVersion] = []
    for version, graph_hash in versions_followed(stored.events):
        saved = None if graph_hash == run.graph_hash else await store.load_version(run.workflow, version)
        if saved is not None and saved.graph_hash == graph_hash:
            found.append(saved)
    return msgspec.structs.replace(stored, earlier=tuple(found))


def generators_of(stored: RunDump) -> set[NodeId]:
    """Return the nodes that are generators in what a run follows, as the log tells: their types may not be here."""
    return _generators(stored)[1]


def _generators(stored: RunDump) -> tuple[dict[str, set[NodeId]], set[NodeId]]:
    """Return the nodes that are generators, by the hash of what the run followed then, and in the end. A node that begins again
    on another version may be something else there."""
    by_hash: dict[str, set[NodeId]] = {}
    now: set[NodeId] = set()
    dropped: tuple[NodeId, ...] = ()
    for entry in stored.events:
        match entry.event:
            case e.RunCreated(graph_hash=graph_hash):
                now = by_hash.setdefault(graph_hash, set())
            case e.NodeStarted(node_id=node_id, generates=True):
                now.add(node_id)
            case e.BranchCreated(items=items):
                now.update(node_id for node_id, kept in items.items() if kept.generates)
                dropped = entry.event.dropped
            case e.BranchActivated(version=int(), graph_hash=graph_hash):
                kept_on = now.difference(dropped)
                now = by_hash.setdefault(graph_hash, set())
                now |= kept_on
            case e.RunRecovered(version=int(), graph_hash=graph_hash):  # whatever has happened is the same there
                before, now = now, by_hash.setdefault(graph_hash, set())
                now |= before
            case _:
                pass
    return by_hash, now


def _earlier(stored: RunDump) -> dict[str, Plan]:
    by_hash = _generators(stored)[0] if stored.earlier else {}
    found: dict[str, Plan] = {}
    for version in stored.earlier:
        graph = readable_graph(version.graph)
        if graph is not None and content_hash(graph) == version.graph_hash:
            generators = by_hash.get(version.graph_hash, set())
            found[version.graph_hash] = compile_plan(graph, {}, generators=generators)
    return found


def _sources(stored: RunDump, graph: Graph) -> set[NodeId]:
    """Return the nodes that are generators by their rows, where the log may not tell: they give items, and read none."""
    if stored.stored.run.audit is None:
        return set()
    readers = {edge.target for edge in graph.edges if edge.mode is not None}
    return {node.node_id for node in stored.stored.nodes if node.stream is not None} - readers


def _kept(row: ItemRow) -> KeptEntries:
    return KeptEntries(
        node_id=row.node_id,
        branch_id=row.branch_id,
        position=row.position,
        count=row.count,
        seq=row.seq,
        content=bytes(row.items),
    )


def readable_graph(document: bytes) -> Graph | None:
    """Return a stored graph; None if it is none."""
    try:
        return graph_from_json(document)
    except GraphError:
        return None
