"""Proof that the streams of a stored run are whole: what the log says was recorded is kept, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.graph.model import DEFAULT_OUTPUT
from perdure.graph.plan import NodePlan, Plan
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.dump import Dump, KeptEntries, Violation, violation
from perdure.journal.flow import Range, batch_digest
from perdure.journal.lineage import lineage
from perdure.journal.projection import Projection
from perdure.journal.readiness import is_read_out
from perdure.journal.states import NodeState, NodeStatus, RunStatus


class _Told(msgspec.Struct):
    """What the log says of a node's stream."""

    branch_id: BranchId
    batches: dict[Seq, e.OutboxEnqueued] = msgspec.field(default_factory=dict[Seq, e.OutboxEnqueued])
    saved: dict[Seq, e.OutboxEnqueued] = msgspec.field(default_factory=dict[Seq, e.OutboxEnqueued])
    """Those that were there when the node took its last checkpoint."""

    @property
    def ranges(self) -> list[Range]:
        return sorted(found for batch in self.batches.values() for found in batch.ranges)


def streams_are_whole(dump: Dump) -> Iterator[Violation]:
    """Check I18 (messages are conserved), I19 and I20 (items of an edge come from one stream, and readers from whole ones)."""
    told = _told(dump)
    nodes = {node.node_id: node for node in dump.current_nodes}
    yield from _rows_are_told(dump, told, nodes)
    for node_id, stream in told.items():
        yield from _positions_are_unique(node_id, stream, nodes[node_id])
    if dump.plan is not None:
        for node in nodes.values():
            yield from _completed_from_whole(node, nodes, dump.plan)


def _told(dump: Dump) -> dict[NodeId, _Told]:
    told: dict[NodeId, _Told] = {}
    for entry in lineage(dump.events):
        match entry.event:
            case e.NodeStarted(node_id=node_id, streams=True) if node_id not in told:
                told[node_id] = _Told(entry.branch_id)
            case e.NodeStarted(node_id=node_id, anew=True):
                told[node_id].batches = dict(told[node_id].saved)
            case e.NodeCheckpointed(node_id=node_id) if node_id in told:
                told[node_id].saved = dict(told[node_id].batches)
            case e.BranchCreated(branch_id=branch_id, dropped=dropped, replayed=replayed, restored=restored):
                for node_id in dropped:
                    told.pop(node_id, None)
                for stream in told.values() if restored else ():
                    stream.branch_id = branch_id
                if replayed is not None:
                    told[replayed] = _Told(branch_id)
                for node_id, kept in entry.event.items.items():
                    told[node_id] = _told_by_branch(node_id, kept, branch_id, entry.seq)
            case e.OutboxEnqueued(node_id=node_id) if node_id in told:
                told[node_id].batches[entry.seq] = entry.event
            case _:
                pass
    return told


def _told_by_branch(node_id: NodeId, kept: e.KeptItems, branch_id: BranchId, seq: Seq) -> _Told:
    """Return what a branch says of a stream that it keeps in rows of its own."""
    batch = e.OutboxEnqueued(node_id=node_id, attempt=0, ranges=kept.ranges, digest=kept.digest)
    batches = {seq: batch} if kept.ranges else {}
    return _Told(branch_id, batches, dict(batches))


def _rows_are_told(dump: Dump, told: dict[NodeId, _Told], nodes: dict[NodeId, NodeState]) -> Iterator[Violation]:
    """Check that the rows of each stream are those that its events tell, or all gone once nobody needs them."""
    kept: dict[tuple[NodeId, BranchId], dict[Seq, list[KeptEntries]]] = {}
    for row in dump.kept:
        kept.setdefault((row.node_id, row.branch_id), {}).setdefault(row.seq, []).append(row)
    projection = Projection(dump.run, nodes.values())
    for node_id, stream in told.items():
        rows = kept.pop((node_id, stream.branch_id), {})
        if not rows and dump.plan is not None and is_read_out(node_id, dump.plan, projection):
            continue
        if rows and dump.run.status is RunStatus.COMPLETED:
            yield violation("I18", f"entries of {node_id!r} are kept although nobody needs them any more")
        yield from _batches_are_kept(node_id, stream, rows)
    for node_id, branch_id in kept:
        if branch_id == dump.run.branch_id:
            yield violation("I18", f"entries of {node_id!r} are kept of which the log says nothing")


