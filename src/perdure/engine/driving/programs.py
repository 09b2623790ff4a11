"""What the nodes of a version are to whoever drives its runs: worked out once, and the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.dispatch.base import SlotKind, slot_kind
from perdure.engine.driving.actor import Actor
from perdure.engine.driving.asking import AskActor, is_ask
from perdure.engine.driving.mapping import MapActor
from perdure.engine.driving.sending import InputActor, is_input
from perdure.engine.driving.startnodes import StartActor, StartEachActor, starts_runs
from perdure.engine.driving.triggering import TriggerActor, is_trigger
from perdure.graph.declare import NodeType
from perdure.graph.model import INBOX
from perdure.graph.plan import NodePlan, Plan
from perdure.ids import NodeId


class NodeProgram(msgspec.Struct, frozen=True, gc=False):
    """How attempts at one node are made."""

    plan: NodePlan
    node_type: NodeType[..., Any]
    kind: SlotKind
    """What kind of place it needs. One that has to do with streams waits for others that need places themselves: it has its own,
    and of a mapped one each call has one."""
    actor: type[Actor]
    """Who makes an attempt, unless the node's stream was closed before."""
    is_fed: bool
    """Whether it is fed from outside, and that is to be recorded."""
    is_source: bool
    """Whether what comes for it from outside is taken up when it begins."""


class Program:
    """A plan with the node types that it needs."""

    def __init__(self, plan: Plan, types: Mapping[str, NodeType[..., Any]]) -> None:
        self.plan = plan
        self.types = types
        self._nodes: dict[NodeId, NodeProgram] = {}
        self._likes: dict[str, NodeProgram] = {}
        """By type: the first of those nodes that have nothing to do with streams. All others are like it."""

    def node(self, node_id: NodeId) -> NodeProgram:
        """Return how attempts at a node are made. Its type has to be here."""
        known = self._nodes.get(node_id)
        if known is None:
            known = self._nodes[node_id] = self._node(self.plan.nodes[node_id])
        return known

    def _node(self, plan: NodePlan) -> NodeProgram:
        if plan.flow is not None:
            return self._worked_out(plan)
        like = self._likes.get(plan.node.type)
        if like is None:
            like = self._likes[plan.node.type] = self._worked_out(plan)
            return like
        return NodeProgram(plan, like.node_type, like.kind, like.actor, like.is_fed, like.is_source)

    def _worked_out(self, plan: NodePlan) -> NodeProgram:
        node_type = self.types[plan.node.type]
        actor = _actor_of(plan, node_type)
        return NodeProgram(
            plan=plan,
            node_type=node_type,
            kind=slot_kind(node_type) if plan.flow is None else "free",
            actor=actor,
            is_fed=plan.node.type == INBOX or is_trigger(node_type),
            is_source=issubclass(actor, (InputActor, TriggerActor)),
        )


def _actor_of(plan: NodePlan, node_type: NodeType[..., Any]) -> type[Actor]:
    if is_input(plan):
        return InputActor
    if is_ask(plan):
        return AskActor
    if is_trigger(node_type):
        return TriggerActor
    is_mapped = plan.flow is not None and bool(plan.flow.mapped)
    if starts_runs(plan):
        return StartEachActor if is_mapped else StartActor
    return MapActor if is_mapped else Actor
