"""What every store promises of `commit`: whole or not at all, fenced, once, and in company.

The other promises are in `test_conformance_queries.py` and `test_conformance_lifetime.py`. After each test the fixture
checks that the log of every run adds up to its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from perdure.errors import CommandIdTaken, RunNotFound, ValueNotStorable
from perdure.ids import CommandId, EngineId, Epoch, EventId, NodeId, RunId, Seq, new_id
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import COMMANDS_PER_RUN, TAIL_EVENTS, Command, RunFilter, StoredRun
from perdure.store.transitions import (
    BlobUse,
    Claim,
    Committed,
    Keep,
    LeaseLost,
    Outcome,
    Rejected,
    Release,
    RunExists,
    Transition,
)
from tests.store.builders import ENGINE, Draft, commit, encoded, engine_row, error, started
from tests.store.conftest import OpenStore
from tests.store.contents import contents_of

OTHER = EngineId("engine-b")
NO_TEXT = "half \ud800 pair"


async def load(store: Store, run_id: RunId) -> StoredRun:
    stored = await store.load_run(run_id)
    assert stored is not None
    return stored


async def begin(store: Store, run_id: str | None = None) -> Draft:
    """A run that lives in the store, owned by a living engine, with one node running."""
    if not any(engine.engine_id == ENGINE for engine in await store.list_engines()):
        await store.register_engine(engine_row(ENGINE), ttl_seconds=600)
    draft = started(run_id)
    assert await commit(store, draft.transition()) == [Committed()]
    return draft


async def takeover(store: Store, run_id: RunId, *, dead: EngineId | None = None, by: EngineId = OTHER) -> Outcome:
    draft = Draft.continued(await load(store, run_id)).claim(by)
    return (await commit(store, draft.transition(Claim(engine_id=by, dead=dead))))[0]


# Creating


async def test_a_created_run_is_read_back_as_it_was_decided(store: Store) -> None:
    draft = Draft.create(inputs={"text": encoded({"a": [1, 2.5, None, "ü"]})}).start().begin_node("one")

    transition = draft.transition()
    outcome = await commit(store, transition)

    assert outcome == [Committed()]
    stored = await load(store, draft.run_id)
    assert stored.run == draft.projection.run
    assert await store.load_state(draft.run_id) == stored.run
    assert stored.owner == ENGINE
    assert {node.node_id: node for node in stored.nodes} == draft.projection.nodes
    assert tuple(await store.load_events(draft.run_id, after=Seq(0), limit=100)) == transition.events


async def test_the_last_events_come_with_the_run(store: Store) -> None:
    draft = Draft.create().start().begin_node("one").begin_node("two")
    transition = draft.transition()
    await commit(store, transition)

    stored = await load(store, draft.run_id)
    dump = await store.dump_run(draft.run_id)

    assert len(transition.events) > TAIL_EVENTS
    assert [(mark.seq, mark.branch_id, mark.epoch, mark.type) for mark in stored.tail] == [
        (entry.seq, entry.branch_id, entry.epoch, e.type_of(entry.event)) for entry in transition.events[-TAIL_EVENTS:]
    ]
    assert dump is not None
    assert dump.stored.tail == stored.tail


async def test_a_run_may_be_created_without_an_owner(store: Store) -> None:
    draft = Draft.create()

    assert await commit(store, draft.transition(Keep())) == [Committed()]

    stored = await load(store, draft.run_id)
    assert (stored.owner, stored.run.status, stored.run.epoch) == (None, RunStatus.CREATED, 0)


async def test_a_second_run_of_the_same_id_changes_nothing(store: Store, url: str) -> None:
    first = await begin(store)
    before = await contents_of(url)

    outcome = await commit(store, Draft.create(first.run_id).start(OTHER).transition())

    assert outcome == [RunExists()]
    assert await contents_of(url) == before


async def test_of_many_that_create_the_same_run_one_succeeds(store: Store, open_another: OpenStore) -> None:
    stores = [store, *[await open_another() for _ in range(3)]]
    drafts = [started("same", engine_id=EngineId(f"engine-{number}")) for number in range(12)]

    outcomes = await asyncio.gather(
        *(commit(stores[number % 4], draft.transition()) for number, draft in enumerate(drafts))
    )

    assert sorted(type(outcome[0]).__name__ for outcome in outcomes) == ["Committed"] + ["RunExists"] * 11
    winner = next(number for number, outcome in enumerate(outcomes) if outcome == [Committed()])
    assert (await load(store, RunId("same"))).owner == f"engine-{winner}"


async def test_a_run_needs_its_version(store: Store, url: str) -> None:
    before = await contents_of(url)

    outcomes = await commit(store, Draft.create(version=7).start().transition())

    assert isinstance(outcomes[0], Rejected)
    assert await contents_of(url) == before


# Going on


async def test_a_step_that_leaves_its_run_as_it_was_is_written_once_and_fenced(store: Store, url: str) -> None:
    draft = await begin(store)
    step = msgspec.structs.replace(draft.next_node(0).transition(), only_steps=True)

    assert await commit(store, step) == [Committed()]
    stored = await load(store, draft.run_id)
    assert stored.run == draft.projection.run
    assert {node.node_id: node for node in stored.nodes} == draft.projection.nodes
    assert tuple(await store.load_events(draft.run_id, after=step.base_seq, limit=100)) == step.events
    written = await contents_of(url)
    assert await commit(store, step) == [Committed()]  # its answer got lost, and it is offered again
    assert await contents_of(url) == written

    late = msgspec.structs.replace(draft.next_node(1).transition(), only_steps=True)
    assert await takeover(store, draft.run_id, dead=ENGINE) == Committed()
    taken = await contents_of(url)
    assert await commit(store, late) == [LeaseLost()]
    assert await contents_of(url) == taken


async def test_a_run_goes_on_to_its_end(store: Store) -> None:
    draft = await begin(store)

    for number in range(5):
        assert await commit(store, draft.next_node(number).transition()) == [Committed()]
    assert await commit(store, draft.complete_node("step5").end().transition()) == [Committed()]

    stored = await load(store, draft.run_id)
    assert stored.run == draft.projection.run
    assert stored.run.status is RunStatus.COMPLETED
    assert stored.owner is None


async def test_failures_retries_and_reasons_are_kept(store: Store) -> None:
    draft = await begin(store)
    node_id = NodeId("step0")
    draft.add(
        e.NodeCheckpointed(node_id=node_id, attempt=1, state=encoded({"at": 7})),
        e.NodeFailed(node_id=node_id, attempt=1, error=error("first"), final=False, duration_ms=4),
        e.NodeScheduled(node_id=node_id, attempt=2, due=99),
        e.NodeStarted(node_id=node_id, attempt=2),
        e.NodeFailed(node_id=node_id, attempt=2, error=error("second"), duration_ms=5),
        e.RunFailing(node_id=node_id, error=error("second")),
        e.RunFailed(node_id=node_id, error=error("second")),
    )

    assert await commit(store, draft.transition()) == [Committed()]

    stored = await load(store, draft.run_id)
    assert stored.run == draft.projection.run
    assert stored.nodes == tuple(draft.projection.nodes.values())


async def test_a_transition_without_events_may_let_the_run_go(store: Store) -> None:
    draft = await begin(store)

    assert await commit(store, draft.transition(Release())) == [Committed()]

    assert (await load(store, draft.run_id)).owner is None


# Fencing


@pytest.mark.parametrize(
    "make_stale",
    [
        pytest.param(lambda t: replace(t, epoch=Epoch(t.epoch - 1)), id="older epoch"),
        pytest.param(lambda t: replace(t, epoch=Epoch(t.epoch + 1)), id="newer epoch"),
        pytest.param(lambda t: replace(t, base_seq=Seq(t.base_seq - 1)), id="older seq"),
        pytest.param(lambda t: replace(t, base_seq=Seq(t.base_seq + 1)), id="newer seq"),
        pytest.param(lambda t: replace(t, run_id=RunId("nobody")), id="unknown run"),
    ],
)
async def test_what_was_decided_elsewhere_in_time_changes_no_row(
    store: Store, url: str, make_stale: Callable[[Transition], Transition]
) -> None:
    draft = await begin(store)
    command = Command(command_id=CommandId("c"), run_id=draft.run_id, kind="cancel")
    await store.add_command(command)
    before = await contents_of(url)

    draft.step("step0", "s", 1).next_node(0)
    stale = make_stale(draft.transition(commands=[command.command_id], blobs=[BlobUse(digest="d", size=1)]))
    outcomes = await commit(store, stale)
    plain = await commit(store, replace(stale, steps=(), blobs=(), commands=()))

    assert (outcomes, plain) == ([LeaseLost()], [LeaseLost()])
    assert await contents_of(url) == before


async def test_of_sixteen_claimers_one_gets_the_run(store: Store, open_another: OpenStore) -> None:
    draft = Draft.create()
    await commit(store, draft.transition(Keep()))
    stores = [store, *[await open_another() for _ in range(3)]]
    seen = await load(store, draft.run_id)

    async def claim(number: int) -> Outcome:
        claimer = Draft.continued(seen).claim(EngineId(f"engine-{number}"))
        return (await commit(stores[number % 4], claimer.transition()))[0]

    outcomes = await asyncio.gather(*(claim(number) for number in range(16)))

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Committed"] + ["LeaseLost"] * 15
    stored = await load(store, draft.run_id)
    assert stored.owner == f"engine-{outcomes.index(Committed())}"
    assert stored.run.epoch == seen.run.epoch + 1


async def test_a_run_whose_owner_lives_cannot_be_claimed(store: Store, url: str) -> None:
    draft = await begin(store)
    before = await contents_of(url)

    assert await takeover(store, draft.run_id) == LeaseLost()
    assert await takeover(store, draft.run_id, dead=EngineId("someone else")) == LeaseLost()
    assert await takeover(store, draft.run_id, by=ENGINE) == LeaseLost()

    assert await contents_of(url) == before


async def test_a_run_can_be_claimed_when_its_owner_has_expired(store: Store) -> None:
    await store.register_engine(engine_row(OTHER), ttl_seconds=0)
    draft = started(engine_id=OTHER)
    await commit(store, draft.transition())

    assert await takeover(store, draft.run_id, by=ENGINE) == Committed()

    assert (await load(store, draft.run_id)).owner == ENGINE


async def test_a_run_can_be_claimed_when_its_owner_is_known_to_be_dead(store: Store) -> None:
    draft = await begin(store)

    assert await takeover(store, draft.run_id, dead=ENGINE) == Committed()

    assert (await load(store, draft.run_id)).owner == OTHER


async def test_a_run_can_be_claimed_when_it_was_let_go(store: Store) -> None:
    draft = await begin(store)
    await commit(store, draft.add(e.RunPausing(), e.RunPaused()).transition())

    assert await takeover(store, draft.run_id) == Committed()


async def test_a_run_can_be_claimed_when_its_owner_never_registered_or_is_retired(store: Store) -> None:
    unknown = started(engine_id=EngineId("never registered"))
    await commit(store, unknown.transition())
    retired = await begin(store)
    await store.retire_engine(ENGINE)

    assert await takeover(store, unknown.run_id) == Committed()
    assert await takeover(store, retired.run_id) == Committed()


async def test_after_a_takeover_the_old_owner_writes_nothing(store: Store, url: str) -> None:
    draft = await begin(store)
    assert await takeover(store, draft.run_id, dead=ENGINE) == Committed()
    before = await contents_of(url)

    assert await commit(store, draft.next_node(0).transition()) == [LeaseLost()]

    assert await contents_of(url) == before


async def test_a_takeover_and_a_late_commit_do_not_both_count(store: Store, open_another: OpenStore) -> None:
    another = await open_another()
    for _ in range(20):
        draft = await begin(store)
        seen = await load(store, draft.run_id)
        claim = Draft.continued(seen).claim(OTHER).transition(Claim(engine_id=OTHER, dead=ENGINE))

        outcomes = await asyncio.gather(commit(store, draft.next_node(0).transition()), commit(another, claim))

        assert sorted(type(outcome[0]).__name__ for outcome in outcomes) == ["Committed", "LeaseLost"]


# Groups


async def test_a_group_of_everything_is_answered_one_by_one(store: Store) -> None:
    going_on, ending, claimed, lost, exists = [await begin(store) for _ in range(5)]
    claim = Draft.continued(await load(store, claimed.run_id)).claim(OTHER)
    born = started()

    outcomes = await commit(
        store,
        born.transition(),
        going_on.next_node(0).transition(),
        replace(lost.next_node(0).transition(), epoch=Epoch(0)),
        ending.complete_node("step0").end().transition(),
        Draft.create(exists.run_id).start().transition(),
        claim.transition(Claim(engine_id=OTHER, dead=ENGINE)),
    )

    assert outcomes == [Committed(), Committed(), LeaseLost(), Committed(), RunExists(), Committed()]
    for draft in (born, going_on, ending, claim):
        assert (await load(store, draft.run_id)).run == draft.projection.run


async def test_a_group_of_many_runs_is_committed(store: Store) -> None:
    drafts = [started() for _ in range(300)]

    assert set(await store.commit([draft.transition() for draft in drafts])) == {Committed()}
    assert set(await store.commit([draft.next_node(0).transition() for draft in drafts])) == {Committed()}

    for draft in drafts[::30]:
        assert (await load(store, draft.run_id)).run == draft.projection.run


async def test_an_empty_group_is_nothing(store: Store) -> None:
    assert list(await store.commit([])) == []


def _with_two_events_in_one_place(draft: Draft) -> Transition:
    transition = draft.next_node(0).transition()
    return replace(transition, events=(transition.events[0], *transition.events))


def _with_a_run_without_a_reason(draft: Draft) -> Transition:
    transition = draft.complete_node("step0").end().transition()
    return replace(transition, run=replace(transition.run, reason=cast("str", None)))


def _with_a_node_without_an_attempt(draft: Draft) -> Transition:
    transition = draft.next_node(0).transition()
    broken = replace(transition.nodes[0], attempt=cast("int", None))
    return replace(transition, nodes=(broken, *transition.nodes[1:]))


def _with_a_step_whose_name_is_no_text(draft: Draft) -> Transition:
    return draft.step("step0", NO_TEXT, 1).transition()


def _with_a_reason_that_is_no_text(draft: Draft) -> Transition:
    return draft.add(e.RunPausing(reason=NO_TEXT), e.RunPaused()).transition()


def _with_something_that_has_no_form(draft: Draft) -> Transition:
    transition = draft.next_node(0).transition()
    broken = replace(transition.nodes[0], outputs=cast("dict[str, e.Encoded]", {"output": object()}))
    return replace(transition, nodes=(broken, *transition.nodes[1:]))


@pytest.mark.parametrize(
    "spoil",
    [
        _with_two_events_in_one_place,
        _with_a_run_without_a_reason,
        _with_a_node_without_an_attempt,
        _with_a_step_whose_name_is_no_text,
        _with_a_reason_that_is_no_text,
        _with_something_that_has_no_form,
    ],
)
@pytest.mark.parametrize("company", [0, 1, 9])
async def test_one_that_the_database_refuses_harms_only_itself(
    store: Store, spoil: Callable[[Draft], Transition], company: int
) -> None:
    bad = await begin(store)
    before = await store.dump_run(bad.run_id)
    others = [await begin(store) for _ in range(company)]
    group = [draft.next_node(0).transition() for draft in others]
    group.insert(company // 2, spoil(bad))

    outcomes = await commit(store, *group)

    refused = outcomes.pop(company // 2)
    assert isinstance(refused, Rejected)
    assert refused.problem
    assert outcomes == [Committed()] * company
    assert await store.dump_run(bad.run_id) == before
    for draft in others:
        assert (await load(store, draft.run_id)).run == draft.projection.run


async def test_a_run_whose_id_is_no_text_cannot_be_created_and_is_not_there(store: Store, url: str) -> None:
    other = started()

    refused, committed = await commit(store, started(NO_TEXT).transition(), other.transition())

    assert isinstance(refused, Rejected)
    assert "surrogates" in refused.problem
    assert committed == Committed()
    before = await contents_of(url)
    run_id = RunId(NO_TEXT)
    assert await store.load_run(run_id) is await store.load_state(run_id) is await store.dump_run(run_id) is None
    assert list(await store.load_events(run_id, after=Seq(0), limit=10)) == []
    assert list(await store.load_logs(run_id, after=0, limit=10)) == []
    assert list(await store.list_runs(RunFilter(id_prefix=NO_TEXT), before=None, limit=10)) == []
    assert await contents_of(url) == before


async def test_a_group_holds_a_run_once(store: Store, url: str) -> None:
    draft = await begin(store)
    before = await contents_of(url)

    with pytest.raises(ValueError, match="at most one"):
        await store.commit([draft.next_node(0).transition(), draft.next_node(1).transition()])

    assert await contents_of(url) == before


# Lost answers


async def test_what_is_offered_again_was_committed_once(store: Store, url: str) -> None:
    draft = started()
    born = draft.transition()
    grown = draft.step("step0", "s", 1).next_node(0).transition(blobs=[BlobUse(digest="d", size=1)])
    plain = draft.next_node(1).transition()
    ended = draft.complete_node("step2").end().transition()

    for transition in (born, grown, plain, ended):
        assert await commit(store, transition) == [Committed()]
        before = await contents_of(url)
        assert await commit(store, transition) == [Committed()]
        assert await contents_of(url) == before


async def test_a_claim_that_is_offered_again_was_committed_once(store: Store, url: str) -> None:
    draft = await begin(store)
    claim = (
        Draft.continued(await load(store, draft.run_id)).claim(OTHER).transition(Claim(engine_id=OTHER, dead=ENGINE))
    )

    assert await commit(store, claim) == [Committed()]
    before = await contents_of(url)
    assert await commit(store, claim) == [Committed()]

    assert await contents_of(url) == before


async def test_what_others_wrote_in_its_place_is_not_taken_for_it(store: Store) -> None:
    draft = await begin(store)
    mine = draft.next_node(0).transition()
    theirs = replace(mine, events=tuple(replace(entry, id=EventId(new_id())) for entry in mine.events))

    assert await commit(store, theirs) == [Committed()]

    assert await commit(store, mine) == [LeaseLost()]


# What travels with a transition


async def test_steps_are_kept_with_their_node(store: Store) -> None:
    draft = await begin(store)
    draft.step("step0", "fetch", {"n": 1}).step("step0", "fetch", {"n": 2}, occurrence=1).step("step0", "parse", None)

    transition = draft.transition()
    assert await commit(store, transition) == [Committed()]

    stored = await load(store, draft.run_id)
    assert sorted(stored.steps, key=lambda step: step.seq) == list(transition.steps)


async def steps_of(store: Store, draft: Draft) -> dict[tuple[str, str, int], object]:
    stored = await load(store, draft.run_id)
    return {(step.node_id, step.name, step.occurrence): msgspec.json.decode(step.result) for step in stored.steps}


async def test_steps_that_a_node_has_left_behind_are_removed(store: Store) -> None:
    draft, other = await begin(store), await begin(store)
    for run in (draft, other):
        run.begin_node("beside").step("beside", "fetch", 0).step("step0", "fetch", 1).step("step0", "parse", 2)
    assert await commit(store, draft.transition(), other.transition()) == [Committed()] * 2

    draft.checkpoint("step0")
    assert await commit(store, draft.transition()) == [Committed()]

    assert await steps_of(store, draft) == {("beside", "fetch", 0): 0}
    assert len(await steps_of(store, other)) == 3


async def test_a_step_may_take_the_place_of_one_that_is_past(store: Store) -> None:
    draft, other = await begin(store), await begin(store)
    draft.step("step0", "fetch", "past").step("step0", "fetch", "past, too", occurrence=1)
    assert await commit(store, draft.transition()) == [Committed()]

    draft.step("step0", "fetch", "between", occurrence=2).checkpoint("step0").step("step0", "fetch", "gone")
    draft.checkpoint("step0").step("step0", "fetch", "kept").step("step0", "parse", "kept, too")
    other.step("step0", "fetch", "of another run")  # in the same group, and before
    assert await commit(store, other.transition(), draft.transition()) == [Committed()] * 2

    assert await steps_of(store, draft) == {("step0", "fetch", 0): "kept", ("step0", "parse", 0): "kept, too"}
    assert await steps_of(store, other) == {("step0", "fetch", 0): "of another run"}


async def test_a_step_is_not_written_in_the_place_of_another(store: Store) -> None:
    draft = await begin(store)
    assert await commit(store, draft.step("step0", "fetch", 1).transition()) == [Committed()]
    again = Draft.continued(await load(store, draft.run_id)).step("step0", "fetch", 2)

    (outcome,) = await commit(store, again.transition())

    assert isinstance(outcome, Rejected)
    assert await steps_of(store, draft) == {("step0", "fetch", 0): 1}


async def test_a_transition_that_is_refused_removes_no_steps(store: Store) -> None:
    draft = await begin(store)
    assert await commit(store, draft.step("step0", "fetch", 1).transition()) == [Committed()]
    stale = replace(draft.checkpoint("step0").transition(), epoch=Epoch(7))

    assert await commit(store, stale) == [LeaseLost()]

    assert await steps_of(store, draft) == {("step0", "fetch", 0): 1}


async def test_a_blob_may_be_referred_to_again(store: Store) -> None:
    draft = await begin(store)
    other = await begin(store)
    use = BlobUse(digest="abc", size=17)

    assert await commit(store, draft.next_node(0).transition(blobs=[use])) == [Committed()]
    assert await commit(store, draft.next_node(1).transition(blobs=[use]), other.transition(blobs=[use])) == [
        Committed(),
        Committed(),
    ]

    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    assert dump.blobs == (use,)


async def test_a_command_is_kept_until_it_is_taken_and_taken_once(store: Store) -> None:
    draft = await begin(store)
    first = Command(command_id=CommandId("1"), run_id=draft.run_id, kind="pause", payload={"a": [1, "ü"]}, created_at=5)
    second = Command(command_id=CommandId("0"), run_id=draft.run_id, kind="cancel", created_at=6)

    assert await store.add_command(first)
    assert await store.add_command(second)
    assert not await store.add_command(first)
    assert await store.load_command(first.run_id, first.command_id) == first
    assert await store.load_command(first.run_id, CommandId("unheard of")) is None
    assert (await load(store, draft.run_id)).commands == (first, second)
    assert list(await store.pending_commands(ENGINE)) == [first, second]
    assert list(await store.pending_commands(OTHER)) == []

    assert await commit(store, draft.next_node(0).transition(commands=[first.command_id])) == [Committed()]
    assert (await load(store, draft.run_id)).commands == (second,)
    assert list(await store.pending_commands(ENGINE)) == [second]
    assert not await store.add_command(first)

    assert await commit(store, draft.transition(commands=[second.command_id])) == [Committed()]
    assert (await load(store, draft.run_id)).commands == ()


async def test_commands_stay_in_the_order_in_which_they_were_added_whatever_clocks_say(
    store: Store, open_another: OpenStore
) -> None:
    another = await open_another()
    draft = await begin(store)
    times = {"d": 7, "c": 7, "b": 5, "a": 90, "e": 0}

    for number, (name, at) in enumerate(times.items()):
        command = Command(command_id=CommandId(name), run_id=draft.run_id, kind="pause", created_at=at)
        assert await (store, another)[number % 2].add_command(command)

    assert [command.command_id for command in (await load(store, draft.run_id)).commands] == list(times)
    assert [command.command_id for command in await store.pending_commands(ENGINE)] == list(times)


async def test_a_command_that_must_come_before_another_comes_before_it_or_not_at_all(store: Store) -> None:
    draft = await begin(store)
    sent = [Command(command_id=CommandId(f"s{n}"), run_id=draft.run_id, kind="send", created_at=n) for n in range(3)]
    end = Command(command_id=CommandId("end"), run_id=draft.run_id, kind="close", created_at=0)

    assert await store.add_command(sent[0], before=end.command_id)
    assert await store.add_command(sent[1], before=CommandId("other end"))
    assert await store.add_command(end)
    assert not await store.add_command(sent[2], before=end.command_id)
    assert not await store.add_command(sent[0], before=end.command_id)
    with pytest.raises(CommandIdTaken):
        await store.add_command(replace(sent[0], payload={"a": 1}), before=end.command_id)

    assert await store.load_command(draft.run_id, sent[2].command_id) is None
    assert [command.command_id for command in await store.pending_commands(ENGINE)] == ["s0", "s1", "end"]
    assert await commit(store, draft.next_node(0).transition(commands=[end.command_id])) == [Committed()]
    assert not await store.add_command(sent[2], before=end.command_id)


async def test_commands_added_at_once_with_the_one_before_which_they_must_come_are_first_or_out(
    store: Store, open_another: OpenStore
) -> None:
    others = [store, await open_another(), await open_another()]
    for _ in range(10):
        draft = await begin(store)
        end = Command(command_id=CommandId("end"), run_id=draft.run_id, kind="close", created_at=1)
        sent = [
            Command(command_id=CommandId(f"s{n}"), run_id=draft.run_id, kind="send", created_at=n) for n in range(30)
        ]

        adding = [others[n % 3].add_command(one, before=end.command_id) for n, one in enumerate(sent)]
        added = await asyncio.gather(*adding[:15], others[1].add_command(end), *adding[15:])

        order = [command.command_id for command in (await load(store, draft.run_id)).commands]
        assert order[-1] == "end"
        assert len(order) == sum(map(bool, added))


async def test_many_items_for_a_run_hide_nothing_else(store: Store) -> None:
    full, other = await begin(store), await begin(store)
    for number in range(COMMANDS_PER_RUN + 5):
        sent = Command(
            command_id=CommandId(f"{number:04}"), run_id=full.run_id, kind="send", created_at=number, payload={"a": 1}
        )
        assert await store.add_command(sent)
    for draft in (full, other):
        assert await store.add_command(
            Command(command_id=CommandId("cancel"), run_id=draft.run_id, kind="cancel", created_at=9_999)
        )

    pending = await store.pending_commands(ENGINE)
    first = [f"{number:04}" for number in range(COMMANDS_PER_RUN)]
    assert [command.command_id for command in pending] == [*first, "cancel", "cancel"]
    assert {command.run_id for command in pending if command.kind == "cancel"} == {full.run_id, other.run_id}
    assert [command.command_id for command in (await load(store, full.run_id)).commands] == [*first, "cancel"]
    dump = await store.dump_run(full.run_id)
    assert dump is not None
    assert len(dump.stored.commands) == COMMANDS_PER_RUN + 6

    page = await store.latest_commands(full.run_id, limit=2)
    assert [command.command_id for command in page] == ["cancel", f"{COMMANDS_PER_RUN + 4:04}"]
    place = (page[-1].created_at, page[-1].command_id)
    page = await store.latest_commands(full.run_id, before=place, limit=1)
    assert [command.command_id for command in page] == [f"{COMMANDS_PER_RUN + 3:04}"]


async def test_a_node_is_read_by_itself(store: Store) -> None:
    draft = await begin(store)
    assert await commit(store, draft.next_node(0).transition()) == [Committed()]

    stored = await load(store, draft.run_id)
    assert stored.nodes
    for node in stored.nodes:
        assert await store.load_node(draft.run_id, node.node_id) == node
    assert await store.load_node(draft.run_id, NodeId("nowhere")) is None
    assert await store.load_node(RunId("nowhere"), stored.nodes[0].node_id) is None


async def test_a_command_id_is_a_runs_own(store: Store) -> None:
    first, second = await begin(store), await begin(store)
    commands = [Command(command_id=CommandId("c"), run_id=draft.run_id, kind="pause") for draft in (first, second)]

    assert [await store.add_command(command) for command in commands] == [True, True]
    assert await commit(store, first.next_node(0).transition(commands=[CommandId("c")])) == [Committed()]

    assert (await load(store, first.run_id)).commands == ()
    assert (await load(store, second.run_id)).commands == (commands[1],)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_command_id_stands_for_one_command(store: Store, url: str, *, is_taken: bool) -> None:
    draft = await begin(store)
    command = Command(command_id=CommandId("c"), run_id=draft.run_id, kind="cancel", payload={"reason": "x", "n": [1]})
    await store.add_command(command)
    if is_taken:
        await commit(store, draft.next_node(0).transition(commands=[command.command_id]))
    before = await contents_of(url)

    same = replace(command, payload={"n": [1], "reason": "x"}, created_at=99)
    assert not await store.add_command(same)
    with pytest.raises(CommandIdTaken, match="cancel"):
        await store.add_command(replace(command, payload={"reason": "y"}))
    with pytest.raises(CommandIdTaken, match="cancel"):
        await store.add_command(replace(command, kind="resume"))

    assert await contents_of(url) == before


@pytest.mark.parametrize("field", ["command_id", "kind", "payload", "run_id"])
async def test_a_command_that_holds_no_text_is_refused(store: Store, url: str, field: str) -> None:
    draft = await begin(store)
    before = await contents_of(url)
    command = Command(command_id=CommandId("c"), run_id=draft.run_id, kind="cancel")

    with pytest.raises(ValueNotStorable, match="surrogate"):
        await store.add_command(replace(command, **{field: {"reason": NO_TEXT} if field == "payload" else NO_TEXT}))

    assert await contents_of(url) == before


async def test_a_command_for_a_run_that_is_not_there_is_refused(store: Store, url: str) -> None:
    before = await contents_of(url)

    with pytest.raises(RunNotFound):
        await store.add_command(Command(command_id=CommandId("c"), run_id=RunId("nobody"), kind="cancel"))

    assert await contents_of(url) == before


async def test_a_command_arrives_while_the_run_is_being_committed(store: Store, open_another: OpenStore) -> None:
    another = await open_another()
    draft = await begin(store)

    async def command(number: int) -> bool:
        return await another.add_command(
            Command(command_id=CommandId(str(number)), run_id=draft.run_id, kind="pause", created_at=number)
        )

    async def advance() -> list[Outcome]:
        return [(await commit(store, draft.next_node(number).transition()))[0] for number in range(30)]

    outcomes, *added = await asyncio.gather(advance(), *(command(number) for number in range(30)))

    assert outcomes == [Committed()] * 30
    assert all(added)
    assert {c.command_id for c in (await load(store, draft.run_id)).commands} == {str(number) for number in range(30)}
