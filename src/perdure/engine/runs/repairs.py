"""Going back with a run, as its user asks for it: try again what has failed, or go back to a node and go on otherwise."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from perdure.dispatch.failure import storable
from perdure.engine.attempts.concluding import conclude_for
from perdure.engine.driving.catalogue import Prepared
from perdure.engine.driving.goingback import JUMP, RETRY, Back
from perdure.engine.driving.reopening import decider_of, load_reopening
from perdure.engine.runs.branches import Branch, load_branches
from perdure.engine.runs.checkpoints import Checkpoints
from perdure.engine.runs.continuing import Continuing
from perdure.engine.starting.choosing import resolve
from perdure.engine.starting.inputs import fitted
from perdure.engine.stored.past import difference, end_of_branch, stored_at
from perdure.errors import CannotContinue, CannotGoBack, GoingBackPending, ValuesDeleted, WrongInputs
from perdure.graph.aliases import parse_reference
from perdure.graph.handles import Handle
from perdure.graph.validate import validate
from perdure.graph.writing import content_hash
from perdure.ids import BranchId, CommandId, NodeId
from perdure.journal.compare import Difference
from perdure.journal.flow import is_item_of, positions_in
from perdure.journal.repairing import Change, Cone
from perdure.journal.states import RunState, WaitKind, WaitState
from perdure.journal.switching import SwitchOutlook, why_not_switched
from perdure.journal.truth import by_handle
from perdure.store.shapes import Command, StoredRun
from perdure.store.transitions import BlobUse

PATIENCE = timedelta(seconds=60)
"""How long a branch is waited for: longer than it takes others to notice that an engine is dead."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen if a run went back."""

    runs: tuple[NodeId, ...]
    """Nodes that would run, again or for the first time."""
    kept: tuple[NodeId, ...]
    """Nodes that have ended, and whose results would stay."""
    asks: tuple[NodeId, ...]
    """Of those that would run: nodes that have asked people something, and would ask again."""
    in_doubt: tuple[NodeId, ...]
    """Nodes that must run at most once and were stopped when they had begun: somebody would have to say what became of them."""
    given_up: str | None
    """Why the run cannot go back so, if it cannot."""
    items: dict[NodeId, tuple[int, ...]] = {}
    """Of nodes of which only some items would run: their positions. Those of a node that had not done them all run besides."""


