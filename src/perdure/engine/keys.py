"""The key under which the outside world knows what a node does."""

from __future__ import annotations

from perdure.ids import RunId
from perdure.journal.states import NodeState


def idempotency_key(run_id: RunId, node: NodeState) -> str:
    """Return what is the same for every attempt at a node, and for nothing else."""
    return f"{_escaped(run_id)}/{_escaped(node.node_id)}/{node.generation}"


def _escaped(name: str) -> str:
    """Return a name in which no slash is left, and that no other name gives: keys made of several do not collide."""
    return name.replace("%", "%25").replace("/", "%2F")
