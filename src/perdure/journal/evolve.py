"""Fold events into state, by the law of `states`. Pure: the same events give the same rows, live or years later.

What an event means is looked up by its type: several events are folded for every step, and a chain of `isinstance` would take
longer than the rest of it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.ids import Epoch, RunId, Seq
from perdure.journal import events as e
from perdure.journal.node_changes import NODE_CHANGES
from perdure.journal.run_changes import RUN_CHANGES
from perdure.journal.states import NodeState, RunState, RunStatus

PROGRESS = frozenset(
    (
        e.NodeCompleted,
        e.OutboxEnqueued,
        e.InteractionRequested,
        e.InteractionResponded,
        e.TimerSet,
        e.TimerFired,
        e.SignalAwaited,
        e.SignalTaken,
    )
)
"""What says that the run gets on: from here its losses are counted anew."""


def create_run(run_id: RunId, created: e.RunCreated, *, at: int, branch_id: Any, epoch: Epoch) -> RunState:
    """Return the run that begins with `created`, which is always its first event."""
    return RunState(
        run_id=run_id,
        project_id=created.project_id,
        workflow=created.workflow,
        version=created.version,
        graph_hash=created.graph_hash,
        status=RunStatus.CREATED,
        branch_id=branch_id,
        epoch=epoch,
        inputs=created.inputs,
        settings=created.settings,
        source=created.source,
        created_at=at,
        last_seq=Seq(1),
    )


def evolve_run(run: RunState, event: e.Event, *, seq: Seq, at: int) -> RunState:
    """Return the run as it stands after `event`."""
    change = RUN_CHANGES.get(type(event))
    if change is not None:
        return change(run, event, seq, at)
    if run.recoveries and type(event) in PROGRESS:
        return replace(run, last_seq=seq, recoveries=0)
    return replace(run, last_seq=seq)


def evolve_node(node: NodeState, event: e.NodeEvent, *, seq: Seq, at: int) -> NodeState:
    """Return the node as it stands after `event`."""
    change = NODE_CHANGES.get(type(event))
    return replace(node, last_seq=seq) if change is None else change(node, event, seq, at)