class Repairs(Checkpoints, Continuing):
    """The side of a run that can go back."""

    async def retry(
        self,
        *,
        version: int | str | None = None,
        reason: str = "",
        timeout: float | timedelta = PATIENCE,
        command_id: str | None = None,
    ) -> BranchId:
        """Go on with a run that has failed or was cancelled: what has failed or was stopped is tried again, with all that it had
        recorded and under the same keys; what was completed stays. Return the branch on which it goes on.

        With a `version` of the workflow, by its number or an alias, the run follows that one from here on. What has failed or was
        stopped and is something else there begins again; what stays has to be the same there.

        Raises CannotGoBack if there is nothing to try again, and CannotContinue, with all reasons, if the run cannot go on on the
        version. If nobody has taken the wish up in time, raises GoingBackPending: it is kept, and will be.
        """
        stored = await self.load()
        if (known := await self._asked_before(command_id)) is not None:
            return known
        prepared, back = await self._on_version(stored, version, Back(branch=stored.run.branch_id))
        if not decider_of(stored, prepared.plan).may_retry:
            raise CannotGoBack(
                self.run_id, f"it is {stored.run.status.value}, and nothing of it has failed or was stopped"
            )
        if back.version is not None:
            await self._require_switch(stored, prepared, None)
        return await self._go_back(RETRY, msgspec.structs.replace(back, reason=storable(reason)), timeout, command_id)

    async def jump(
        self,
        node: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        outputs: Any = msgspec.UNSET,
        items: Iterable[int] | None = None,
        version: int | str | None = None,
        reason: str = "",
        by: str = "",
        timeout: float | timedelta = PATIENCE,
        command_id: str | None = None,
    ) -> BranchId:
        """Go back to just before a node, and go on from there: that node and whatever depends on it run again, all else stays as
        it is. Return the branch on which the run goes on.

        `inputs` and `data` are what the node is given in the place of what its edges bring and its properties say, by handle.
        With `outputs` it does not run at all, and counts as having given that: what its body would return, with `Outputs` for
        several handles. Questions that were asked behind the node are asked again.

        With `items`, only these of a node that is mapped begin again, by their positions from 0, and so do they of nodes that are
        mapped over it item by item; the results of all others are kept. The run must rest.

        With a `version` of the workflow, by its number or an alias, the run follows that one from here on. What depends on the
        node is told by its graph; nodes that are new there run, and nodes that it does not have are left. Whatever stays has to
        be the same there. The run must rest.

        Raises CannotGoBack if there is no such node or it must not be repeated, WrongInputs if it does not take what it is to
        be given, CannotContinue, with all reasons, if the run cannot go on on the version, and GoingBackPending as `retry` does.
        """
        stored, prepared, back = await self._back_to(
            node, inputs, data, outputs, items=items, version=version, reason=reason, by=by
        )
        if (known := await self._asked_before(command_id)) is not None:
            return known
        if back.version is not None:
            await self._require_switch(stored, prepared, back.change)
        elif (problem := await self._why_not(stored, prepared, back)) is not None:
            raise CannotGoBack(self.run_id, problem)
        return await self._go_back(JUMP, back, timeout, command_id)

    async def preview(
        self,
        node: str | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        outputs: Any = msgspec.UNSET,
        items: Iterable[int] | None = None,
        version: int | str | None = None,
    ) -> Preview:
        """Return what `jump` would do, or without a node what `retry` would do, and do nothing."""
        if node is None:
            stored = await self.load()
            prepared, back = await self._on_version(stored, version, Back())
            decider = decider_of(stored, prepared.plan)
            cone, problem = decider.cone_of_retry(), None
            if not decider.may_retry:
                problem = "nothing has failed or was stopped"
        else:
            stored, prepared, back = await self._back_to(node, inputs, data, outputs, items=items, version=version)
            decider = decider_of(stored, prepared.plan)
            problem = None if back.version is not None else await self._why_not(stored, prepared, back)
            cone = decider.cone_of_jump(back.change)
        if back.version is not None:
            cone, problems = await self._outlook_of_switch(stored, prepared, None if node is None else back.change)
            problem = problem or why_not_switched(stored.run.status) or "; ".join(problems) or None
        replaced = node if outputs is not msgspec.UNSET else None
        again = frozenset((*cone.dropped, *cone.retried)) - {replaced}
        stays = frozenset(found.node_id for found in stored.nodes if found.ended_at is not None) - again
        begun = {name: tuple(positions_in(ranges)) for name, ranges in cone.items.items()}
        asked = {
            wait.node_id for wait in stored.waits if wait.kind is WaitKind.ASK and _begins_again(wait, cone, begun)
        }
        doubted = decider.in_doubt_after(cone)
        order = [name for name in decider.plan.nodes if name != replaced]
        return Preview(
            runs=tuple(name for name in order if name not in stays and name not in doubted),
            kept=tuple(name for name in order if name in stays),
            asks=tuple(name for name in order if name in asked),
            in_doubt=doubted,
            given_up=problem,
            items=begun,
        )

    async def branches(self) -> Sequence[Branch]:
        """Return the run's lines of history in the order in which they were created."""
        return await load_branches(self._engine.store, await self.state())

    async def at(self, place: int | str) -> StoredRun:
        """Return the run as it stood after the event of this number, or at the checkpoint of this name. Raises PlaceNotFound."""
        return await stored_at(self._engine.store, self.run_id, place)

    async def at_end_of(self, branch: int) -> StoredRun:
        """Return the run as it stood at the end of a line of history: of the last one, as it stands. Raises PlaceNotFound."""
        store = self._engine.store
        return await stored_at(store, self.run_id, await end_of_branch(store, self.run_id, branch))

    async def diff(self, one: StoredRun, other: StoredRun | None = None) -> Difference:
        """Return how two states differ, node by node in the order of this run's graph. They are as `at`, `at_end_of` and `load`
        return them, of this run or of another. Without `other` it is how this one stands."""
        graph = await self.graph()
        return difference(one, other or await self.load(), graph)

    async def _back_to(
        self,
        node: str,
        inputs: Mapping[str, Any] | None,
        data: Mapping[str, Any] | None,
        outputs: Any,
        *,
        items: Iterable[int] | None = None,
        version: int | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> tuple[StoredRun, Prepared, Back]:
        stored = await self.load()
        prepared, back = await self._on_version(stored, version, Back(branch=stored.run.branch_id))
        if back.version is not None and items is not None:
            raise CannotGoBack(
                self.run_id, "items are chosen of the version that it follows: go back to the whole node"
            )
        if node not in prepared.plan.nodes:
            raise CannotGoBack(self.run_id, f"there is no node {node!r} in its graph: {_some(prepared)}")
        wished = {**(data or {}), **(inputs or {})}
        if wished and outputs is not msgspec.UNSET:
            raise CannotGoBack(self.run_id, f"{node!r} is not run if its outputs are given, so that it takes no inputs")
        chosen = NodeId(node)
        positions = () if items is None else self._positions(node, items)
        given, blobs = await self._packed(stored, prepared, chosen, wished)
        concluded: dict[str, str] | None = None
        if outputs is not msgspec.UNSET:
            if problems := list(_unknown_outputs(prepared, chosen, outputs)):
                raise WrongInputs(
                    stored.run.workflow, [f"node {node!r}: {problem}" for problem in problems], nothing="changed"
                )
            values, more = await conclude_for(outputs, chosen, prepared.plan, self._engine.values)
            concluded = {name: bytes(value).decode() for name, value in values.items()}
            blobs += more
        back = msgspec.structs.replace(
            back,
            node_id=node,
            given=given,
            outputs=concluded,
            items=positions,
            blobs=blobs,
            reason=storable(reason),
            by=storable(by),
        )
        return stored, prepared, back

    async def _on_version(self, stored: StoredRun, version: int | str | None, back: Back) -> tuple[Prepared, Back]:
        """Return what the run is to follow, and the wish with that, if it is another version than so far."""
        run = stored.run
        number = None if version is None else await self._number_of(run, version)
        if number is None or number == run.version:
            return await self._engine.prepared(run), back
        if run.audit is not None:
            problem = "its log is written on the side (journal='audit'), so that nobody could tell what it has followed"
            raise CannotGoBack(self.run_id, f"{problem}: fork it with the other version")
        other = await self._prepared_on(run, number)
        return other, msgspec.structs.replace(back, version=number, graph_hash=content_hash(other.graph))

    async def _number_of(self, run: RunState, version: int | str) -> int:
        if isinstance(version, int):
            return version
        number, _ = await resolve(parse_reference(f"{run.workflow}@{version}"), self.run_id, self._engine.store)
        return number

    async def _outlook_of_switch(self, stored: StoredRun, other: Prepared, change: Change | None) -> SwitchOutlook:
        """Return what would begin again on another version, and all that stands in the way. Where code is not here, whoever takes
        the run up says what must not be repeated."""
        followed = await self._own_plan(stored.run)
        if followed is None:
            return SwitchOutlook(Cone(), (f"version {stored.run.version}, which it follows, is not in the store",))
        number, types = other.version.version, {node.type for node in other.graph.nodes}
        return decider_of(stored, other.plan).outlook_of_switch(change, followed, version=number, types=types)

    async def _require_switch(self, stored: StoredRun, other: Prepared, change: Change | None) -> None:
        if (problem := why_not_switched(stored.run.status)) is not None:
            raise CannotGoBack(self.run_id, problem)
        _, problems = await self._outlook_of_switch(stored, other, change)
        faults = () if other.missing else validate(other.graph, other.types)
        if reasons := (*problems, *map(str, faults)):
            raise CannotContinue(self.run_id, stored.run.workflow, other.version.version, reasons)

    async def _why_not(self, stored: StoredRun, prepared: Prepared, back: Back) -> str | None:
        """Return why a run cannot go back so; None if it can."""
        decider = decider_of(stored, prepared.plan)
        problem = decider.why_not(back.change)
        if problem is None and back.items:
            try:
                cone = decider.cone_of_jump(back.change)
                await load_reopening(self._engine.store, self._engine.values, stored, prepared.plan, cone)
            except CannotGoBack as error:
                return error.why
        return problem

    def _positions(self, node: str, items: Iterable[int]) -> tuple[int, ...]:
        """Return the items that somebody has chosen, in order. Raises CannotGoBack if they are not a choice."""
        chosen: list[Any] = list(items)
        if not chosen:
            raise CannotGoBack(self.run_id, f"no item of {node!r} is chosen: name some, or go back to it as a whole")
        for position in chosen:
            if not isinstance(position, int) or isinstance(position, bool) or position < 0:
                raise CannotGoBack(self.run_id, f"{position!r} is no item of {node!r}: they are counted from 0")
        if twice := [position for position, times in Counter(chosen).items() if times > 1]:
            raise CannotGoBack(self.run_id, f"item {twice[0]} of {node!r} is chosen more than once")
        return tuple(sorted(chosen))

    async def _packed(
        self, stored: StoredRun, prepared: Prepared, node: NodeId, wished: Mapping[str, Any]
    ) -> tuple[dict[str, str], tuple[BlobUse, ...]]:
        """Return what a node is to be given as it is stored. Raises WrongInputs with all that is wrong."""
        given: dict[str, str] = {}
        blobs: tuple[BlobUse, ...] = ()
        problems = list(_unknown(prepared, node, wished))
        annotations = {handle.name: handle.annotation for handle in _handles(prepared, node)}
        for handle, value in wished.items():
            try:
                value = fitted(value, annotations.get(handle, Any))
            except ValueError as error:
                problems.append(f"{handle!r}: {error}")
                continue
            encoded, more = await self._engine.values.pack(value, where=f"node {node!r}, handle {handle!r}")
            given[handle] = bytes(encoded).decode()
            blobs += more
        if problems:
            raise WrongInputs(
                stored.run.workflow, [f"node {node!r}: {problem}" for problem in problems], nothing="changed"
            )
        return given, blobs

    async def _go_back(self, kind: str, back: Back, timeout: float | timedelta, command_id: str | None) -> BranchId:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not seconds >= 0:
            raise ValueError(f"timeout={timeout!r} is no time to wait for")
        command = Command(
            command_id=CommandId(storable(command_id or self._engine.chance.new_id())),
            run_id=self.run_id,
            kind=kind,
            payload=msgspec.to_builtins(back),
            created_at=self._engine.clock.now_micros(),
        )
        if await self._engine.store.load_deletion(self.run_id) is not None:
            raise ValuesDeleted(self.run_id)
        await self._add(command)
        await self._engine.commanded(self.run_id)
        try:
            async with asyncio.timeout(seconds):
                return await self._gone_back(command.command_id)
        except TimeoutError:
            raise GoingBackPending(self.run_id) from None

    async def _asked_before(self, command_id: str | None) -> BranchId | None:
        """Return the branch that somebody has asked for under this id. If there is none, a run that was loaded before has not
        gone back for it either."""
        if command_id is None:
            return None
        branches = await self._engine.store.list_branches(self.run_id)
        return next((found.branch_id for found in branches if found.asked_as == command_id), None)

    async def _gone_back(self, command_id: CommandId) -> BranchId:
        with self._engine.hub.watching(self.run_id) as changed:
            while True:
                changed.clear()
                is_pending = any(command.command_id == command_id for command in (await self.load()).commands)
                for found in await self._engine.store.list_branches(self.run_id):
                    if found.asked_as == command_id:
                        return found.branch_id
                if not is_pending:
                    problem = "it has gone on meanwhile, or somebody else had it go back before"
                    raise CannotGoBack(self.run_id, problem)
                await self._engine.news(changed)


def _begins_again(wait: WaitState, cone: Cone, items: Mapping[NodeId, Sequence[int]]) -> bool:
    """Whether what has waited for something begins again."""
    return wait.node_id in cone.dropped or is_item_of(wait.name, items.get(wait.node_id, ()))


def _handles(prepared: Prepared, node: NodeId) -> tuple[Handle, ...]:
    """Return what a node can be given, as far as its type is here."""
    node_type = prepared.types.get(prepared.plan.nodes[node].node.type)
    return () if node_type is None else (*node_type.inputs, *node_type.properties)


def _unknown(prepared: Prepared, node: NodeId, wished: Mapping[str, Any]) -> Iterator[str]:
    plan = prepared.plan.nodes[node]
    fed = {binding.handle for binding in plan.bindings} | plan.node.data.keys()
    known = dict.fromkeys([*(handle.name for handle in _handles(prepared, node)), *sorted(fed)])
    flow = plan.flow
    streams = () if flow is None else {*flow.mapped, *(edge.target_handle for edge in flow.live)}
    for handle in wished:
        if handle in streams:
            yield f"{handle!r} takes a stream, which cannot be replaced here: go back to where it comes from"
        elif handle not in known:
            yield f"it has no input {handle!r} (it has {', '.join(map(repr, known)) or 'none'})"


def _unknown_outputs(prepared: Prepared, node: NodeId, outputs: Any) -> Iterator[str]:
    """Yield what is wrong with the names under which a node is said to have given something, as far as its type is here."""
    node_type = prepared.types.get(prepared.plan.nodes[node].node.type)
    if node_type is None or node_type.open_outputs:
        return
    known = [handle.name for handle in node_type.outputs]
    for handle in by_handle(outputs):
        if known and handle not in known:
            yield f"it has no output {handle!r} (it has {', '.join(map(repr, known))})"


def _some(prepared: Prepared) -> str:
    names = list(prepared.plan.nodes)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"it has {', '.join(map(repr, names[:10]))}{more}"
