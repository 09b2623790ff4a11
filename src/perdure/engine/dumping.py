"""A stored run as the checks of the journal look at it: `verify`, and the doctor."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import GraphError
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
from perdure.graph.plan import compile_plan
from perdure.graph.writing import content_hash
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.journal.dump import Dump, KeptEntries
from perdure.store.shapes import RunDump
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
        kept=tuple(_kept(row) for row in stored.items),
        lost_blobs=tuple(lost_blobs),
        unused_blobs=tuple(unused_blobs),
    )


def generators_of(stored: RunDump) -> set[NodeId]:
    """Return the nodes that are generators, as the log tells: their types may not be here."""
    generators: set[NodeId] = set()
    for entry in stored.events:
        match entry.event:
            case e.NodeStarted(node_id=node_id, generates=True):
                generators.add(node_id)
            case e.BranchCreated(items=items):
                generators.update(node_id for node_id, kept in items.items() if kept.generates)
            case _:
                pass
    return generators


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
