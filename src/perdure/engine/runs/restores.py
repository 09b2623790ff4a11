"""Going back to what a run was, as its user asks for it: to the end of an earlier branch, or to a place of its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.driving.goingback import RESTORE, Back
from perdure.engine.driving.returning import load_past
from perdure.engine.runs.repairs import PATIENCE, Preview, Repairs
from perdure.engine.stored.past import end_of_branch, seq_of
from perdure.errors import CannotGoBack
from perdure.graph.plan import Plan
from perdure.ids import BranchId, Seq
from perdure.journal.restoring import Past, cone_of_restore, why_not_back
from perdure.journal.states import ENDED, TERMINAL, NodeStatus, WaitKind, WaitState, WaitStatus
from perdure.store.shapes import StoredRun


class Restores(Repairs):
    """The side of a run that can be what it was."""

    async def promote(
        self,
        branch: int,
        *,
        reason: str = "",
        timeout: float | timedelta = PATIENCE,
        command_id: str | None = None,
    ) -> BranchId:
        """Go on from what the run was at the end of an earlier branch, and return the branch on which it does. If it had ended
        there, it has ended so again, with the same result; otherwise it goes on, and what was at work then is tried again.

        Raises CannotGoBack if the run moves, is on that branch, or would have to repeat what must not be; PlaceNotFound if there
        is no such branch; GoingBackPending as `retry` does.
        """
        stored = await self.load()
        if (known := await self._asked_before(command_id)) is not None:
            return known
        back = Back(
            seq=await self._end_of(branch, stored),
            branch=stored.run.branch_id,
            reason=storable(reason or f"branch {branch} promoted"),
        )
        return await self._restored(stored, back, timeout, command_id)

    async def restore(
        self,
        place: str | int,
        *,
        reason: str = "",
        timeout: float | timedelta = PATIENCE,
        command_id: str | None = None,
    ) -> BranchId:
        """Go back to what the run was at a checkpoint, by its name, or after the event of a number, and go on from there. Return
        the branch on which it does. What was at work then is tried again, and what was asked is asked again.

        Raises as `promote` does, and PlaceNotFound if there is no such place.
        """
        stored = await self.load()
        if (known := await self._asked_before(command_id)) is not None:
            return known
        where = f"checkpoint {place!r}" if isinstance(place, str) else f"event {place}"
        back = Back(
            seq=await seq_of(self._engine.store, self.run_id, place),
            branch=stored.run.branch_id,
            reason=storable(reason or f"back to {where}"),
        )
        return await self._restored(stored, back, timeout, command_id)

    async def preview(
        self,
        node: str | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        outputs: Any = msgspec.UNSET,
        items: Iterable[int] | None = None,
        version: int | str | None = None,
        branch: int | None = None,
        place: str | int | None = None,
    ) -> Preview:
        """Return what `jump` would do, with a `branch` what `promote` would do, with a `place` what `restore` would do, and
        without any of these what `retry` would do; and do nothing."""
        if branch is None and place is None:
            return await super().preview(node, inputs=inputs, data=data, outputs=outputs, items=items, version=version)
        stored = await self.load()
        if branch is not None:
            seq = await self._end_of(branch, stored)
        else:
            seq = await seq_of(self._engine.store, self.run_id, place or 0)
        plan = (await self._engine.prepared(stored.run)).plan
        return _preview(stored, await load_past(self._engine.store, self.run_id, seq), plan)

    async def _end_of(self, branch: int, stored: StoredRun) -> Seq:
        seq = await end_of_branch(self._engine.store, self.run_id, branch)
        if branch == stored.run.branch_id:
            raise CannotGoBack(self.run_id, f"it is on branch {branch}")
        return seq

    async def _restored(
        self, stored: StoredRun, back: Back, timeout: float | timedelta, command_id: str | None
    ) -> BranchId:
        plan = (await self._engine.prepared(stored.run)).plan
        past = await load_past(self._engine.store, self.run_id, Seq(back.seq))
        if (problem := why_not_back(past, plan, stored.run)) is not None:
            raise CannotGoBack(self.run_id, problem)
        return await self._go_back(RESTORE, back, timeout, command_id)


def _preview(stored: StoredRun, past: Past, plan: Plan) -> Preview:
    then, cone = past.then, cone_of_restore(past, plan)
    doubted = tuple(name for name in cone.retried if plan.nodes[name].policy.once)
    dropped = frozenset(cone.dropped)
    stays = {name for name in plan.nodes if then.status(name) in ENDED and name not in dropped}
    has_ended = then.run.status in TERMINAL
    asked = {wait.node_id for wait in stored.waits if wait.kind is WaitKind.ASK}
    asked |= {wait.node_id for wait in then.waits if _is_asked(wait)}
    doubted += tuple(name for name in plan.nodes if then.status(name) is NodeStatus.IN_DOUBT)
    runs = tuple(name for name in plan.nodes if not has_ended and name not in stays and name not in doubted)
    return Preview(
        runs=runs,
        kept=tuple(name for name in plan.nodes if name in stays),
        asks=tuple(name for name in runs if name in asked),
        in_doubt=doubted,
        given_up=why_not_back(past, plan, stored.run),
    )


def _is_asked(wait: WaitState) -> bool:
    return wait.kind is WaitKind.ASK and wait.status is WaitStatus.OPEN
