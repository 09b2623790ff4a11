"""How two states of runs differ: node by node, and where they first do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from perdure.ids import NodeId
from perdure.journal.projection import Given
from perdure.journal.states import NodeState, NodeStatus, RunState

Aspect = Literal["status", "outputs", "given", "error"]
"""What may be otherwise about a node: what has become of it, what it has given, what it was given by somebody, why it failed."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two that are compared."""

    run: RunState
    nodes: dict[NodeId, NodeState]
    given: Given


class NodeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is not the same in both."""

    node_id: NodeId
    aspects: tuple[Aspect, ...]
    one: NodeState | None
    """None where nothing has happened to it, or there is no such node."""
    other: NodeState | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How two differ. What time it was, how long something took and how often it was tried does not count."""

    inputs: tuple[str, ...]
    """Inputs that are not the same."""
    outputs: tuple[str, ...]
    """Outputs that are not the same."""
    nodes: tuple[NodeDifference, ...]
    """Those that depend on others come after them."""
    same: tuple[NodeId, ...]

    @property
    def first(self) -> NodeDifference | None:
        """Where they first differ."""
        return self.nodes[0] if self.nodes else None

    @property
    def is_none(self) -> bool:
        return not (self.inputs or self.outputs or self.nodes)


def compare(one: Side, other: Side, order: Sequence[NodeId]) -> Difference:
    """Compare two states. `order` are the nodes, each after those that it depends on."""
    names = list(dict.fromkeys([*order, *one.nodes, *other.nodes]))
    found = {name: tuple(_aspects(name, one, other)) for name in names}
    return Difference(
        inputs=tuple(_differing(one.run.inputs, other.run.inputs)),
        outputs=tuple(_differing(one.run.outputs or {}, other.run.outputs or {})),
        nodes=tuple(
            NodeDifference(node_id=name, aspects=aspects, one=one.nodes.get(name), other=other.nodes.get(name))
            for name, aspects in found.items()
            if aspects
        ),
        same=tuple(name for name, aspects in found.items() if not aspects),
    )


def _aspects(name: NodeId, one: Side, other: Side) -> Iterator[Aspect]:
    left, right = one.nodes.get(name), other.nodes.get(name)
    if _status(left) is not _status(right):
        yield "status"
    if (left and left.outputs) != (right and right.outputs):
        yield "outputs"
    if dict(one.given.get(name, {})) != dict(other.given.get(name, {})):
        yield "given"
    if _error(left) != _error(right):
        yield "error"


def _status(node: NodeState | None) -> NodeStatus:
    return NodeStatus.IDLE if node is None else node.status


def _error(node: NodeState | None) -> tuple[str, str] | None:
    return None if node is None or node.error is None else (node.error.type, node.error.message)


def _differing(one: dict[str, msgspec.Raw], other: dict[str, msgspec.Raw]) -> Iterator[str]:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield name
