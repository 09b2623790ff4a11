"""Transitions as what the writing statements of `queries.sql` are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.ids import ROOT_BRANCH
from perdure.store import branches, checkpoints, rows, waits
from perdure.store.audits import audited_rows
from perdure.store.shapes import EventBatch
from perdure.store.transitions import Claim, Release, Transition

Binding = tuple[Any, ...]


def fencing(project: str, transition: Transition, *, boot_id: str, now: float) -> tuple[str, Binding]:
    """Return the statement that locks and numbers the transition's run, and its binding. `now` is the host's clock."""
    run, lease = transition.run, transition.lease
    key = (project, transition.run_id)
    if transition.base_seq == 0:
        owner = lease.engine_id if isinstance(lease, Claim) and not lease.lets_go else None
        return "create_run", (*key, owner, run.epoch, *rows.run_row(run))
    if transition.only_steps:
        return "step_run", (run.last_seq, *key, transition.epoch, transition.base_seq)
    state = (
        run.status,
        run.branch_id,
        *rows.changing_columns(run),
        run.started_at,
        run.ended_at,
        rows.audit_column(run),
    )
    seen = (*key, transition.epoch, transition.base_seq)
    if isinstance(lease, Claim):
        owner = None if lease.lets_go else lease.engine_id
        return "claim_run", (run.last_seq, run.epoch, owner, *state, *seen, lease.dead, boot_id, now)
    return "advance_run", (run.last_seq, run.epoch, isinstance(lease, Release), *state, *seen)


def audited_events(project: str, batch: EventBatch) -> list[Binding]:
    """Return what `append_audited` is given, event by event."""
    return audited_rows((project, batch.run_id), batch)


def row_writes(project: str, transitions: Sequence[Transition]) -> Iterator[tuple[str, list[Binding]]]:
    """Yield the statements that write the rest of what has passed the fence, with their bindings, in order."""
    births: list[Binding] = []
    events: list[Binding] = []
    nodes: list[Binding] = []
    drops: list[Binding] = []
    items: list[Binding] = []
    past_steps: list[Binding] = []
    others: dict[str, list[Binding]] = {}
    for transition in transitions:
        key = (project, transition.run_id)
        if transition.base_seq == 0:
            births.append((*key, ROOT_BRANCH))
        if transition.run.audit is None:
            events += rows.event_rows(key, transition.events)
        nodes += rows.node_rows(key, transition.nodes)
        if transition.repins:
            pinned = (transition.run.version, transition.run.graph_hash)
            others.setdefault("pin_run", []).append((*pinned, *key))
        if transition.branches:
            others.setdefault("create_branches", []).extend(
                (*key, *branches.branch_row(row)) for row in transition.branches
            )
        if transition.past_steps:
            past_steps += rows.past_step_rows(key, transition)
        if transition.steps:
            others.setdefault("put_steps", []).extend((*key, *rows.step_row(step)) for step in transition.steps)
        if transition.drops:
            drops += rows.drop_rows(key, transition)
        if transition.items:
            items += rows.item_rows(key, transition.items)
        if transition.waits:
            others.setdefault("put_waits", []).extend((*key, *waits.wait_row(wait)) for wait in transition.waits)
        if transition.signals:
            others.setdefault("put_signals", []).extend(
                (*key, *waits.signal_row(signal)) for signal in transition.signals
            )
        if transition.checkpoints:
            others.setdefault("put_checkpoints", []).extend(
                (*key, *checkpoints.checkpoint_row(saved)) for saved in transition.checkpoints
            )
        if transition.blobs:
            others.setdefault("use_blobs", []).extend((*key, blob.digest, blob.size) for blob in transition.blobs)
        if transition.commands:
            seq = transition.run.last_seq
            others.setdefault("take_commands", []).extend((seq, *key, command) for command in transition.commands)
    if births:
        yield "create_root_branch", births
    if events:
        yield "append_events", events
    if nodes:
        yield "put_nodes", nodes
    if drops:
        yield "drop_items", drops
    if items:
        yield "put_items", items
    if past_steps:
        yield "drop_steps", past_steps
    yield from others.items()
