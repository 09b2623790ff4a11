"""What follows when somebody has a run go back and follow another version of its workflow from there.

What was done and stays must be the same on the other version, and so must everything before it. The cone is that of the other
version's graph: nodes that are new there have not begun. Nodes that it does not have count as having begun again, so that their
keys are other ones if a later version has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from perdure.graph.plan import Plan
from perdure.ids import EngineId, Epoch, NodeId
from perdure.journal import events as e
from perdure.journal.compatible import Compatibility, compatibility, differing_nodes
from perdure.journal.repairing import Change, Cone, Repairing, Switch
from perdure.journal.states import MOVING, TERMINAL, NodeStatus, RunStatus

_STOPPED = frozenset((NodeStatus.FAILED, NodeStatus.CANCELLED))


class SwitchOutlook(NamedTuple):
    """What a run would do on another version, and why it cannot."""

    cone: Cone
    problems: tuple[str, ...]


class Switching(Repairing):
    """The decisions about a run that is to follow another version. Their plan is the one of that version."""

    def outlook_of_switch(
        self, change: Change | None, followed: Plan, *, version: int, types: Collection[str]
    ) -> SwitchOutlook:
        """Return what begins again if the run goes back to a node, or without one to what has failed, and goes on on the other
        version; with all that stands in the way. `followed` is the plan by which it has gone so far."""
        if change is not None and change.node_id not in self.plan.nodes:
            return SwitchOutlook(Cone(), (f"it has no node {change.node_id!r}",))
        differing = differing_nodes(self.projection, followed, self.plan)
        begins = self._begins(change, differing)
        cone = self._cone_of_switch(change, begins)
        chosen = [] if change is None else [change.node_id]
        report = compatibility(
            self.projection, followed, self.plan, version=version, types=types, begins=[*begins, *chosen]
        )
        problems = [*report.problems, *self._impossible(report, change, cone)]
        dropped = frozenset(cone.dropped)
        for node_id, reason in differing.items():
            if node_id not in dropped:
                problems.append(f"{node_id}: {reason}, and it would stay as it is: go back to it, or to one before it")
        if not problems and change is not None and (problem := self._why_not_said(change)) is not None:
            problems.append(problem)
        return SwitchOutlook(cone, tuple(problems))

    def switch(
        self,
        change: Change | None,
        cone: Cone,
        switch: Switch,
        *,
        engine_id: EngineId,
        epoch: Epoch,
        reason: str,
        by: str,
        asked_as: str,
        at: int,
    ) -> None:
        """Have the run go on on the other version. Whoever claims it next takes it up by that."""
        cut = self.projection.run.last_seq
        self._record(e.RunClaimed(engine_id=engine_id, epoch=epoch, previous=None), at)
        self._reopen(reason, at)
        dropped = frozenset(cone.dropped)
        given = {node_id: values for node_id, values in self.projection.given.items() if node_id not in dropped}
        outputs: Mapping[NodeId, dict[str, e.Encoded]] = {}
        if change is not None:
            self._record(e.JumpRequested(node_id=change.node_id, reason=reason, by=by), at)
            if change.given:
                given[change.node_id] = change.given
            if change.outputs is not None:
                outputs = {change.node_id: dict(change.outputs)}
        self._branch(cone, cut, reason=reason, asked_as=asked_as, given=given, outputs=outputs, switch=switch, at=at)

    def _begins(self, change: Change | None, differing: Collection[NodeId]) -> list[NodeId]:
        """Return the nodes that begin again by themselves: what was chosen, and what was stopped and is something else there."""
        stopped = self._stopped_here() if self.projection.run.status in TERMINAL else ()
        begins = dict.fromkeys(node_id for node_id in stopped if node_id in differing)
        if change is None:
            return list(begins)
        chosen = change.node_id
        is_stopped = change.is_none and self.projection.status(chosen) in _STOPPED
        is_the_same = chosen not in differing and chosen not in self._again.begin_with(*begins)
        return [*begins] if is_stopped and is_the_same else [*dict.fromkeys((chosen, *begins))]

    def _cone_of_switch(self, change: Change | None, begins: Collection[NodeId]) -> Cone:
        chosen = () if change is None else (change.node_id,)
        tried = tuple(node_id for node_id in chosen if node_id not in begins)
        has_row = self.projection.nodes.keys()
        after = self._again.begin_with(*begins, *tried)
        dropped = [*begins, *(node_id for node_id in after if node_id in has_row and node_id not in tried)]
        gone = [
            node_id
            for node_id, node in self.projection.nodes.items()
            if node_id not in self.plan.nodes and node.status is not NodeStatus.IDLE
        ]
        retried = tried
        if self.projection.run.status in TERMINAL:
            retried += tuple(found for found in self._stopped_here() if found not in (*dropped, *tried))
        return Cone(dropped=(*dropped, *gone), retried=retried)

    def _stopped_here(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id in self._stopped() if node_id in self.plan.nodes)

    def _impossible(self, report: Compatibility, change: Change | None, cone: Cone) -> list[str]:
        """Return which nodes cannot do what they would have to. One whose outputs are said does nothing, and one that is tried
        again goes on with what it has recorded."""
        exempt = {node_id for node_id in cone.retried if self.projection.status(node_id) in _STOPPED}
        if change is not None and change.outputs is not None:
            exempt.add(change.node_id)
        found = (node for node in report.nodes if node.verdict == "impossible" and node.node_id not in exempt)
        return [f"{node.node_id}: {node.reason}" for node in found]

    def _why_not_said(self, change: Change) -> str | None:
        if change.outputs is not None and self.plan.nodes[change.node_id].readers:
            return f"{change.node_id}: what it gives is read item by item, and cannot be said as a whole"
        return None


def why_not_switched(status: RunStatus) -> str | None:
    """Return why a run cannot take another version at this moment; None if it can."""
    if status in MOVING:
        return f"it is {status.value}, and a run takes another version while it rests: pause or cancel it first"
    return None
