"""What every store promises of runs whose logs are written on the side (`journal="audit"`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files

import asyncpg
import pytest
from msgspec.structs import replace

from perdure.ids import EngineId, EventId, NodeId, RunId, Seq, new_id
from perdure.journal import events as e
from perdure.journal.states import AuditState
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.queries import load_queries
from perdure.store.records import Refused
from perdure.store.shapes import EventBatch
from perdure.store.transitions import Claim, Committed, LeaseLost, RunExists, Transition
from tests.store.builders import ENGINE, Draft, engine_row, save_workflow, started

OTHER = EngineId("engine-b")


def audited(transition: Transition) -> Transition:
    """Return a transition as of a run whose log is written on the side."""
    settings = replace(transition.run.settings, journal="audit")
    first = transition.events[0].id if transition.events else EventId("none")
    audit = AuditState(transition=first, birth=EventId(f"birth of {transition.run_id}"), version=1)
    return replace(transition, run=replace(transition.run, settings=settings, audit=audit))


def batch_of(transition: Transition, *, only: Sequence[int] | None = None) -> EventBatch:
    events = [entry for entry in transition.events if only is None or entry.seq in only]
    return EventBatch(run_id=transition.run_id, created_at=transition.run.created_at, events=tuple(events))


async def seqs_of(store: Store, run_id: RunId) -> list[int]:
    return [entry.seq for entry in await store.load_events(run_id, after=Seq(0), limit=1_000)]


async def committed(store: Store, *transitions: Transition) -> None:
    assert list(await store.commit(transitions)) == [Committed()] * len(transitions)


async def test_events_are_not_written_with_the_rows_but_beside(store: Store) -> None:
    begun = audited(started("run").transition())

    await committed(store, begun)

    stored = await store.load_run(RunId("run"))
    assert stored is not None
    assert stored.run == begun.run
    assert [node.node_id for node in stored.nodes] == ["step0"]
    assert stored.tail == ()
    assert await seqs_of(store, begun.run_id) == []
    await store.append_events([batch_of(begun)])
    assert list(await store.load_events(begun.run_id, after=Seq(0), limit=99)) == list(begun.events)
    assert await store.count_events(begun.run_id, through=Seq(3)) == 3


async def test_a_transition_whose_answer_was_lost_is_found_again(store: Store) -> None:
    draft = started("run")
    begun, next_one = audited(draft.transition()), audited(draft.next_node(0).transition())

    await committed(store, begun)
    await committed(store, begun)  # offered again
    await committed(store, next_one)
    await committed(store, next_one)

    stored = await store.load_run(RunId("run"))
    assert stored is not None
    assert stored.run.last_seq == next_one.run.last_seq


async def test_of_two_claims_that_look_alike_one_is_refused(store: Store) -> None:
    """They lead to the same epoch and the same number of events, and let go of the run."""
    await store.register_engine(engine_row(ENGINE), ttl_seconds=60)
    await store.register_engine(engine_row(OTHER), ttl_seconds=60)
    draft = started("run")
    await committed(store, audited(draft.transition()))
    await committed(store, audited(draft.add(e.RunSuspended(wake_at=7)).transition()))
    stored = await store.load_run(RunId("run"))
    assert stored is not None
    claims = [
        audited(Draft.continued(stored).claim(engine).transition(Claim(engine_id=engine, lets_go=True)))
        for engine in (ENGINE, OTHER)
    ]

    assert [next(iter(await store.commit([claim]))) for claim in claims] == [Committed(), LeaseLost()]
    assert list(await store.commit([claims[0]])) == [Committed()]


async def test_what_others_have_written_since_is_not_taken_for_ones_own(store: Store) -> None:
    draft = started("run")
    begun = audited(draft.transition())
    await committed(store, begun)
    await committed(store, audited(draft.next_node(0).transition()))

    assert list(await store.commit([begun])) == [RunExists()]
    stored = await store.load_run(RunId("run"))
    assert stored is not None
    late = audited(replace(Draft.continued(stored).next_node(1).transition(), base_seq=Seq(3)))
    assert list(await store.commit([late])) == [LeaseLost()]


async def test_another_run_of_the_same_id_exists(store: Store) -> None:
    await committed(store, audited(started("run").transition()))

    assert list(await store.commit([audited(started("run").transition())])) == [RunExists()]


async def test_runs_of_both_kinds_go_in_one_group(store: Store) -> None:
    drafts = [started(f"run-{number}") for number in range(4)]
    begun = [draft.transition() for draft in drafts]
    begun = [audited(one) if number % 2 else one for number, one in enumerate(begun)]
    await committed(store, *begun)
    later = [draft.next_node(0).transition() for draft in drafts]
    later = [audited(one) if number % 2 else one for number, one in enumerate(later)]
    later[1] = replace(later[1], epoch=9)
    later[2] = replace(later[2], epoch=9)

    outcomes = list(await store.commit(later))

    assert outcomes == [Committed(), LeaseLost(), LeaseLost(), Committed()]
    lengths = [len(await seqs_of(store, one.run_id)) for one in later]
    assert lengths == [later[0].run.last_seq, 0, begun[2].run.last_seq, 0]


async def test_events_are_added_once_and_in_any_order(store: Store) -> None:
    draft = started("run")
    begun = audited(draft.transition())
    await committed(store, begun)
    later = audited(draft.next_node(0).transition())
    await committed(store, later)

    await store.append_events([batch_of(later)])
    await store.append_events([batch_of(begun, only=[2, 4])])
    await store.append_events([batch_of(begun, only=[1, 2]), batch_of(later)])

    assert await seqs_of(store, begun.run_id) == [1, 2, 4, *(entry.seq for entry in later.events)]


async def test_what_belongs_to_no_such_run_is_left_out(store: Store) -> None:
    begun = audited(started("run").transition())
    logged = started("logged").transition()
    gone = audited(started("gone").transition())
    await committed(store, begun, logged)
    ahead = replace(begun.events[0], seq=Seq(99), id=EventId(new_id()))
    forged = replace(batch_of(logged), events=(replace(logged.events[0], seq=Seq(logged.run.last_seq + 1)),))

    await store.append_events(
        [
            replace(batch_of(begun), created_at=begun.run.created_at - 1),  # of another run that had this id
            replace(batch_of(begun), arrival="earlier"),  # of this one, before it was written whole
            batch_of(gone),
            forged,
            replace(batch_of(begun), events=(ahead,)),
            batch_of(begun, only=[2]),
        ]
    )

    assert await seqs_of(store, begun.run_id) == [2]
    assert await seqs_of(store, gone.run_id) == []
    assert await seqs_of(store, logged.run_id) == [entry.seq for entry in logged.events]


async def test_what_belongs_to_a_run_before_it_arrived_is_left_out(store: Store) -> None:
    begun = audited(started("run").transition())
    assert begun.run.audit is not None
    origin = e.Origin(run_id=RunId('\x00"arrival":"here'), seq=Seq(1))
    audit = replace(begun.run.audit, arrival="here", forked_from=origin)
    begun = replace(begun, run=replace(begun.run, audit=audit))
    await committed(store, begun)

    await store.append_events([batch_of(begun), replace(batch_of(begun), arrival="elsewhere")])
    assert await seqs_of(store, begun.run_id) == []
    await store.append_events([replace(batch_of(begun, only=[2]), arrival="here")])

    assert await seqs_of(store, begun.run_id) == [2]


async def test_nothing_of_a_batch_is_written_if_one_event_is_refused(store: Store) -> None:
    begun = audited(started("run").transition())
    await committed(store, begun)
    bad = replace(begun.events[1], event=e.NodeSkipped(node_id=NodeId("\ud800"), reason=""))

    with pytest.raises(Refused):
        await store.append_events([batch_of(begun, only=[1]), replace(batch_of(begun), events=(bad,))])

    assert await seqs_of(store, begun.run_id) == []


async def test_what_is_older_than_what_was_made_compact_is_left_out(store: Store) -> None:
    draft = started("run")
    begun = audited(draft.transition())
    later = audited(draft.next_node(0).next_node(1).transition())
    await committed(store, begun)
    await committed(store, later)
    await store.append_events([batch_of(begun, only=[1, 3]), batch_of(later)])
    assert await store.compact_log(begun.run_id, through=Seq(4), most=10) == 2
    compacted = (await store.list_segments(begun.run_id))[-1].last_seq
    assert compacted == 3

    await store.append_events([batch_of(begun)])

    seqs = await seqs_of(store, begun.run_id)
    assert seqs == [1, 3]
    rest = [entry.seq for entry in await store.load_events(begun.run_id, after=Seq(3), limit=99)]
    assert rest == [4, 5, *(entry.seq for entry in later.events)]


async def test_an_event_that_comes_while_a_log_is_made_compact_does_not_get_in_behind(postgres_url: str) -> None:
    store = await open_store(postgres_url)
    await save_workflow(store)
    draft = started("run")
    begun = audited(draft.transition())
    await committed(store, begun)
    await store.append_events([batch_of(begun, only=[1, 4])])
    other = await asyncpg.connect(postgres_url)
    sql = load_queries("perdure.store.postgres")
    try:
        transaction = other.transaction()
        await transaction.start()  # as `compact_log` does it, half-way
        await other.fetch(sql["hold_log"], "default", "run")
        taken = await other.fetch(sql["take_oldest_events"], "default", "run", 4, 10)
        assert len(taken) == 2
        late = asyncio.ensure_future(store.append_events([batch_of(begun, only=[2])]))
        await asyncio.sleep(0.2)
        assert not late.done()
        await other.execute(
            "INSERT INTO run_log_segments VALUES ('default', 'run', 4, 1, 0, 1, 0, 0, false, $1)", b"whatever"
        )
        await transaction.commit()

        await late

        assert await other.fetch("SELECT seq FROM run_events WHERE run_id = 'run'") == []
    finally:
        await other.execute("DELETE FROM run_log_segments")
        await other.close()
        await store.close()


async def test_a_locked_log_holds_up_nobody(postgres_url: str) -> None:
    store = await open_store(postgres_url)
    await save_workflow(store)
    other = await asyncpg.connect(postgres_url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE run_events IN ACCESS EXCLUSIVE MODE")
            async with asyncio.timeout(3):
                draft = started("run")
                await committed(store, audited(draft.transition()))
                await committed(store, audited(draft.next_node(0).transition()))
                assert await store.load_run(RunId("run")) is not None
    finally:
        await other.close()
        await store.close()


def test_what_commits_without_events_does_not_name_the_log() -> None:
    """Whoever names a table waits for those who have locked it."""
    sql = load_queries("perdure.store.postgres")

    assert not any("run_events" in sql[name] for name in ("commit_audited", "look_up_audited", "load_run"))


def test_the_commits_with_and_without_events_are_one_text() -> None:
    text = files("perdure.store.postgres").joinpath("queries.sql").read_text(encoding="utf-8")
    sql = load_queries("perdure.store.postgres")

    assert text.count("UPDATE run_state AS r\n") == 1
    for whole, part in (("commit_group", "commit_audited"), ("look_up", "look_up_audited")):
        lines, kept = sql[whole].splitlines(), sql[part].splitlines()
        assert [line for line in lines if line in kept] == kept
        assert any("run_events" in line for line in lines if line not in kept)
