"""The test of the tests: each of these bugs is put in on purpose, and the checks above must find it.

A sabotage that nobody notices fails. The same checks find nothing in the program as it is.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.dispatch.base import StepCall
from perdure.engine.attempts import values
from perdure.engine.driving import actor, driver, launching
from perdure.engine.owning import adoption, leases
from perdure.engine.recording import pending, tenure
from perdure.engine.recording.committer import Committer
from perdure.errors import PerdureError
from perdure.graph.plan import NodePlan
from perdure.ids import RunId
from perdure.journal import decide, events, evolve, steps
from perdure.journal.readiness import Ready
from perdure.journal.states import RunStatus
from perdure.store.sqlite.commit import GroupWriter
from perdure.store.transitions import BlobUse, Committed, Keep, LeaseLost
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.graphs import reference_graphs
from perdure.testing.loop import NothingLeft, run_virtual
from perdure.testing.process import Dead, Process
from perdure.testing.proxy import StoreProxy
from perdure.testing.world import World, drive
from tests.crash.backends import opened_world
from tests.crash.test_racing_clients import check, race

pytestmark = pytest.mark.slow

REFERENCES = {reference.name: reference for reference in reference_graphs()}
Patch = pytest.MonkeyPatch

# The checks


def crashes_at(name: str, *kinds: CrashKind) -> Callable[[], list[str]]:
    """Crash a reference workflow at every commit."""

    async def look(world: World) -> list[str]:
        expected = await world.tell(REFERENCES[name])
        problems = list(expected.problems)
        for kind in kinds:
            for at in range(1, expected.boundaries[0] + 1):
                story = await world.tell(REFERENCES[name], CrashPlan(at=at, kind=kind))
                problems += story.problems
                if story.outcome != expected.outcome:
                    problems.append(f"{story.outcome} instead of {expected.outcome}")
                if kind is CrashKind.REPLY_LOST and story.refused_offers:
                    problems.append("the run was dropped although it was not lost")
        return problems

    return in_a_world(look)


def racing() -> list[str]:
    """Let many clients race for the same runs."""

    async def look(world: World) -> list[str]:
        await check(world, await race(world, seed=1))
        return []

    return in_a_world(look)()


def dying_again_and_again() -> list[str]:
    """Kill every engine that takes a run up before the run gets anywhere."""

    async def look(world: World) -> list[str]:
        story = await world.tell(REFERENCES["chain"], *[CrashPlan(at=2, kind=CrashKind.BEFORE)] * 6)
        quarantined = story.outcome.status is RunStatus.QUARANTINED
        expected = {"the run is quarantined, not completed"}
        unexpected = [problem for problem in story.problems if problem not in expected and "no effect" not in problem]
        return unexpected if quarantined else [*unexpected, "the run was not put aside"]

    return in_a_world(look)()


def engines_come_and_go() -> list[str]:
    """One engine drives a run while another one starts and stops; a third would take over what is left alone."""

    async def look(world: World) -> list[str]:
        over = asyncio.Event()

        async def own(engine: Any) -> None:
            await engine.start(REFERENCES["fan"].workflow, run_id="run", x=1)
            await over.wait()

        async def pass_by(engine: Any) -> None:
            await engine.store.list_engines()

        async def stay(engine: Any) -> None:
            run = await engine.get("run")
            await run.wait()

        async with asyncio.TaskGroup() as group:
            for name, work in (("owner", own), ("visitor", pass_by), ("heir", stay)):
                process = Process(name)
                group.create_task(process.run(world.engine(world.door(process)), work))
                await asyncio.sleep(0.001)
            await asyncio.sleep(60)
            over.set()
        stored = await world.store.load_run(RunId("run"))
        assert stored is not None
        return [] if stored.run.epoch == 1 else ["a living engine has lost its run"]

    return in_a_world(look)()


def two_heirs() -> list[str]:
    """Two engines find the same run without an owner at the same moment."""

    class SlowReading(StoreProxy):
        async def passing(self, name: str, call: Callable[[], Any], *args: Any) -> Any:
            answer = await call()
            if name == "load_run":
                await asyncio.sleep(0.01)
            return answer

    async def look(world: World) -> list[str]:
        first = Process("first")
        door = world.door(first, CrashPlan(at=2, kind=CrashKind.BEFORE))
        reference = REFERENCES["chain"]
        run_id = RunId("run")
        with pytest.raises(Dead):
            await first.run(world.engine(door), lambda engine: drive(engine, reference, run_id))
        heirs = [Process("one heir"), Process("the other")]
        doors = [world.door(process) for process in heirs]
        async with asyncio.TaskGroup() as group:
            for process, door in zip(heirs, doors, strict=True):
                door.inner = SlowReading(door.inner).as_store
                group.create_task(process.run(world.engine(door), lambda engine: drive(engine, reference, run_id)))
        _, problems = await world.judge(reference, run_id)
        problems += [problem for door in doors for problem in door.problems]
        refused = sum(isinstance(offer.outcome, LeaseLost) for door in doors for offer in door.offers)
        return problems if problems or refused else ["nobody was refused what another had claimed"]

    return in_a_world(look)()


def in_a_world(look: Callable[[World], Any]) -> Callable[[], list[str]]:
    async def main() -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            async with opened_world(f"sqlite:///{folder}/perdure.db", Path(folder)) as world:
                return await look(world)

    return lambda: run_virtual(main())


# The bugs


def fence_is_open(patch: Patch) -> None:
    """A stale engine may write: neither its epoch nor its place in the log is looked at."""
    _replace_in_sql(
        patch, "advance_run", "lease_epoch = ? AND last_seq = ?", "lease_epoch >= min(?, 0) AND last_seq >= min(?, 0)"
    )


def row_count_is_ignored(patch: Patch) -> None:
    fence = GroupWriter._fence

    def ignoring(writer: GroupWriter, transitions: Sequence[Any]) -> set[str]:
        fence(writer, transitions)
        return {transition.run_id for transition in transitions}

    patch.setattr(GroupWriter, "_fence", ignoring)


def claim_compares_nothing(patch: Patch) -> None:
    """Whoever wants a run gets it."""
    _replace_in_sql(
        patch,
        "claim_run",
        "AND lease_epoch = ? AND last_seq = ?\n   AND (owner IS NULL",
        "AND lease_epoch >= min(?, 0) AND last_seq >= min(?, 0)\n   AND (1 OR owner IS NULL",
    )


def events_have_a_transaction_of_their_own(patch: Patch) -> None:
    settle = Committer._settle

    async def settling_twice(committer: Committer, transitions: Sequence[Any]) -> Any:
        replace = msgspec.structs.replace
        outcomes = await settle(committer, [replace(transition, events=()) for transition in transitions])
        second = [
            replace(
                transition,
                base_seq=transition.run.last_seq,
                epoch=transition.run.epoch,
                nodes=(),
                steps=(),
                lease=Keep(),
            )
            for transition, outcome in zip(transitions, outcomes, strict=True)
            if isinstance(outcome, Committed) and transition.events
        ]
        if second:
            await settle(committer, second)
        return outcomes

    patch.setattr(Committer, "_settle", settling_twice)


def start_is_acknowledged_before_it_is_durable(patch: Patch) -> None:
    init = driver.Driver.__init__

    def acknowledging(self: driver.Driver, **options: Any) -> None:
        init(self, **options)
        self._is_settled.set()

    patch.setattr(driver.Driver, "__init__", acknowledging)


def fan_in_counts_deliveries(patch: Patch) -> None:
    """A node with several inputs starts when the first one arrives."""
    patch.setattr(decide, "readiness", lambda plan, projection: Ready())
    patch.setattr(NodePlan, "waits_for_first", property(lambda plan: len(plan.upstream) > 1))


def lost_attempt_keeps_its_number(patch: Patch) -> None:
    after_lost = decide.Decider._after_lost

    def keeping(self: decide.Decider, node_id: Any, at: int) -> None:
        node = self.projection.node(node_id)
        self.projection.nodes[node_id] = msgspec.structs.replace(node, attempt=node.attempt - 1)
        after_lost(self, node_id, at)

    patch.setattr(decide.Decider, "_after_lost", keeping)


def bodies_start_before_the_commit(patch: Patch) -> None:
    patch.setattr(launching.Launching, "_may_run_early", lambda self, node_id: True)


def losses_are_counted_in_memory(patch: Patch) -> None:
    evolve_run = evolve.evolve_run

    def forgetting(run: Any, event: Any, **options: Any) -> Any:
        evolved = evolve_run(run, event, **options)
        return msgspec.structs.replace(evolved, recoveries=0) if isinstance(event, events.RunClaimed) else evolved

    patch.setattr("perdure.journal.projection.evolve_run", forgetting)


def numbering_leaves_a_gap(patch: Patch) -> None:
    numbered = tenure.numbered

    def gapped(*given: Any) -> Any:
        return tuple(msgspec.structs.replace(entry, seq=entry.seq + 1) for entry in numbered(*given))

    patch.setattr(tenure, "numbered", gapped)


def retiring_releases_everything(patch: Patch) -> None:
    _replace_in_sql(patch, "release_owned", "WHERE owner = ?", "WHERE owner IS NOT coalesce(?, '') OR 1")


def lost_reply_is_taken_for_a_refusal(patch: Patch) -> None:
    """The log is not asked whether the transition was written before its answer got lost."""
    refusal = GroupWriter._refusal

    def guessing(writer: GroupWriter, transition: Any) -> Any:
        outcome = refusal(writer, transition)
        return LeaseLost() if isinstance(outcome, Committed) else outcome

    patch.setattr(GroupWriter, "_refusal", guessing)


def recovery_forgets_what_was_scheduled(patch: Patch) -> None:
    survey = decide.Decider._survey

    def forgetful(self: decide.Decider) -> None:
        survey(self)
        self.ready.clear()

    patch.setattr(decide.Decider, "_survey", forgetful)


def blob_is_referred_to_before_it_is_kept(patch: Patch) -> None:
    async def only_remember(self: values.Values, blobs: Sequence[Any]) -> tuple[BlobUse, ...]:
        return self.used(blobs)

    patch.setattr(values.Values, "keep", only_remember)
    patch.setattr(values.Values, "keep_at_once", lambda self, blobs: None)


def steps_are_forgotten(patch: Patch) -> None:
    async def nothing(self: actor.Actor, call: StepCall) -> None:
        return None

    patch.setattr(actor.Actor, "recorded_step", nothing)


def steps_before_a_checkpoint_are_kept(patch: Patch) -> None:
    patch.setattr(steps.Steps, "left_behind", lambda self, node_id: None)


def steps_of_the_past_stay_in_the_table(patch: Patch) -> None:
    patch.setattr(steps.Steps, "take_past", lambda self: ())


def checkpoints_are_forgotten(patch: Patch) -> None:
    info = actor.Actor._info

    async def without(self: actor.Actor) -> Any:
        return msgspec.structs.replace(await info(self), restored=None)

    patch.setattr(actor.Actor, "_info", without)


def a_row_is_left_behind(patch: Patch) -> None:
    cut = pending.Pending.cut

    def careless(self: pending.Pending) -> pending.Portion:
        portion = cut(self)
        return msgspec.structs.replace(portion, nodes=portion.nodes[:1])

    patch.setattr(pending.Pending, "cut", careless)


def run_ends_while_nodes_run(patch: Patch) -> None:
    conclude = decide.Decider._conclude

    def hasty(self: decide.Decider, at: int) -> None:
        live, self._live = self._live, 0
        unsettled, self._unsettled = self._unsettled, 0 if self._unsettled <= 1 else self._unsettled
        conclude(self, at) if not self._unsettled else None
        self._live, self._unsettled = live, unsettled

    patch.setattr(decide.Decider, "_conclude", hasty)


def key_changes_with_the_attempt(patch: Patch) -> None:
    info = actor.Actor._info

    async def changing(self: actor.Actor) -> Any:
        found = await info(self)
        return msgspec.structs.replace(found, idempotency_key=f"{found.idempotency_key}/{found.attempt}")

    patch.setattr(actor.Actor, "_info", changing)


def lost_lease_is_not_noticed(patch: Patch) -> None:
    renew = leases.Heartbeat._renew

    async def hopeful(self: leases.Heartbeat, store: Any) -> bool:
        await renew(self, store)
        return True

    patch.setattr(leases.Heartbeat, "_renew", hopeful)


def completed_work_is_done_again(patch: Patch) -> None:
    """Recovery takes what was completed by the lost engine for lost as well."""
    adopt = adoption.Projection

    def forgetful(run: Any, nodes: Any = (), steps: Any = None) -> Any:
        return adopt(run, [node for node in nodes if node.status.value != "completed"], steps)

    patch.setattr(adoption, "Projection", forgetful)


def claim_does_not_change_the_epoch(patch: Patch) -> None:
    claim = decide.Decider.claim

    def same(self: decide.Decider, engine_id: Any, epoch: Any, **options: Any) -> None:
        claim(self, engine_id, self.projection.run.epoch or epoch, **options)

    patch.setattr(decide.Decider, "claim", same)


def _replace_in_sql(patch: Patch, name: str, old: str, new: str) -> None:
    from perdure.store.sqlite import file as module

    load = module.load_queries

    def tampered(package: str) -> dict[str, str]:
        queries = load(package)
        assert old in queries[name], f"the statement {name} has changed: change this sabotage with it"
        return {**queries, name: queries[name].replace(old, new)}

    patch.setattr(module, "load_queries", tampered)


SABOTAGES: dict[Callable[[Patch], None], Callable[[], list[str]]] = {
    fence_is_open: crashes_at("fan", CrashKind.TAKEN_OVER),
    row_count_is_ignored: crashes_at("fan", CrashKind.TAKEN_OVER),
    claim_compares_nothing: two_heirs,
    events_have_a_transaction_of_their_own: crashes_at("chain", CrashKind.AFTER),
    start_is_acknowledged_before_it_is_durable: racing,
    fan_in_counts_deliveries: crashes_at("diamond"),
    lost_attempt_keeps_its_number: crashes_at("chain", CrashKind.AFTER),
    bodies_start_before_the_commit: crashes_at("chain", CrashKind.BEFORE),
    losses_are_counted_in_memory: dying_again_and_again,
    numbering_leaves_a_gap: crashes_at("chain"),
    retiring_releases_everything: engines_come_and_go,
    lost_reply_is_taken_for_a_refusal: crashes_at("chain", CrashKind.REPLY_LOST),
    recovery_forgets_what_was_scheduled: crashes_at("retry", CrashKind.AFTER),
    blob_is_referred_to_before_it_is_kept: crashes_at("blobs", CrashKind.AFTER),
    steps_are_forgotten: crashes_at("steps", CrashKind.AFTER),
    steps_before_a_checkpoint_are_kept: crashes_at("steps_and_checkpoints", CrashKind.AFTER),
    steps_of_the_past_stay_in_the_table: crashes_at("steps_and_checkpoints", CrashKind.AFTER),
    checkpoints_are_forgotten: crashes_at("checkpoints", CrashKind.AFTER),
    a_row_is_left_behind: crashes_at("fan"),
    run_ends_while_nodes_run: crashes_at("fan"),
    key_changes_with_the_attempt: crashes_at("chain", CrashKind.BEFORE),
    lost_lease_is_not_noticed: crashes_at("cancelled", CrashKind.TAKEN_OVER),
    completed_work_is_done_again: crashes_at("chain", CrashKind.AFTER),
    claim_does_not_change_the_epoch: crashes_at("chain", CrashKind.AFTER),
}


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_sabotage_is_noticed(sabotage: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch):
    assert SABOTAGES[sabotage]() == [], "the check complains about the program as it is"

    with monkeypatch.context() as patch:
        sabotage(patch)
        noticed = what_is_noticed(SABOTAGES[sabotage])

    assert noticed
    print(f"{sabotage.__name__}: {noticed}")


def what_is_noticed(look: Callable[[], list[str]]) -> str:
    try:
        return "; ".join(look()[:3])
    except (AssertionError, PerdureError, TimeoutError, NothingLeft, Dead, ExceptionGroup) as error:
        clumsy = error.subgroup((TypeError, AttributeError, NameError)) if isinstance(error, ExceptionGroup) else None
        assert clumsy is None, f"the sabotage itself is broken: {clumsy!r}"
        return repr(error)[:300]


def test_there_are_enough_sabotages():
    assert len(SABOTAGES) >= 20
