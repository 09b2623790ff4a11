"""Having a run that rests follow another version of its workflow, by whoever takes it up.

It is one transition, a claim that lets go of the run at once: before it the run is what it was and the wish is still there, after
it the run is on its branch and its row names the other version, by which whoever takes it up next goes on. It is fenced as any
other by the epoch and the number of events that were seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from perdure.clock import Clock
from perdure.engine.driving.catalogue import Catalogue, Prepared
from perdure.engine.driving.goingback import JUMP, RETRY, Back, is_switch
from perdure.engine.recording.committer import Committer
from perdure.engine.recording.offering import Offer
from perdure.engine.recording.pending import Pending
from perdure.engine.recording.tenure import numbered, onto_branch
from perdure.errors import GraphError, JournalDamaged, TypesChanged, TypesMissing, VersionNotFound
from perdure.graph.plan import Plan
from perdure.graph.writing import content_hash
from perdure.ids import Chance, CommandId, EngineId, Epoch, NodeId
from perdure.journal.decide import Decider
from perdure.journal.projection import Projection
from perdure.journal.repairing import Change, Cone, Switch
from perdure.journal.states import MOVING, RunState
from perdure.journal.waiting import Waits
from perdure.store.shapes import CLOSE, SEND, Command, StoredRun
from perdure.store.transitions import Claim, Committed, ItemDrop, Rejected, Transition

log = logging.getLogger("perdure.driver")


def wanted_switch(stored: StoredRun) -> Command | None:
    """Return the wish of somebody that a run that rests follows another version, if it is the next thing to be done. Items for
    inputs wait for whoever goes on."""
    if stored.run.status in MOVING or stored.owner is not None or stored.run.audit is not None:
        return None
    command = next((found for found in stored.commands if found.kind not in (SEND, CLOSE)), None)
    return command if command is not None and is_switch(command) else None


def change_of(kind: str, back: Back) -> Change | None:
    """Return what is to be otherwise at the node to which the run goes back; None if what has failed is tried again."""
    return back.change if kind == JUMP else None


class Switcher:
    """Has runs follow other versions."""

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        committer: Committer,
        chance: Chance,
        *,
        engine_id: Callable[[], EngineId],
    ) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._committer = committer
        self._chance = chance
        self._engine_id = engine_id

    async def switched(self, stored: StoredRun) -> bool | None:
        """Do what a run was told, if that is to follow another version: True if it does, and has to be loaded again; False if
        somebody else was faster. None if it is told no such thing, or it cannot be: the wish is left to whoever drives the run
        then, and comes to nothing.

        Raises TypesMissing if code of the other version is not here, and nothing else waits for the run.
        """
        command = wanted_switch(stored)
        if command is None:
            return None
        back = msgspec.convert(command.payload, Back)
        other = await self._other(stored, back)
        followed = None if other is None else await self._followed(stored.run)
        if other is None or followed is None:
            return None
        decider = _decider(stored, other.plan)
        change = change_of(command.kind, back)
        if command.kind == RETRY and not decider.may_retry:
            return None
        cone, problems = decider.outlook_of_switch(
            change, followed, version=other.version.version, types=other.types.keys()
        )
        if problems:
            return None
        transition = self._transition(stored, decider, command, back, cone)
        outcome = await Offer(transition).committed_by(self._committer)
        if isinstance(outcome, Rejected):
            log.warning("switch_refused", extra={"run_id": stored.run.run_id, "problem": outcome.problem})
            return None
        return isinstance(outcome, Committed)

    async def _other(self, stored: StoredRun, back: Back) -> Prepared | None:
        """Return the version that a run is to follow; None if it is not there, is another one by now, or cannot be run."""
        run = stored.run
        if back.version is None or back.branch not in (0, run.branch_id):
            return None
        try:
            other = await self._catalogue.saved(run.run_id, run.workflow, back.version)
        except (VersionNotFound, TypesChanged, JournalDamaged, GraphError):
            return None
        except TypesMissing:
            if len(stored.commands) > 1:
                return None
            raise
        return other if content_hash(other.graph) == back.graph_hash else None

    async def _followed(self, run: RunState) -> Plan | None:
        try:
            own = await self._catalogue.read(run.run_id, run.workflow, run.version)
        except (JournalDamaged, GraphError):
            return None
        return own.plan if content_hash(own.graph) == run.graph_hash else None

    def _transition(self, stored: StoredRun, decider: Decider, command: Command, back: Back, cone: Cone) -> Transition:
        run, at, engine_id = stored.run, self._clock.now_micros(), self._engine_id()
        assert back.version is not None, "there is a version to follow"
        decider.switch(
            change_of(command.kind, back),
            cone,
            Switch(version=back.version, graph_hash=back.graph_hash),
            engine_id=engine_id,
            epoch=Epoch(run.epoch + 1),
            reason=back.reason,
            by=back.by,
            asked_as=command.command_id,
            at=at,
        )
        decider.conclude(at=at)
        pending = Pending(decider)
        pending.blobs += back.blobs
        pending.commands += (command.command_id, *_left(stored, decider.plan))
        portion = pending.cut(drops=tuple(_drops(decider)))
        recorded = numbered(portion, run.last_seq, run.epoch, run.branch_id, self._chance.new_id)
        return msgspec.structs.replace(
            onto_branch(run, portion, recorded, Claim(engine_id=engine_id, lets_go=True)),
            past_steps=portion.past_steps,
            drops=portion.drops,
            signals=portion.signals,
            blobs=portion.blobs,
            commands=portion.commands,
            repins=True,
        )


def _decider(stored: StoredRun, plan: Plan) -> Decider:
    steps = {(step.node_id, step.name, step.occurrence): step.result for step in stored.steps}
    waits = Waits(stored.waits, stored.signals)
    return Decider(Projection(stored.run, stored.nodes, steps, waits, stored.given, stored.last_branch), plan)


def _left(stored: StoredRun, plan: Plan) -> list[CommandId]:
    """Return what was sent to inputs that the other version does not have: nobody will take it up."""
    sent = (command for command in stored.commands if command.kind in (SEND, CLOSE))
    return [command.command_id for command in sent if NodeId(str(command.payload.get("input", ""))) not in plan.nodes]


def _drops(decider: Decider) -> list[ItemDrop]:
    drops: list[ItemDrop] = []
    for node, first in decider.take_drops():
        assert node.stream is not None, "only streams have entries"
        drops.append(ItemDrop(node_id=node.node_id, branch_id=node.stream.branch_id, first=first))
    return drops
