"""A run at a moment, as far as it matters for how long the rest of it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from perdure.graph.model import FED, FOLDER, REDIS_STREAM, SCHEDULE, Graph
from perdure.ids import NodeId
from perdure.journal.headway import Headway
from perdure.journal.pace import Pace
from perdure.journal.states import NodeState, NodeStatus, RunState, RunStatus, WaitState

_FROM_OUTSIDE = FED | {SCHEDULE, FOLDER, REDIS_STREAM}


class Items(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a node has come that works item by item."""

    done: int
    total: int | None
    seconds: float | None
    """How long the items took that are done."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands at a moment. Times are microseconds since 1970."""

    status: RunStatus
    nodes: Mapping[NodeId, NodeState]
    waits: Collection[WaitState]
    items: Mapping[NodeId, Items]
    endless: Collection[NodeId]
    """Nodes that go on until they are stopped."""
    now: int
    is_driven: bool
    """Whether the attempts that run are at work. If not, they are lost, and others will follow."""


def moment_of(
    run: RunState,
    nodes: Mapping[NodeId, NodeState],
    waits: Collection[WaitState],
    streams: Mapping[NodeId, Headway],
    pace: Pace,
    graph: Graph,
    *,
    now: int,
    is_driven: bool,
) -> Moment:
    """Return a run as it stands, from what is recorded of it."""

    def items(node_id: NodeId, headway: Headway) -> Items:
        is_at_work = is_driven and nodes[node_id].status is NodeStatus.RUNNING
        spent = pace.spent_seconds(node_id, now=now if is_at_work else None)
        return Items(done=headway.done, total=headway.total, seconds=spent)

    return Moment(
        status=run.status,
        nodes=nodes,
        waits=waits,
        items={node_id: items(node_id, headway) for node_id, headway in streams.items()},
        endless=[node.id for node in graph.nodes if _is_endless(node.id, node.type, run, pace)],
        now=now,
        is_driven=is_driven,
    )


def _is_endless(node_id: NodeId, node_type: str, run: RunState, pace: Pace) -> bool:
    """Whether a node goes on until it is stopped. An input that is a stream has an end if it was given whole."""
    return pace.is_trigger(node_id) or (node_type in _FROM_OUTSIDE and node_id not in run.inputs)
