"""Proof that a stored run is whole: its log obeys the law, and adds up to its tables row for row.

Each check is an invariant of the reliability notes, by its number. They look at a dump of one run and nothing else, so
they hold for a live database, a backup, and what is left after a test has killed everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from perdure.errors import JournalError
from perdure.graph.model import INPUT
from perdure.graph.plan import Plan
from perdure.ids import NodeId, Seq
from perdure.journal import events as e
from perdure.journal.auditcheck import events_fit, is_audited, kept_items_add_up, rows_fit
from perdure.journal.branching import branch_state
from perdure.journal.checkpointcheck import checkpoints_are_right
from perdure.journal.deletion import is_deleted
from perdure.journal.dump import Dump, Violation, violation
from perdure.journal.evolve import PROGRESS, create_run
from perdure.journal.lineage import lineage, lines, places_gone_back_to
from perdure.journal.projection import Projection, fold
from perdure.journal.readiness import chosen, is_open
from perdure.journal.states import ENDED, MOVING, SETTLED, TERMINAL, BranchState, NodeStatus, RunStatus
from perdure.journal.streamcheck import streams_are_whole
from perdure.journal.turns import Turns
from perdure.journal.waitcheck import waits_are_right, waits_stand_right

__all__ = ["Dump", "Violation", "verify"]


def verify(dump: Dump) -> list[Violation]:
    """Return everything that is wrong with the run, nothing if it is whole. Of one whose values were deleted, nothing can be
    proved that depends on them; of one whose log is written on the side, nothing that needs all of it."""
    checks = _AUDIT_CHECKS if is_audited(dump) else _CHECKS
    if is_deleted(dump.events):
        checks = [check for check in checks if check not in _OF_VALUES]
    return [violation for check in checks for violation in check(dump)]


Check = Callable[[Dump], Iterator[Violation]]


def _log_is_gapless(dump: Dump) -> Iterator[Violation]:
    numbers = [entry.seq for entry in dump.events]
    if numbers != list(range(1, dump.run.last_seq + 1)):
        yield violation("I1", f"the log has events {_ranges(numbers)}, the run says 1 to {dump.run.last_seq}")
    for entry_id, count in Counter(entry.id for entry in dump.events).items():
        if count > 1:
            yield violation("I1", f"event id {entry_id} occurs {count} times")


def _log_begins_with_its_birth(dump: Dump) -> Iterator[Violation]:
    births = [entry for entry in dump.events if isinstance(entry.event, e.RunCreated)]
    if len(births) != 1 or births[0].seq != 1:
        yield violation("I2", f"RunCreated occurs at {[entry.seq for entry in births]} instead of once, at 1")
        return
    created = births[0].event
    assert isinstance(created, e.RunCreated)
    version, graph_hash = _followed(dump, created)
    if dump.version_hash is None:
        yield violation("I2", f"version {version} of workflow {created.workflow!r} is not in the store")
    elif graph_hash != dump.version_hash:
        yield violation("I2", f"the stored version has hash {dump.version_hash}, the run follows {graph_hash}")


def _followed(dump: Dump, created: e.RunCreated) -> tuple[int, str]:
    """Return the version that a run follows by its log: the one from which it was started, until somebody has chosen another."""
    for entry in reversed(dump.events):
        event = entry.event
        if isinstance(event, e.BranchActivated | e.RunRecovered) and event.version is not None:
            return event.version, event.graph_hash
    return created.version, created.graph_hash


def _alias_was_asked_once(dump: Dump) -> Iterator[Violation]:
    told = [event for entry in dump.events if isinstance(event := entry.event, e.VersionResolved)]
    if len(told) > 1:
        yield violation("I2", f"what an alias meant is told {len(told)} times instead of once")
    created = dump.events[0].event if dump.events else None
    if not isinstance(created, e.RunCreated):
        return  # reported above
    for event in told:
        if (event.workflow, event.version) != (created.workflow, created.version):
            followed = f"version {created.version} of workflow {created.workflow!r}"
            meant = f"version {event.version} of {event.workflow!r}"
            yield violation("I2", f"the run was started from {followed}, and {event.alias!r} meant {meant}")


def _log_adds_up_to_the_tables(dump: Dump) -> Iterator[Violation]:
    try:
        folded = fold(dump.run.run_id, dump.events)
    except JournalError as error:
        yield violation("I6", str(error))
        return
    yield from _differences("I4", "the run", folded.run, dump.run)
    stored = {node.node_id: node for node in dump.current_nodes}
    for node_id in folded.nodes.keys() | stored.keys():
        if node_id not in stored:
            yield violation("I4", f"node {node_id!r} has events but no row")
        elif node_id not in folded.nodes:
            yield violation("I4", f"node {node_id!r} has a row but no events")
        else:
            yield from _differences("I4", f"node {node_id!r}", folded.nodes[node_id], stored[node_id])
    if folded.steps != dump.steps:
        yield violation("I4", f"the log has {len(folded.steps)} steps, the table {len(dump.steps)}, or they differ")
    yield from _waits_add_up(dump, folded)
    yield from _branches_add_up(dump)


def _branches_add_up(dump: Dump) -> Iterator[Violation]:
    first = dump.events[0]
    told = [BranchState(branch_id=first.branch_id, seq=Seq(1))]
    for entry in dump.events:
        if isinstance(entry.event, e.BranchCreated):
            told.append(branch_state(entry.event, seq=entry.seq, at=entry.at))
    if told != list(dump.branches):
        yield violation(
            "I4", f"the log tells {len(told)} lines of history, the table {len(dump.branches)}, or they differ"
        )


def _waits_add_up(dump: Dump, folded: Projection) -> Iterator[Violation]:
    stored = {wait.wait_id: wait for wait in dump.waits}
    expected = {wait.wait_id: wait for wait in folded.waits}
    for wait_id in expected.keys() | stored.keys():
        if wait_id not in stored:
            yield violation("I4", f"wait {wait_id!r} has events but no row")
        elif wait_id not in expected:
            yield violation("I4", f"wait {wait_id!r} has a row but no events")
        else:
            yield from _differences("I4", f"wait {wait_id!r}", expected[wait_id], stored[wait_id])
    if list(folded.waits.signals) != list(dump.signals):
        yield violation("I4", "the signals in the table are not those of the log")


def _rows_know_their_last_event(dump: Dump) -> Iterator[Violation]:
    last: dict[NodeId, Seq] = {}
    for entry in lineage(dump.events):
        if isinstance(entry.event, e.NodeEvent):
            last[entry.event.node_id] = entry.seq
        elif isinstance(entry.event, e.BranchCreated):
            last.update(dict.fromkeys((*entry.event.dropped, *entry.event.retried), entry.seq))
            if entry.event.replayed is not None:
                last[entry.event.replayed] = entry.seq
    for node in dump.current_nodes:
        if node.last_seq != last.get(node.node_id, node.last_seq):
            yield violation(
                "I5", f"node {node.node_id!r} says event {node.last_seq}, its last one is {last[node.node_id]}"
            )


def _ends_once(dump: Dump) -> Iterator[Violation]:
    ends = [entry for entry in dump.events if isinstance(entry.event, e.TERMINAL_EVENTS)]
    for branch_id, count in Counter(entry.branch_id for entry in ends).items():
        if count > 1:
            yield violation("I7", f"branch {branch_id} ends {count} times")
    for end in ends:
        for entry in dump.events[end.seq :]:
            if entry.branch_id == end.branch_id and not isinstance(entry.event, e.AUDIT_EVENTS):
                yield violation("I7", f"{e.type_of(entry.event)} at {entry.seq} follows the end at {end.seq}")


def _status_is_derived(dump: Dump) -> Iterator[Violation]:
    live = [
        node.node_id for node in dump.current_nodes if node.status not in ENDED and node.status is not NodeStatus.IDLE
    ]
    if dump.run.status in TERMINAL and live:
        yield violation("I8", f"the run has ended but {_some(live)} have not")
    if dump.run.status is RunStatus.COMPLETED and dump.plan is not None:
        settled = {node.node_id for node in dump.current_nodes if node.status in SETTLED}
        if open_nodes := sorted(dump.plan.nodes.keys() - settled):
            yield violation("I8", f"the run is completed but {_some(open_nodes)} are not")
    if dump.run.status is RunStatus.FAILED and dump.run.error is None:
        yield violation("I8", "the run failed without an error")


def _attempts_are_numbered(dump: Dump) -> Iterator[Violation]:
    for line in lines(dump.events):
        yield from _attempts_of_line(line)
    ended = Counter(
        (entry.branch_id, entry.event.node_id, entry.event.attempt)
        for entry in dump.events
        if isinstance(entry.event, e.NodeCompleted | e.NodeFailed | e.AttemptLost)
    )
    for (_, node_id, attempt), count in ended.items():
        if count > 1:
            yield violation("I9", f"attempt {attempt} of {node_id!r} ended {count} times")


def _attempts_of_line(line: Sequence[e.Recorded]) -> Iterator[Violation]:
    scheduled: dict[NodeId, int] = {}
    started: dict[NodeId, int] = {}
    for entry in line:
        match entry.event:
            case e.BranchCreated(dropped=dropped, restored=restored):
                for node_id in dropped:
                    scheduled.pop(node_id, None)
                    started.pop(node_id, None)
                for node_id in set(entry.event.retried).difference(entry.event.in_doubt) if restored else ():
                    scheduled[node_id] = scheduled.get(node_id, 0) + 1
            case e.NodeScheduled(node_id=node_id, attempt=attempt):
                if attempt != scheduled.get(node_id, 0) + 1:
                    yield violation(
                        "I9", f"attempt {attempt} of {node_id!r} follows attempt {scheduled.get(node_id, 0)}"
                    )
                scheduled[node_id] = attempt
            case e.NodeStarted(node_id=node_id, attempt=attempt):
                if attempt != scheduled.get(node_id) or started.get(node_id) == attempt:
                    yield violation("I9", f"attempt {attempt} of {node_id!r} was started out of order")
                started[node_id] = attempt
            case e.NodeResolved(node_id=node_id, attempt=attempt, resolution="retry"):
                scheduled[node_id] = attempt + 1
            case _:
                pass


def _completes_once(dump: Dump) -> Iterator[Violation]:
    completions = Counter(
        (entry.branch_id, entry.event.node_id) for entry in dump.events if isinstance(entry.event, e.NodeCompleted)
    )
    for (_, node_id), count in completions.items():
        if count > 1:
            yield violation("I10", f"node {node_id!r} was completed {count} times")


def _budgets_hold(dump: Dump) -> Iterator[Violation]:
    losses = 0
    for entry in dump.events:
        match entry.event:
            case e.RunClaimed(lost=True):
                losses += 1
            case e.RunResumed() | e.RunReopened() | e.RunCancelling() | e.RunFailing():
                losses = 0
            case e.BranchCreated(restored=True):
                losses = 0
            case event if type(event) in PROGRESS:
                losses = 0
            case e.RunQuarantined(parked=True):
                losses = 0
            case e.RunQuarantined(recoveries=recoveries):
                allowed = dump.run.settings.max_recoveries
                if recoveries != allowed + 1 or losses != recoveries:
                    yield violation(
                        "I11", f"quarantined after {losses} losses ({recoveries} counted), {allowed} are allowed"
                    )
                losses = 0
            case _:
                pass
    if losses > dump.run.settings.max_recoveries and dump.run.status not in (
        RunStatus.CANCELLING,
        RunStatus.FAILING,
        *TERMINAL,
    ):
        yield violation("I11", f"lost {losses} times without progress and not quarantined")


def _epochs_rise_with_claims(dump: Dump) -> Iterator[Violation]:
    epoch = 0
    for entry in dump.events:
        if isinstance(entry.event, e.RunClaimed):
            if entry.epoch != epoch + 1 or entry.event.epoch != entry.epoch:
                yield violation("I12", f"the claim at {entry.seq} has epoch {entry.epoch} after {epoch}")
            epoch = entry.epoch
        elif entry.epoch != epoch:
            yield violation("I12", f"event {entry.seq} has epoch {entry.epoch}, the last claim has {epoch}")
    if epoch != dump.run.epoch:
        yield violation("I12", f"the run has epoch {dump.run.epoch}, its last claim {epoch}")


def _resting_runs_are_free(dump: Dump) -> Iterator[Violation]:
    if dump.run.status not in MOVING and dump.owner is not None:
        yield violation("I15", f"the run is {dump.run.status.value} and still owned by {dump.owner}")


def _nodes_start_when_ready(dump: Dump) -> Iterator[Violation]:
    if dump.plan is None or not dump.events or not isinstance(dump.events[0].event, e.RunCreated):
        return
    first = dump.events[0]
    created = first.event
    assert isinstance(created, e.RunCreated)
    projection = Projection(
        create_run(dump.run.run_id, created, at=first.at, branch_id=first.branch_id, epoch=first.epoch)
    )
    plan, places = _plan_at(dump, projection), places_gone_back_to(dump.events)
    turns = None if plan is None else Turns(plan)
    for entry in dump.events[1:]:
        event = entry.event
        if projection.run.last_seq in places:
            projection.remember()
        if isinstance(event, e.NodeScheduled) and event.attempt == 1 and plan is not None:
            for source in _missing_for(event.node_id, plan, projection):
                yield violation("I16", f"{event.node_id!r} was scheduled at {entry.seq} before {source!r} had settled")
        try:
            projection.apply(event, at=entry.at)
        except JournalError:
            return  # reported as I6
        if isinstance(event, e.BranchActivated | e.RunRecovered) and event.version is not None:
            plan = _plan_at(dump, projection)
            turns = None if plan is None else Turns(plan)
            if turns is not None:
                turns.branched(projection, entry.seq)
        if turns is not None:
            yield from _in_turn(turns, entry, projection)
    nodes = [node for node in projection.nodes.values() if plan is not None and node.node_id in plan.nodes]
    is_over = all(node.status in ENDED for node in nodes) and turns is not None and turns.is_empty
    if projection.run.status is RunStatus.RUNNING and is_over:
        yield violation("I17", "the run is running but nothing in it can move")


def _plan_at(dump: Dump, projection: Projection) -> Plan | None:
    """Return what a run has followed at a place of its log; None if that is not there any more."""
    is_switched = any(isinstance(entry.event, e.BranchActivated) and entry.event.version for entry in dump.events)
    if not is_switched or projection.run.graph_hash == dump.version_hash:
        return dump.plan
    return dump.earlier.get(projection.run.graph_hash)


def _nodes_stand_on_others(dump: Dump) -> Iterator[Violation]:
    """Check as far as rows tell that nothing was begun before what it needs."""
    if dump.plan is None:
        return
    projection = Projection(dump.run, dump.current_nodes)
    for node in dump.current_nodes:
        if node.status in (NodeStatus.IDLE, NodeStatus.SKIPPED, NodeStatus.CANCELLED):
            continue
        for source in _missing_for(node.node_id, dump.plan, projection):
            if projection.node(source).stream is None:  # what is read item by item need not have ended
                yield violation("I16", f"{node.node_id!r} is {node.status.value}, and {source!r} has not settled")


def _in_turn(turns: Turns, entry: e.Recorded, projection: Projection) -> Iterator[Violation]:
    event = entry.event
    if isinstance(event, e.BranchActivated):
        turns.branched(projection, entry.seq)
    elif isinstance(event, e.RunStarted | e.RunClaimed | e.RunRecovered | e.RunResumed | e.RunReopened):
        turns.begin(projection, entry.seq)
    elif isinstance(event, e.NodeScheduled | e.NodeSkipped) and (earlier := turns.decided(event.node_id)) is not None:
        yield violation("I17", f"node {earlier!r} could be scheduled or skipped, and {event.node_id!r} was before it")
    if isinstance(event, e.NodeStarted | e.NodeSkipped):
        turns.opened(event.node_id, projection, entry.seq)
    if isinstance(event, e.NodeEvent) and _settles(event):
        turns.settled(event.node_id, projection, entry.seq)


def _settles(event: e.NodeEvent) -> bool:
    is_resolved = isinstance(event, e.NodeResolved) and event.resolution == "done"
    return is_resolved or isinstance(event, e.NodeCompleted | e.NodeSkipped)


def _missing_for(node_id: NodeId, plan: Plan, projection: Projection) -> Iterator[NodeId]:
    node = plan.nodes.get(node_id)
    if node is None:
        yield NodeId(f"{node_id} (not in the graph)")
        return
    for binding in node.bindings:
        edges = binding.edges if binding.kind != "first" else (chosen(binding, projection),)
        for edge in edges:
            source: Any = getattr(edge, "source", None)
            if source is not None and source != INPUT and projection.node(source).status not in SETTLED:
                yield source
    for source in node.opened_by:
        if projection.status(source) is not NodeStatus.SKIPPED and not is_open(source, projection):
            yield source
    for edge in (*node.conditions, *node.order_only):
        if edge.source != INPUT and projection.node(edge.source).status not in SETTLED:
            yield edge.source


def _blobs_are_there(dump: Dump) -> Iterator[Violation]:
    for digest in dump.lost_blobs:
        yield violation("I29", f"blob {digest} is missing or damaged")
    for digest in dump.unused_blobs:
        yield violation("I29", f"a value refers to blob {digest}, which is not recorded as used by the run")


_CHECKS: Sequence[Check] = (
    _log_is_gapless,
    _log_begins_with_its_birth,
    _alias_was_asked_once,
    _log_adds_up_to_the_tables,
    _rows_know_their_last_event,
    _ends_once,
    _status_is_derived,
    _attempts_are_numbered,
    _completes_once,
    _budgets_hold,
    _epochs_rise_with_claims,
    _resting_runs_are_free,
    _nodes_start_when_ready,
    streams_are_whole,
    waits_are_right,
    checkpoints_are_right,
    _blobs_are_there,
)

_AUDIT_CHECKS: Sequence[Check] = (
    rows_fit,
    events_fit,
    _status_is_derived,
    _completes_once,
    _resting_runs_are_free,
    _nodes_stand_on_others,
    kept_items_add_up,
    waits_stand_right,
    _blobs_are_there,
)
"""What holds without a log."""

_OF_VALUES = frozenset((_nodes_start_when_ready, _nodes_stand_on_others, streams_are_whole, kept_items_add_up))


def _differences(invariant: str, what: str, folded: msgspec.Struct, stored: msgspec.Struct) -> Iterator[Violation]:
    for name in folded.__struct_fields__:
        expected, found = getattr(folded, name), getattr(stored, name)
        if expected != found:
            yield violation(invariant, f"{what}: {name} is {_shown(found)} in the table, {_shown(expected)} by the log")


def _shown(value: object) -> str:
    return str(value) if isinstance(value, StrEnum) else repr(value)


def _ranges(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    return f"{numbers[0]} to {numbers[-1]} ({len(numbers)} of them)"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
