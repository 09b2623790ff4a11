"""The doctor: each row of the catalogue, with the damage made in a real database, and what is done about it.

What holds each time: the run goes on to the right result, no node that was recorded as done runs again, and `verify` is clean
afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
import asyncpg
import pytest

from perdure import Context, Engine, EngineSettings, ask, collect, node, stage, when, workflow
from perdure.engine.inspect import follow_events, verify_run
from perdure.engine.owning import doctoring
from perdure.engine.owning.doctoring import Diagnosis
from perdure.engine.runs.run import Run
from perdure.errors import RunCancelled, RunDamaged, RunFailed, RunResting
from perdure.ids import BranchId, EngineId, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.ailments import CATALOGUE
from perdure.journal.states import RunStatus
from tests.engine.damage import Damage
from tests.engine.engines import assert_whole, log_of

ran: Counter[str] = Counter()
keys: dict[str, list[str]] = {}
raises: dict[str, BaseException] = {}
closed: set[str] = set()

ASLEEP = EngineSettings(hibernate_after=0.0, grace_seconds=0.0)
"""Bodies that wait are unwound at once, and those that run are stopped at once."""


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    keys.clear()
    raises.clear()
    closed.clear()


async def work(ctx: Context) -> None:
    ran[ctx.node_id] += 1
    keys.setdefault(ctx.node_id, []).append(ctx.idempotency_key)
    while ctx.node_id in closed:
        await asyncio.sleep(0.005)
    if ctx.node_id in raises:
        raise raises[ctx.node_id]


@node
async def doc_first(ctx: Context, x: int) -> int:
    await work(ctx)
    return x + 1


@node
async def doc_next(ctx: Context, x: int, also: Any = None) -> int:
    await work(ctx)
    return x + 10


@node(pure=True)
async def doc_pure(ctx: Context, x: int) -> int:
    await work(ctx)
    return x + 10


@node(once=True)
async def doc_once(ctx: Context, x: int) -> int:
    await work(ctx)
    return x + 10


@node
async def doc_asking(ctx: Context, x: int) -> int:
    await ctx.step(work, ctx)
    return x + await ctx.ask("how many?", schema=int)


@workflow
def doc_asked(x: int) -> int:
    return doc_next(doc_asking(doc_first(x)))


@workflow
def doc_ask_node(x: int) -> int | None:
    first = doc_first(x)
    with when(ask.named("may")("go on?", schema=bool)):
        last = doc_next(first)
    return last


@workflow
def doc_diamond(x: int) -> int:
    first = doc_first(x)
    return doc_next.named("join")(doc_next.named("left")(first), doc_next.named("right")(first))


@workflow
def doc_purely(x: int) -> int:
    return doc_pure(doc_first(x))


@workflow
def doc_just_once(x: int) -> int:
    return doc_once(doc_first(x))


@workflow
def doc_chain(x: int) -> int:
    return doc_next(doc_first(x))


@asynccontextmanager
async def engine_at(url: str, **options: Any) -> AsyncGenerator[Engine]:
    async with Engine(url, settings=ASLEEP, **options) as engine:
        yield engine


async def until(run: Run[Any], status: RunStatus) -> None:
    async with asyncio.timeout(20):
        while await run.status() is not status or (await run.load()).owner is not None:
            await asyncio.sleep(0.005)


async def until_ran(node_id: str) -> None:
    async with asyncio.timeout(20):
        while not ran[node_id]:
            await asyncio.sleep(0.005)


async def recoveries_of(run: Run[Any]) -> list[e.RunRecovered]:
    found = [entry.event for entry in await log_of(run) if isinstance(entry.event, e.RunRecovered)]
    return [event for event in found if event.branch is not None]


async def answer_all(run: Run[Any], value: Any) -> None:
    for question in await run.questions():
        await run.answer(question.interaction_id, value)


async def assert_repaired(engine: Engine, run: Run[Any], code: str, *, cut: int) -> None:
    """One repair was recorded, with why, the branches and the cut; and everything adds up."""
    (recovered,) = await recoveries_of(run)
    assert recovered.code == code
    assert recovered.reason.startswith(f"{code}: ")
    assert (recovered.previous_branch, recovered.branch, recovered.cut) == (1, 2, cut)
    assert [branch.branch for branch in await run.branches()] == [1, 2]
    assert (await run.branches())[1].cut == cut
    assert (await run.doctor()).findings == ()
    await assert_whole(engine, run)


async def left_at(url: str, node_id: str, flow: Any = doc_asked) -> RunId:
    """Leave a run whose question is answered at a node that does not end, and return it."""
    closed.add(node_id)
    async with engine_at(url) as engine:
        run = await engine.start(flow, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        await answer_all(run, 5)
        await until_ran(node_id)
    closed.clear()
    return run.run_id


async def healed(engine: Engine, run: Run[Any], code: str) -> Diagnosis:
    """Have the doctor look, then repair, then look again."""
    seen = await run.doctor()
    assert [found.code for found in seen.findings] == [code]
    assert seen.repair is None
    assert not seen.is_healthy
    diagnosis = await run.doctor(fix=True)
    assert diagnosis.is_healthy
    assert diagnosis.repair is not None
    assert diagnosis.repair.code == code
    again = await run.doctor(fix=True)
    assert (again.findings, again.repair) == ((), None)
    return diagnosis


def doctors(url: str) -> Any:
    """Return an engine that has no code: it can repair runs, and drive none."""
    return engine_at(url, workflows=(), recover=False)


# A1: recorded as waiting, and nothing is waited for


async def test_a1_a_node_that_has_ended_since(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).set_run(run_id, status="awaiting_input")
    async with doctors(store_url) as engine:
        run = await engine.get(run_id)
        cut = (await run.state()).last_seq
        diagnosis = await healed(engine, run, "A1")
        assert diagnosis.repair is not None
        assert diagnosis.repair.status is RunStatus.RUNNING

    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        assert await run.result() == 17
        await assert_repaired(engine, run, "A1", cut=cut)
    assert ran == {"doc_first": 1, "doc_asking": 1, "doc_next": 2}
    assert len(set(keys["doc_next"])) == 1


@pytest.mark.parametrize("is_taken_up", [False, True])
async def test_a1_an_answer_that_was_not_taken_up(store_url: str, is_taken_up: bool) -> None:
    run_id = await left_at(store_url, "doc_next")
    damage = Damage(store_url)
    answered = await damage.cut_after(run_id, e.InteractionResponded)
    await damage.set_run(run_id, status="awaiting_input")
    async with doctors(store_url) as engine:
        run = await engine.get(run_id)
        if not is_taken_up:
            diagnosis = await healed(engine, run, "A1")
            assert diagnosis.findings[0].node_id == "doc_asking"
    ran.clear()

    async with engine_at(store_url) as engine:  # whoever asks for it repairs it, if nobody has before
        run = await engine.start(doc_asked, x=1, run_id=run_id)
        assert await run.result() == 17
        await assert_repaired(engine, run, "A1", cut=answered)
    assert ran == {"doc_next": 1}


async def test_a1_a_row_from_a_backup(store_url: str) -> None:
    damage = Damage(store_url)
    closed.add("doc_next")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        row = await damage.row(run.run_id)
        await answer_all(run, 5)
        await until_ran("doc_next")
    closed.clear()
    async with doctors(store_url) as engine:
        cut = (await (await engine.get(run.run_id)).state()).last_seq
        await damage.restore_row(row)
        await healed(engine, await engine.get(run.run_id), "A1")

    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 17
        await assert_repaired(engine, run, "A1", cut=cut)
    assert ran == {"doc_first": 1, "doc_asking": 1, "doc_next": 2}


async def test_a1_a_run_that_has_ended_since(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_ask_node, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        row = await damage.row(run.run_id)
        await answer_all(run, True)
        assert await run.result() == 12
        cut = (await run.state()).last_seq
        await damage.restore_row(row)

        await healed(engine, run, "A1")

        assert await run.result() == 12
        await assert_repaired(engine, run, "A1", cut=cut)
    assert ran == {"doc_first": 1, "doc_next": 1}


# A2: recorded as running, and it waits


@pytest.mark.parametrize("flow", [doc_asked, doc_ask_node], ids=["in a body", "between nodes"])
async def test_a2_the_question_stays_open_under_its_id(store_url: str, flow: Any) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(flow, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        (question,) = await run.questions()
        cut = (await run.state()).last_seq
    await Damage(store_url).say_it_runs(run.run_id)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        diagnosis = await healed(engine, run, "A2")
        assert diagnosis.repair is not None
        assert diagnosis.repair.status is RunStatus.AWAITING_INPUT
        assert [found.interaction_id for found in await run.questions()] == [question.interaction_id]
        assert [found.code for found in (await run.doctor()).notes] == ["B1"]
        await run.answer(question.interaction_id, 5 if flow is doc_asked else True)

    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == (17 if flow is doc_asked else 12)
        await assert_repaired(engine, run, "A2", cut=cut)
    assert set(ran.values()) == {1}


async def test_a2_is_repaired_by_whoever_takes_the_run_up(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        cut = (await run.state()).last_seq
    await Damage(store_url).say_it_runs(run.run_id)

    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        await until(run, RunStatus.AWAITING_INPUT)
        await answer_all(run, 5)
        assert await run.result() == 17
        await assert_repaired(engine, run, "A2", cut=cut)
    assert set(ran.values()) == {1}


async def test_a2_of_a_run_whose_engine_is_known_to_be_gone(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        cut = (await run.state()).last_seq
    damage = Damage(store_url)
    await damage.say_it_runs(run.run_id)
    await damage.set_run(run.run_id, owner="gone")

    async with engine_at(store_url, recover=False) as engine:
        assert await engine.adopt(run.run_id, EngineId("gone")) is None
        run = await engine.get(run.run_id)
        assert await run.status() is RunStatus.AWAITING_INPUT
        await assert_repaired(engine, run, "A2", cut=cut)


async def test_a2_a_row_from_a_backup(store_url: str) -> None:
    damage = Damage(store_url)
    closed.add("doc_first")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until_ran("doc_first")
    row = await damage.row(run.run_id)
    closed.clear()
    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        await until(run, RunStatus.AWAITING_INPUT)
        cut = (await run.state()).last_seq
    await damage.restore_row(row)

    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        await until(run, RunStatus.AWAITING_INPUT)
        await answer_all(run, 5)
        assert await run.result() == 17
        await assert_repaired(engine, run, "A2", cut=cut)
    assert ran == {"doc_first": 2, "doc_asking": 1, "doc_next": 1}


# A3: recorded as running, and everything is done


@pytest.mark.parametrize("is_told", [False, True], ids=["its end is lost", "its row is old"])
async def test_a3_is_completed_and_nothing_runs_again(store_url: str, is_told: bool) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1)
        assert await run.result() == 22
        cut = (await run.state()).last_seq
    if is_told:
        await damage.say_it_runs(run.run_id)
    else:
        cut = await damage.cut_after(run.run_id, e.NodeCompleted)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        diagnosis = await healed(engine, run, "A3")
        assert diagnosis.repair is not None
        assert diagnosis.repair.status is RunStatus.COMPLETED
        assert await run.result() == 22
        await assert_repaired(engine, run, "A3", cut=cut)
    assert set(ran.values()) == {1}


async def test_a3_counts_what_was_skipped(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_ask_node, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        await answer_all(run, False)
        assert await run.result() is None
    await Damage(store_url).say_it_runs(run.run_id)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        await healed(engine, run, "A3")
        assert await run.result() is None
        await assert_whole(engine, run)


async def test_a3_is_not_what_is_only_half_done(store_url: str) -> None:
    closed.add("left")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1)
        await until_ran("left")
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        assert (await run.doctor()).findings == ()


# A4: recorded as running, and a node has failed


async def failed_and_left(url: str, error: BaseException, node_id: str, flow: Any, *, is_told: bool) -> RunId:
    """Have a run fail, and its row say that it is running; its log may not have come to the end of the run either."""
    raises[node_id] = error
    damage = Damage(url)
    async with engine_at(url) as engine:
        run = await engine.start(flow, x=1)
        with pytest.raises(RunFailed):
            await run.result()
    if is_told:
        await damage.say_it_runs(run.run_id)
    else:
        await damage.cut_after(run.run_id, e.NodeFailed)
    raises.clear()
    return run.run_id


TOLD = pytest.mark.parametrize("is_told", [False, True], ids=["its end is lost", "its row is old"])


@TOLD
@pytest.mark.parametrize("error", [ConnectionError("reset"), MemoryError()], ids=["transient", "resource"])
async def test_a4_what_may_pass_is_tried_again_under_its_key(store_url: str, error: Exception, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, error, "left", doc_diamond, is_told=is_told)
    before = ran["left"]
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        assert await run.result() == 22
        (recovered,) = await recoveries_of(run)
        assert recovered.code == "A4"
        await assert_whole(engine, run)
    assert (ran["doc_first"], ran["left"], ran["join"]) == (1, before + 1, 1)
    assert len(set(keys["left"])) == 1


@TOLD
@pytest.mark.parametrize("error", [PermissionError("no"), FileNotFoundError("rates.txt")])
async def test_a4_what_is_to_be_repaired_waits_for_somebody(store_url: str, error: Exception, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, error, "doc_next", doc_chain, is_told=is_told)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunResting, match="to be repaired"):
            await run.result()
        assert (await run.state()).failed_node == "doc_next"
        assert (await run.doctor()).findings == ()
        await assert_whole(engine, run)
        await run.resume(reason="repaired")
        await until(run, RunStatus.COMPLETED)
        assert await run.result() == 12
        await assert_whole(engine, run)
    assert ran == {"doc_first": 1, "doc_next": 2}
    assert len(set(keys["doc_next"])) == 1


@TOLD
async def test_a4_what_is_to_be_repaired_can_be_given_other_values(store_url: str, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, FileNotFoundError("x"), "doc_next", doc_chain, is_told=is_told)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunResting):
            await run.result()
        await run.jump("doc_next", inputs={"x": 100})
        assert await run.result() == 110
        await assert_whole(engine, run)
    assert ran["doc_first"] == 1


@TOLD
async def test_a4_a_bug_fails_the_run(store_url: str, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, TypeError("a bug"), "doc_next", doc_chain, is_told=is_told)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunFailed, match="a bug"):
            await run.result()
        assert ran == {"doc_first": 1, "doc_next": 1}
        await assert_whole(engine, run)
        await run.retry(reason="mended")
        assert await run.result() == 12
        await assert_whole(engine, run)


@TOLD
async def test_a4_nobody_knows_what_an_unknown_error_has_done(store_url: str, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, RuntimeError("?"), "doc_next", doc_chain, is_told=is_told)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunResting, match="in doubt"):
            await run.result()
        await assert_whole(engine, run)
        await run.resolve("doc_next", "retry")
        await until(run, RunStatus.COMPLETED)
        assert await run.result() == 12
        await assert_whole(engine, run)
    assert ran == {"doc_first": 1, "doc_next": 2}


@TOLD
async def test_a4_what_is_pure_is_tried_again(store_url: str, is_told: bool) -> None:
    run_id = await failed_and_left(store_url, RuntimeError("?"), "doc_pure", doc_purely, is_told=is_told)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        assert await run.result() == 12
        await assert_whole(engine, run)
    assert ran == {"doc_first": 1, "doc_pure": 2}


async def test_a4_what_must_run_once_is_not_tried_again(store_url: str) -> None:
    run_id = await failed_and_left(store_url, ConnectionError("?"), "doc_once", doc_just_once, is_told=False)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunResting, match="in doubt"):
            await run.result()
        await assert_whole(engine, run)
    assert ran == {"doc_first": 1, "doc_once": 1}


async def test_a4_needs_the_code_of_the_nodes(store_url: str) -> None:
    run_id = await failed_and_left(store_url, ConnectionError("?"), "doc_next", doc_chain, is_told=True)
    async with doctors(store_url) as engine:
        diagnosis = await (await engine.get(run_id)).doctor(fix=True)
        assert [found.code for found in diagnosis.left] == ["A4"]
        assert "--import" in diagnosis.left[0].left
        assert len(await (await engine.get(run_id)).branches()) == 1


# B, C, D1, E1, F: no issues


async def test_b1_and_b2_a_question_is_open_as_long_as_it_takes(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        (question,) = await run.questions()

        diagnosis = await run.doctor(fix=True)
        assert diagnosis.is_healthy
        assert [(found.code, found.node_id) for found in diagnosis.notes] == [("B1", "doc_asking")]

        long_ago = (await run.state()).created_at - 30 * 86_400_000_000
        await damage.execute("UPDATE run_waits SET opened_at = ? WHERE run_id = ?", long_ago, run.run_id)
        edit = "UPDATE run_events SET event_time = ? WHERE run_id = ? AND event_type = 'InteractionRequested'"
        await damage.execute(edit, long_ago, run.run_id)
        diagnosis = await run.doctor(fix=True)
        assert diagnosis.is_healthy
        assert [found.code for found in diagnosis.notes] == ["B2"]
        assert len(await run.branches()) == 1
        await run.answer(question.interaction_id, 5)
        assert await run.result() == 17


async def test_c1_what_has_begun_is_taken_up_by_whoever_comes(store_url: str) -> None:
    closed.add("doc_next")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_chain, x=1)
        await until_ran("doc_next")
    closed.clear()
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        diagnosis = await run.doctor(fix=True)
        assert (diagnosis.is_healthy, diagnosis.repair) == (True, None)
        assert "F1" in {found.code for found in diagnosis.notes}
    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 12
        assert len(await run.branches()) == 1
        await assert_whole(engine, run)


@workflow
def doc_staged(x: int) -> int:
    with stage("begun"):
        return doc_next(doc_first(x))


async def test_c2_a_stage_that_has_begun_is_ended_by_whoever_comes(store_url: str) -> None:
    closed.add("doc_next")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_staged, x=1)
        await until_ran("doc_next")
    closed.clear()
    await Damage(store_url).cut_after(run.run_id, e.NodeStarted)  # as if the process had been killed
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        diagnosis = await run.doctor(fix=True)
        assert (diagnosis.is_healthy, diagnosis.repair) == (True, None)
        assert [found.code for found in diagnosis.notes] == ["C1", "C2", "F1"]
    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 12
        assert len(await run.branches()) == 1
        await assert_whole(engine, run)


async def test_d1_a_branch_on_which_the_run_never_went_on_changes_nothing(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        state = await run.state()
        created = e.BranchCreated(
            branch_id=BranchId(2), parent=BranchId(1), cut=state.last_seq, dropped=(NodeId("doc_first"),)
        )
        await damage.append(run.run_id, created, seq=state.last_seq + 1, at=state.created_at)

        diagnosis = await run.doctor(fix=True)

        assert (diagnosis.is_healthy, diagnosis.repair) == (True, None)
        assert [found.code for found in diagnosis.notes] == ["B1", "D1"]
        await assert_whole(engine, run)
        await answer_all(run, 5)
        assert await run.result() == 17
    assert set(ran.values()) == {1}


# D2: a jump that was not made


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "awaiting_input"])
async def test_d2_a_jump_that_was_not_made_is_dropped_and_reported(store_url: str, ending: str) -> None:
    damage = Damage(store_url)
    flow = doc_asked if ending in ("awaiting_input", "cancelled") else doc_diamond
    if ending == "failed":
        raises["left"] = ValueError("no")
    async with engine_at(store_url) as engine:
        run = await engine.start(flow, x=1)
        await until(run, RunStatus.AWAITING_INPUT if flow is doc_asked else RunStatus(ending))
        if ending == "cancelled":
            await run.cancel("not needed")
            await until(run, RunStatus.CANCELLED)
        row, before = await damage.row(run.run_id), await run.load()
        closed.add("doc_first")
        ran.clear()
        await run.jump("doc_first", inputs={"x": 100})
        await until_ran("doc_first")
    closed.clear()
    ran.clear()
    asked = await damage.cut_after(run.run_id, e.JumpRequested)
    await damage.restore_row({**row, "last_seq": asked})
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)

        diagnosis = await healed(engine, run, "D2")

        assert diagnosis.findings[0].node_id == "doc_first"
        assert "ask for it again" in diagnosis.findings[0].remedy
        assert diagnosis.repair is not None
        assert diagnosis.repair.cut == before.run.last_seq
        assert await run.status() == ending
        after = await run.load()
        assert {node.node_id: node.outputs for node in after.nodes} == {n.node_id: n.outputs for n in before.nodes}
        assert (after.run.error, after.run.reason) == (before.run.error, before.run.reason)
        await assert_whole(engine, run)
    assert not ran
    raises.clear()
    async with engine_at(store_url) as engine:  # and it can be asked for again
        run = await engine.get(run.run_id)
        await run.jump("doc_first", inputs={"x": 100})
        if flow is doc_asked:
            await until(run, RunStatus.AWAITING_INPUT)
            await answer_all(run, 5)
        assert await run.result() == (116 if flow is doc_asked else 121)
        await assert_whole(engine, run)


async def test_d2_a_jump_that_the_log_has_is_kept(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1)
        assert await run.result() == 22
        closed.add("join")
        ran.clear()
        await run.jump("left", inputs={"x": 100})
        await until_ran("join")
    closed.clear()
    await damage.set_run(run.run_id, branch_id=1)

    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 120
        (recovered,) = await recoveries_of(run)
        assert (recovered.code, recovered.previous_branch, recovered.branch) == ("D2", 2, 3)
        await assert_whole(engine, run)
    assert ran == {"left": 1, "join": 2}


# E: versions


async def test_e1_a_run_cannot_be_without_a_version(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_chain, x=1)
        await run.result()
        with pytest.raises((apsw.ConstraintError, asyncpg.NotNullViolationError)):
            await Damage(store_url).set_run(run.run_id, workflow_version=None)
        assert not CATALOGUE["E1"].is_issue


async def test_e2_the_run_goes_on_with_the_version_it_was_started_with(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).set_run(run_id, workflow_version=99, graph_hash="gone")
    async with doctors(store_url) as engine:
        run = await engine.get(run_id)
        cut = (await run.state()).last_seq
        await healed(engine, run, "E2")
        assert (await run.state()).version == 1

    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        assert await run.result() == 17
        (recovered,) = await recoveries_of(run)
        assert (recovered.version, recovered.cut) == (1, cut)
        await assert_whole(engine, run)
    assert ran == {"doc_first": 1, "doc_asking": 1, "doc_next": 2}


async def test_e2_is_repaired_by_whoever_takes_the_run_up(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).set_run(run_id, workflow_version=99)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        assert await run.result() == 17
        await assert_whole(engine, run)


async def test_e2_a_run_whose_first_version_is_gone_cannot_go_on(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).execute("DELETE FROM workflow_versions WHERE workflow = 'doc_asked'")
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        diagnosis = await run.doctor(fix=True)
        assert [found.code for found in diagnosis.left] == ["E2"]
        assert "not there either" in diagnosis.left[0].left
        with pytest.raises(RunDamaged, match="not in the store"):
            await engine.adopt(run_id)
        assert len(await run.branches()) == 1


async def test_a_run_that_cannot_be_repaired_is_looked_at_again_after_a_while(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await left_at(store_url, "doc_next")
    damage = Damage(store_url)
    await damage.execute("UPDATE workflow_versions SET version = 50 WHERE workflow = 'doc_asked'")
    async with engine_at(store_url, recover=False) as engine:
        with pytest.raises(RunDamaged):
            await engine.adopt(run_id)
        await damage.execute("UPDATE workflow_versions SET version = 1 WHERE workflow = 'doc_asked'")
        await damage.set_run(run_id, status="awaiting_input")
        with pytest.raises(RunDamaged):  # it was just looked at, and its log may be long
            await engine.adopt(run_id)

        monkeypatch.setattr(doctoring, "LOOK_AGAIN_SECONDS", 0.0)

        assert await engine.adopt(run_id) is not None
        assert await (await engine.get(run_id)).result() == 17


# F: streams


async def test_f1_followers_go_on_when_the_engine_is_gone_and_another_comes(store_url: str) -> None:
    closed.add("doc_next")
    seen: list[int] = []
    async with engine_at(store_url, workflows=(), recover=False) as watching:
        async with engine_at(store_url) as engine:
            run = await engine.start(doc_chain, x=1)
            await until_ran("doc_next")

            async def follow() -> None:
                async for entry in (await watching.get(run.run_id)).events():
                    seen.append(entry.seq)

            following = asyncio.create_task(follow())
            while not seen:
                await asyncio.sleep(0.005)
        diagnosis = await (await watching.get(run.run_id)).doctor(fix=True)
        assert (diagnosis.is_healthy, [found.code for found in diagnosis.notes]) == (True, ["F1"])
        assert not following.done()
        closed.clear()
        async with engine_at(store_url) as engine:
            assert await (await engine.get(run.run_id)).result() == 12
            async with asyncio.timeout(20):
                await following
            last = (await (await engine.get(run.run_id)).state()).last_seq
    assert seen == list(range(1, last + 1))


async def test_f1_followers_end_with_a_run_that_was_repaired_at_its_end(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1)
        await run.result()
        await Damage(store_url).say_it_runs(run.run_id)
        await run.doctor(fix=True)
        async with asyncio.timeout(20):
            followed = [entry.seq async for entry in run.events()]
            told = [entry.seq async for entry in follow_events(engine.store, run.run_id)]
        assert followed == told == list(range(1, (await run.state()).last_seq + 1))


async def test_f2_a_run_that_nobody_follows_is_recorded_all_the_same(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_chain, x=1)
        await until(run, RunStatus.COMPLETED)
        assert (await run.doctor()).findings == ()
        assert [entry.seq async for entry in run.events()] == list(range(1, (await run.state()).last_seq + 1))


# What the catalogue does not name


async def test_r1_any_status_is_what_the_log_says(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        await run.pause("for a while")
        await until(run, RunStatus.PAUSED)
        await damage.say_it_runs(run.run_id)
    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        await until(run, RunStatus.PAUSED)
        assert [event.code for event in await recoveries_of(run)] == ["R1"]
        await assert_whole(engine, run)
        await run.resume()
        await until(run, RunStatus.AWAITING_INPUT)
        await answer_all(run, 5)
        assert await run.result() == 17
        await assert_whole(engine, run)


async def test_r1_a_run_that_was_cancelled_stays_so(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        await run.cancel("not needed")
        with pytest.raises(RunCancelled):
            await run.result()
    await Damage(store_url).say_it_runs(run.run_id)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        await healed(engine, run, "R1")
        with pytest.raises(RunCancelled):
            await run.result()
        await assert_whole(engine, run)
        async with asyncio.timeout(20):  # followers know that it has ended
            told = [entry.seq async for entry in follow_events(engine.store, run.run_id)]
        assert told == list(range(1, (await run.state()).last_seq + 1))


async def test_r1_rows_of_nodes_and_waits_are_made_from_the_log(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
        await damage.execute("UPDATE run_node_state SET status = 'idle', outputs = NULL WHERE node_id = 'doc_first'")
        await damage.execute("DELETE FROM run_waits WHERE run_id = ?", run.run_id)
        await damage.execute("DELETE FROM run_steps WHERE run_id = ?", run.run_id)
        await healed(engine, run, "R1")
        await answer_all(run, 5)
        assert await run.result() == 17
        await assert_whole(engine, run)
    assert set(ran.values()) == {1}


async def test_r2_a_log_with_a_gap_is_left_alone(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).execute("DELETE FROM run_events WHERE run_id = ? AND seq = 5", run_id)
    async with doctors(store_url) as engine:
        run = await engine.get(run_id)
        diagnosis = await run.doctor(fix=True)
        assert [found.code for found in diagnosis.left] == ["R2"]
        assert "event 5 is missing" in diagnosis.left[0].problem
        assert len(await run.branches()) == 1
        assert await verify_run(engine, run_id) != []


async def test_r2_a_log_that_ends_too_early_is_left_alone(store_url: str) -> None:
    run_id = await left_at(store_url, "doc_next")
    await Damage(store_url).execute("DELETE FROM run_events WHERE run_id = ? AND seq > 8", run_id)
    async with engine_at(store_url) as engine:
        run = await engine.get(run_id)
        with pytest.raises(RunDamaged, match="R2"):
            await engine.adopt(run_id)
        assert ran["doc_next"] == 1
        assert len(await run.branches()) == 1


# What runs hold besides


@node(concurrency=2)
async def doc_item(ctx: Context, x: int) -> int:
    ran[f"item {x}"] += 1
    while x >= 4 and "items" in closed:
        await asyncio.sleep(0.005)
    return x * 10


@node
def doc_numbers(n: int) -> Iterator[int]:
    yield from range(n)


@workflow
def doc_items(n: int) -> list[int]:
    return collect(doc_item.map(doc_numbers(n)))


async def test_items_that_are_done_are_not_done_again(store_url: str) -> None:
    closed.add("items")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_items, n=8)
        await until_ran("item 5")
        await asyncio.sleep(0.1)  # what is done is recorded by then, with or without the last ones
    closed.clear()
    before = Counter(ran)
    await Damage(store_url).set_run(run.run_id, status="awaiting_input")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_items, n=8, run_id=run.run_id)
        assert await run.result() == [x * 10 for x in range(8)]
        assert [event.code for event in await recoveries_of(run)] == ["A1"]
        await assert_whole(engine, run)
    assert [ran[f"item {x}"] for x in range(4)] == [before[f"item {x}"] for x in range(4)] == [1, 1, 1, 1]


@node
async def doc_sleeping(ctx: Context, x: int) -> int:
    await ctx.step(work, ctx)
    await ctx.sleep(0.4)
    return x + await ctx.wait_for("go")


@workflow
def doc_slept(x: int) -> int:
    return doc_next(doc_sleeping(x))


async def test_times_and_signals_are_waited_for_as_before(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_slept, x=1)
        await until(run, RunStatus.SUSPENDED)
        await run.signal("go", 5)
        await run.signal("go", 6)
        await run.signal("other", 7)
        await until(run, RunStatus.SUSPENDED)
    await damage.say_it_runs(run.run_id)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        diagnosis = await run.doctor(fix=True)
        assert diagnosis.is_healthy
        await assert_whole(engine, run)
    async with engine_at(store_url) as engine:
        run = await engine.get(run.run_id)
        assert await run.result() == 16
        await assert_whole(engine, run)
    assert ran == {"doc_sleeping": 1, "doc_next": 1}


async def test_what_nodes_are_given_stays_so(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1)
        await run.result()
        closed.add("join")
        ran.clear()
        await run.jump("join", inputs={"x": 1_000})
        await until_ran("join")
    closed.clear()
    await damage.set_run(run.run_id, status="awaiting_input")
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_diamond, x=1, run_id=run.run_id)
        assert await run.result() == 1_010
        assert [event.code for event in await recoveries_of(run)] == ["A1"]
        await assert_whole(engine, run)
    assert ran == {"join": 2}
    assert len(set(keys["join"])) == 2  # of the first time, and of the jump; not another one of the repair


# Who repairs, and how often


async def test_a_run_that_a_living_engine_drives_is_not_touched(store_url: str) -> None:
    closed.add("doc_next")
    async with engine_at(store_url) as engine, doctors(store_url) as doctor:
        run = await engine.start(doc_chain, x=1)
        await until_ran("doc_next")
        await Damage(store_url).set_run(run.run_id, status="paused")
        diagnosis = await (await doctor.get(run.run_id)).doctor(fix=True)
        assert [found.code for found in diagnosis.left] == ["R1"]
        assert "drives it" in diagnosis.left[0].left
        closed.clear()
        assert await run.result() == 12
        await assert_whole(engine, run)


async def test_a_run_that_is_damaged_again_and_again_is_left_alone(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_asked, x=1)
        await until(run, RunStatus.AWAITING_INPUT)
    async with doctors(store_url) as engine:
        run = await engine.get(run.run_id)
        allowed = (await run.state()).settings.max_recoveries
        for _ in range(allowed + 1):
            await damage.say_it_runs(run.run_id)
            assert (await run.doctor(fix=True)).is_healthy
        await damage.say_it_runs(run.run_id)
        diagnosis = await run.doctor(fix=True)
        assert "too often" in diagnosis.left[0].left
        assert len(await run.branches()) == allowed + 2


async def test_all_runs_are_looked_at(store_url: str) -> None:
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        runs = [await engine.start(doc_asked, x=x) for x in range(4)]
        for run in runs:
            await until(run, RunStatus.AWAITING_INPUT)
    for run in runs[:2]:
        await damage.say_it_runs(run.run_id)
    async with doctors(store_url) as engine:
        assert {found.run_id for found in await engine.doctor()} == {run.run_id for run in runs[:2]}
        fixed = await engine.doctor(fix=True)
        assert [found.is_healthy for found in fixed] == [True, True]
        assert await engine.doctor() == []


ROUNDS = 15


@pytest.mark.slow
async def test_two_who_repair_one_run_make_one_branch(store_url: str) -> None:
    """Doctors, and engines that are asked to take the run up, all at once."""
    damage = Damage(store_url)
    async with engine_at(store_url) as engine:
        runs = [await engine.start(doc_asked, x=1) for _ in range(ROUNDS)]
        for run in runs:
            await until(run, RunStatus.AWAITING_INPUT)
    for run in runs:
        await damage.say_it_runs(run.run_id)
    async with (
        doctors(store_url) as one,
        doctors(store_url) as other,
        engine_at(store_url, recover=False) as third,
        engine_at(store_url, recover=False) as fourth,
    ):
        for run in runs:
            await asyncio.gather(
                one.doctor(run.run_id, fix=True),
                other.doctor(run.run_id, fix=True),
                third.adopt(run.run_id),
                fourth.adopt(run.run_id),
            )
            run = await third.get(run.run_id)
            assert len(await recoveries_of(run)) == 1
            assert [branch.branch for branch in await run.branches()] == [1, 2]
            await answer_all(run, 5)
            assert await run.result() == 17
            await assert_whole(third, run)
    assert set(ran.values()) == {ROUNDS}


@pytest.mark.slow
async def test_two_who_resume_a_damaged_run_make_one_branch(store_url: str) -> None:
    damage = Damage(store_url)
    closed.add("doc_next")
    async with engine_at(store_url) as engine:
        runs = [await engine.start(doc_asked, x=1) for _ in range(ROUNDS)]
        for run in runs:
            await until(run, RunStatus.AWAITING_INPUT)
            await answer_all(run, 5)
        async with asyncio.timeout(20):
            while ran["doc_next"] < ROUNDS:
                await asyncio.sleep(0.005)
    closed.clear()
    for run in runs:
        await damage.set_run(run.run_id, status="awaiting_input")
    async with engine_at(store_url, recover=False) as one, engine_at(store_url, recover=False) as other:
        for run in runs:
            await asyncio.gather(*(engine.adopt(run.run_id) for engine in (one, other)))
            handles = [await engine.get(run.run_id) for engine in (one, other)]
            assert await asyncio.gather(*(handle.result() for handle in handles)) == [17, 17]
            run = await one.get(run.run_id)
            assert len(await recoveries_of(run)) == 1
            assert len(await run.branches()) == 2
            await assert_whole(one, run)
    assert ran == {"doc_first": ROUNDS, "doc_asking": ROUNDS, "doc_next": 2 * ROUNDS}


async def test_a_branch_whose_number_is_followed_by_none_ends_where_it_was_left(store_url: str) -> None:
    async with engine_at(store_url) as engine:
        run = await engine.start(doc_chain, x=1)
        await run.result()
        last = (await run.state()).last_seq
        await Damage(store_url).set_run(run.run_id, branch_id=7)
        await healed(engine, run, "R1")

        assert (await run.at_end_of(1)).run.last_seq == last
        assert (await run.state()).branch_id == 8
