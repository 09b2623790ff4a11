"""Transitions as what the commit statements take: JSON documents that they take apart again, or plain values for one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.ids import ROOT_BRANCH
from perdure.journal.events import NodeCompleted, NodeScheduled, NodeStarted, encode_event
from perdure.journal.states import NodeState, NodeStatus
from perdure.store import branches, checkpoints, rows, waits
from perdure.store.postgres.texts import needs_care, to_stored
from perdure.store.transitions import Claim, Release, Transition

Rows = list[tuple[Any, ...]]

_encoder = msgspec.json.Encoder()
_NO_ROWS = "[]"
_NO_STEP = ("", "", 0, 0, 0, _NO_ROWS, _NO_ROWS)
WRITING_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "step_run": _NO_STEP,
    "step_on": ("", "", 0, 0, "", 0, "", "", "", 0, "", "", "", 0, "", "", 0),
    "step_items": (*_NO_STEP, _NO_ROWS),
    "commit_group": ("", *(_NO_ROWS,) * 14),
}
"""What the statements of commits are given to write nothing: no run is in the project without a name."""


def is_step(transition: Transition) -> bool:
    """Whether `step_run` can write the transition, or `step_items` if it adds to streams."""
    return transition.only_steps and not (
        transition.steps
        or transition.past_steps
        or transition.blobs
        or transition.commands
        or transition.drops
        or transition.waits
        or transition.signals
        or transition.checkpoints
    )


def is_step_on(step: Transition) -> bool:
    """Whether `step_on` can write a step: one node has completed, and one has started of which nothing was recorded before."""
    if len(step.events) != 3 or len(step.nodes) != 2 or step.items:
        return False
    completed, scheduled, started = step.events
    done, begun = step.nodes
    return (
        type(completed.event) is NodeCompleted
        and type(scheduled.event) is NodeScheduled
        and type(started.event) is NodeStarted
        and completed.event.node_id == done.node_id
        and done.stream is None
        and begun
        == NodeState(
            node_id=scheduled.event.node_id,
            branch_id=ROOT_BRANCH,
            status=NodeStatus.RUNNING,
            attempt=1,
            scheduled_at=scheduled.at,
            started_at=started.at,
            last_seq=started.seq,
        )
    )


def step_on_values(project_id: str, step: Transition) -> tuple[Any, ...]:
    """Return what `step_on` takes."""
    completed, scheduled, started = step.events
    done, begun = step.nodes
    return (
        project_id,
        to_stored(step.run_id),
        step.epoch,
        step.base_seq,
        completed.id,
        completed.at,
        to_stored(done.node_id),
        to_stored(encode_event(completed.event)),
        scheduled.id,
        scheduled.at,
        to_stored(begun.node_id),
        to_stored(encode_event(scheduled.event)),
        started.id,
        started.at,
        to_stored(encode_event(started.event)),
        to_stored(rows.to_json(done.outputs)),
        done.duration_ms,
    )


def step_values(project_id: str, transition: Transition) -> tuple[Any, ...]:
    """Return what `step_run` takes."""
    key = (transition.run_id,)
    return (
        project_id,
        to_stored(transition.run_id),
        transition.epoch,
        transition.base_seq,
        transition.run.last_seq,
        encode_rows(rows.event_rows(key, transition.events)),
        encode_rows(rows.node_rows(key, transition.nodes)),
    )


def step_items_values(project_id: str, transition: Transition) -> tuple[Any, ...]:
    """Return what `step_items` takes."""
    items = encode_rows(rows.item_rows((transition.run_id,), transition.items))
    return (*step_values(project_id, transition), items)


def group_values(project_id: str, transitions: Sequence[Transition]) -> tuple[Any, ...]:
    """Return what `commit_group` takes."""
    moves: Rows = []
    births: Rows = []
    events: Rows = []
    nodes: Rows = []
    steps: Rows = []
    blobs: Rows = []
    commands: Rows = []
    drops: Rows = []
    items: Rows = []
    created: Rows = []
    awaited: Rows = []
    signals: Rows = []
    saved: Rows = []
    past_steps: Rows = []
    for transition in transitions:
        run_id = transition.run_id
        key = (run_id,)
        if transition.base_seq == 0:
            births.append(_birth(transition))
        else:
            moves.append(_move(transition))
        if transition.run.audit is None:
            events += rows.event_rows(key, transition.events)
        nodes += rows.node_rows(key, transition.nodes)
        # Few transitions have any of these, and looking costs less than putting together nothing.
        if transition.steps:
            steps += [(run_id, *rows.step_row(step)) for step in transition.steps]
        if transition.blobs:
            blobs += [(run_id, blob.digest, blob.size) for blob in transition.blobs]
        if transition.commands:
            commands += [(run_id, command_id, transition.run.last_seq) for command_id in transition.commands]
        if transition.drops:
            drops += rows.drop_rows(key, transition)
        if transition.items:
            items += rows.item_rows(key, transition.items)
        if transition.branches:
            created += [(run_id, *branches.branch_row(branch)) for branch in transition.branches]
        if transition.waits:
            awaited += [(run_id, *waits.wait_row(wait)) for wait in transition.waits]
        if transition.signals:
            signals += [(run_id, *waits.signal_row(signal)) for signal in transition.signals]
        if transition.checkpoints:
            saved += [(run_id, *checkpoints.checkpoint_row(row)) for row in transition.checkpoints]
        if transition.past_steps:
            past_steps += rows.past_step_rows(key, transition)
    tables = (
        moves,
        births,
        past_steps,
        nodes,
        steps,
        blobs,
        commands,
        drops,
        items,
        created,
        awaited,
        signals,
        saved,
        events,
    )
    return (project_id, *map(encode_rows, tables))


def audited_values(project_id: str, transitions: Sequence[Transition]) -> tuple[Any, ...]:
    """Return what `commit_audited` takes: all but the events."""
    return group_values(project_id, transitions)[:-1]


def encode_rows(table: Rows) -> str:
    """Return rows as a document, with texts in the form in which they are stored."""
    if not table:
        return _NO_ROWS
    encoded = _encoder.encode(table)
    if needs_care(encoded):
        encoded = _encoder.encode(to_stored(table))
    return encoded.decode()


def _move(transition: Transition) -> tuple[Any, ...]:
    lease, run = transition.lease, transition.run
    claim = lease if isinstance(lease, Claim) else None
    return (
        transition.run_id,
        transition.epoch,
        transition.base_seq,
        claim.engine_id if claim else None,
        claim.dead if claim else None,
        claim.lets_go if claim else isinstance(lease, Release),
        run.epoch,
        run.status,
        run.branch_id,
        run.last_seq,
        *rows.changing_columns(run),
        run.started_at,
        run.ended_at,
        run.version if transition.repins else None,
        run.graph_hash if transition.repins else None,
        rows.audit_column(run),
    )


def _birth(transition: Transition) -> tuple[Any, ...]:
    lease = transition.lease
    owner = lease.engine_id if isinstance(lease, Claim) and not lease.lets_go else None
    return (transition.run_id, owner, transition.run.epoch, *rows.run_row(transition.run))