def _batches_are_kept(node_id: NodeId, stream: _Told, rows: dict[Seq, list[KeptEntries]]) -> Iterator[Violation]:
    if rows.keys() != stream.batches.keys():
        yield violation(
            "I18", f"the log tells {len(stream.batches)} batches of {node_id!r}, the table has {len(rows)}, or others"
        )
        return
    for seq, batch in stream.batches.items():
        found = sorted(rows[seq], key=lambda row: row.position)
        if [(row.position, row.count) for row in found] != sorted(batch.ranges):
            yield violation(
                "I18", f"the entries of {node_id!r} recorded at {seq} are not at the positions that it tells"
            )
        elif batch_digest(row.content for row in found) != batch.digest:
            yield violation("I18", f"the entries of {node_id!r} recorded at {seq} are not what was recorded")


def _positions_are_unique(node_id: NodeId, stream: _Told, node: NodeState) -> Iterator[Violation]:
    expected = 0
    is_closed = node.stream is not None and node.stream.is_closed
    for first, count in stream.ranges:
        if first < expected:
            yield violation("I19", f"position {first} of {node_id!r} was recorded twice")
        elif first > expected and is_closed:
            yield violation("I20", f"the stream of {node_id!r} is closed, but position {expected} is missing")
        expected = max(expected, first + count)


def _completed_from_whole(node: NodeState, nodes: dict[NodeId, NodeState], plan: Plan) -> Iterator[Violation]:
    """Check that a node that maps over streams was completed only when they were whole, and has an entry for each item."""
    node_plan: NodePlan | None = plan.nodes.get(node.node_id)
    if node_plan is None or node_plan.flow is None or node.status is not NodeStatus.COMPLETED or node.stream is None:
        return
    if node_plan.emits and not node.stream.is_closed:
        yield violation("I20", f"node {node.node_id!r} is completed, but its stream was never closed")
    mapped = [edge for edge in node_plan.flow.live if edge.mode == "map"]
    # Where leftovers are dropped, the shortest is enough: one of the streams, or a list.
    is_cut_short = node_plan.flow.leftovers == "drop" and (
        len(mapped) < len(node_plan.flow.mapped) or any(_is_closed(nodes.get(edge.source)) for edge in mapped)
    )
    for edge in mapped:
        source = nodes.get(edge.source)
        if source is None or source.stream is None:
            continue
        if not source.stream.is_closed and not is_cut_short and not node.stream.is_unread:
            yield violation(
                "I20", f"node {node.node_id!r} is completed, but the stream of {edge.source!r} is not whole"
            )
        is_one_to_one = node_plan.flow.join is None and _has_one_item_each(plan.nodes[edge.source], source)
        if is_one_to_one and not node.stream.is_unread and node.stream.entries != source.stream.entries:
            yield violation(
                "I20",
                f"node {node.node_id!r} has {node.stream.entries} entries for {source.stream.entries} of {edge.source!r}",
            )


def _is_closed(node: NodeState | None) -> bool:
    return node is not None and node.stream is not None and node.stream.is_closed


def _has_one_item_each(plan: NodePlan, node: NodeState) -> bool:
    """Whether each entry of a node is one item, or a hole: it is called per item, or yields on its one output alone."""
    if plan.flow is None or not plan.flow.is_generator:
        return True
    names = {name for name in node.outputs or () if "/" not in name and not name.endswith("?")}
    return not plan.flow.mapped and names == {DEFAULT_OUTPUT}
