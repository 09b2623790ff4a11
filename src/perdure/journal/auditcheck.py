"""Proof that a run is whole whose tables alone count (`journal="audit"`): its rows agree with each other, and whatever its log
holds fits to them. That the log holds all of it is not asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from perdure.ids import BranchId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.dump import Dump, KeptEntries, Violation, violation
from perdure.journal.flow import batch_digest, chained
from perdure.journal.states import NodeState, NodeStatus, RunStatus

_ENDS: dict[type[e.Event], RunStatus] = {
    e.RunCompleted: RunStatus.COMPLETED,
    e.RunFailed: RunStatus.FAILED,
    e.RunCancelled: RunStatus.CANCELLED,
}


def is_audited(dump: Dump) -> bool:
    """Whether the log of a run is written on the side, by what was chosen for it or by its row."""
    return dump.run.audit is not None or dump.run.settings.journal == "audit"


def rows_fit(dump: Dump) -> Iterator[Violation]:
    """Check that the rows of a run are of one and the same state of it."""
    run = dump.run
    if run.audit is None or run.settings.journal != "audit":
        yield violation("I4", "what the run says of its log is not what was chosen for it")
    branches = {branch.branch_id for branch in dump.branches}
    if run.branch_id not in branches:
        yield violation("I4", f"the run is on branch {run.branch_id}, and has {sorted(branches)}")
    seqs: list[tuple[str, BranchId, Seq]] = [
        *((f"node {node.node_id!r}", node.branch_id, node.last_seq) for node in dump.nodes),
        *((f"wait {wait.wait_id!r}", run.branch_id, wait.last_seq) for wait in dump.waits),
        *((f"signal {signal.signal_id!r}", run.branch_id, signal.seq) for signal in dump.signals),
        *((f"an item of {row.node_id!r}", row.branch_id, row.seq) for row in dump.kept),
    ]
    for what, branch_id, seq in seqs:
        if not 1 <= seq <= run.last_seq:
            yield violation("I5", f"{what} says event {seq}, the run has come to {run.last_seq}")
        if branch_id not in branches:
            yield violation("I5", f"{what} is on branch {branch_id}, which the run does not have")
    if dump.version_hash is None:
        yield violation("I2", f"version {run.version} of workflow {run.workflow!r} is not in the store")
    elif dump.version_hash != run.graph_hash:
        yield violation("I2", f"the stored version has hash {dump.version_hash}, the run follows {run.graph_hash}")
    if dump.checkpoints:
        yield violation("I5", "the run has checkpoints, which are places in a log that may not be there")


def kept_items_add_up(dump: Dump) -> Iterator[Violation]:
    """Check that the items of each stream are those of which its node's row has the number and the digest."""
    kept: dict[tuple[NodeId, BranchId], list[KeptEntries]] = {}
    for row in dump.kept:
        kept.setdefault((row.node_id, row.branch_id), []).append(row)
    for node in dump.current_nodes:
        if node.stream is not None:
            yield from _stream_adds_up(node, kept.pop((node.node_id, node.stream.branch_id), []))
    for node_id, branch_id in kept:
        if branch_id == dump.run.branch_id:
            yield violation("I18", f"entries of {node_id!r} are kept of which its row says nothing")


def events_fit(dump: Dump) -> Iterator[Violation]:
    """Check the order, the kinds and the epochs of the events that are there."""
    run = dump.run
    for one, other in pairwise(dump.events):
        if one.seq >= other.seq:
            yield violation("I1", f"event {other.seq} follows event {one.seq}")
        if other.epoch < one.epoch:
            yield violation("I12", f"event {other.seq} has epoch {other.epoch}, event {one.seq} had {one.epoch}")
    for entry_id, count in Counter(entry.id for entry in dump.events).items():
        if count > 1:
            yield violation("I1", f"event id {entry_id} occurs {count} times")
    branches = {branch.branch_id for branch in dump.branches}
    for entry in dump.events:
        if not 1 <= entry.seq <= run.last_seq:
            yield violation("I1", f"the log has event {entry.seq}, the run has come to {run.last_seq}")
        if entry.epoch > run.epoch or (isinstance(entry.event, e.RunClaimed) and entry.event.epoch != entry.epoch):
            yield violation("I12", f"event {entry.seq} has epoch {entry.epoch}, the run has {run.epoch}")
        if entry.branch_id not in branches:
            yield violation("I5", f"event {entry.seq} is on branch {entry.branch_id}, which the run does not have")
        if isinstance(entry.event, e.RunCreated) != (entry.seq == 1):
            yield violation("I2", f"{e.type_of(entry.event)} stands at {entry.seq}")
    yield from _birth_fits(dump)
    yield from _ends_fit(dump)


def _birth_fits(dump: Dump) -> Iterator[Violation]:
    first, audit = (dump.events[0] if dump.events else None), dump.run.audit
    if first is not None and first.seq == 1 and audit is not None and first.id != audit.birth:
        yield violation("I2", f"the run began with event {audit.birth}, its log with {first.id}")


def _ends_fit(dump: Dump) -> Iterator[Violation]:
    ended: dict[BranchId, Seq] = {}
    for entry in dump.events:
        end = _ENDS.get(type(entry.event))
        if end is not None and entry.branch_id in ended:
            yield violation("I7", f"branch {entry.branch_id} ends twice, at {ended[entry.branch_id]} and {entry.seq}")
        elif entry.branch_id in ended and not isinstance(entry.event, e.AUDIT_EVENTS):
            yield violation("I7", f"{e.type_of(entry.event)} at {entry.seq} follows the end of its branch")
        if end is not None:
            ended.setdefault(entry.branch_id, entry.seq)
            if entry.branch_id == dump.run.branch_id and dump.run.status is not end:
                yield violation("I8", f"the run is {dump.run.status.value}, and its log has {e.type_of(entry.event)}")


def _stream_adds_up(node: NodeState, rows: list[KeptEntries]) -> Iterator[Violation]:
    stream = node.stream
    assert stream is not None, "only streams have entries"
    if not rows and (node.status is NodeStatus.COMPLETED or not stream.entries):
        return  # nobody needs them any more, or there were none
    rows.sort(key=lambda row: row.position)
    for one, other in pairwise(rows):
        if other.position < one.position + one.count:
            yield violation("I19", f"position {other.position} of {node.node_id!r} is kept twice")
    entries = sum(row.count for row in rows)
    if entries != stream.entries:
        yield violation("I18", f"{entries} entries of {node.node_id!r} are kept, its row has {stream.entries}")
    elif _digest(rows) != stream.digest:
        yield violation("I18", f"the entries of {node.node_id!r} are not those that were recorded")


def _digest(rows: list[KeptEntries]) -> str:
    """Return the digest of a stream, given its rows by position."""
    batches: dict[Seq, list[KeptEntries]] = {}
    for row in rows:
        batches.setdefault(row.seq, []).append(row)
    digest = ""
    for _, batch in sorted(batches.items()):
        digest = chained(digest, batch_digest(row.content for row in batch))
    return digest
