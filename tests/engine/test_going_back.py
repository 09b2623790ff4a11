"""Going back: what has failed is tried again, or a run goes back to a node and goes on otherwise. What is not concerned stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import Context, Engine, Outputs, ask, collect, node, workflow
from perdure.engine.runs.run import Run
from perdure.errors import CannotGoBack, PlaceNotFound, RunCancelled, RunFailed, WrongInputs
from perdure.ids import BranchId, NodeId
from perdure.journal.states import NodeStatus, RunStatus
from tests.engine.engines import assert_whole, log_of

ran: Counter[str] = Counter()
keys: list[str] = []
broken: set[str] = set()
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    keys.clear()
    broken.clear()
    gates.clear()


@node
async def back_step(ctx: Context, x: int) -> int:
    ran[ctx.node_id] += 1
    if ctx.node_id in broken:
        raise ValueError(f"{ctx.node_id} is broken")
    return x + 1


@workflow
def back_chain(x: int) -> int:
    for _ in range(50):
        x = back_step(x)
    return x


@node
async def back_add(ctx: Context, a: int, b: int = 10) -> int:
    ran[ctx.node_id] += 1
    keys.append(ctx.idempotency_key)
    if "back_add" in broken:
        raise ValueError("broken")
    return a + b


@node
async def back_left(ctx: Context, x: int) -> int:
    ran[ctx.node_id] += 1
    return x * 2


@node
async def back_right(ctx: Context, x: int) -> int:
    ran[ctx.node_id] += 1
    return x * 3


@workflow
def back_diamond(x: int) -> int:
    start = back_step(x)
    return back_add(back_left(start), back_right(start))


async def failed(run: Run[Any]) -> None:
    with pytest.raises(RunFailed):
        await run.result()


async def test_a_repaired_node_and_what_depends_on_it_run_and_nothing_else(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("back_step_30")
        run = await engine.start(back_chain, x=0)
        await failed(run)
        assert sum(ran.values()) == 30
        broken.clear()
        ran.clear()

        preview = await run.preview()
        branch = await run.retry(reason="mended")

        assert await run.result() == 50
        assert sum(ran.values()) == 21
        assert set(ran) == set(preview.runs)
        assert len(preview.kept) == 29
        assert branch == 2
        assert [found.reason for found in await run.branches()] == ["", "mended"]
        await assert_whole(engine, run)


async def test_a_retry_goes_on_under_the_same_key(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("back_add")
        run = await engine.start(back_diamond, x=0)
        await failed(run)
        broken.clear()
        await run.retry()
        await run.result()

        assert len(keys) == 2
        assert len(set(keys)) == 1
        await assert_whole(engine, run)


async def test_a_jump_runs_the_cone_with_what_it_is_given(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        assert await run.result() == 10
        ran.clear()

        branch = await run.jump("back_left", inputs={"x": 100}, reason="what if", by="me")

        assert await run.result() == 206
        assert ran == Counter(back_left=1, back_add=1)
        assert branch == 2
        assert len(set(keys)) == 2, "it is not what it was before"
        await assert_whole(engine, run)


async def test_somebody_says_what_a_node_has_given(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await run.result()
        ran.clear()

        preview = await run.preview("back_left", outputs=7)
        await run.jump("back_left", outputs=7)

        assert await run.result() == 13
        assert ran == Counter(back_add=1)
        assert preview.runs == ("back_add",)
        assert preview.kept == ("back_step", "back_right")
        await assert_whole(engine, run)


async def test_what_a_node_is_given_stays_given_when_it_is_tried_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await run.result()
        broken.add("back_add")
        await run.jump("back_add", data={"b": 1000})
        await failed(run)
        broken.clear()
        await run.retry()

        assert await run.result() == 1004
        await run.jump("back_add")
        assert await run.result() == 10, "whoever goes back to a node goes back to what the graph says"
        assert [found.parent for found in await run.branches()] == [None, 1, 2, 3]
        await assert_whole(engine, run)


async def test_nothing_happens_to_a_run_that_cannot_go_back(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await run.result()
        before = await run.state()

        with pytest.raises(CannotGoBack, match="nothing of it has failed"):
            await run.retry()
        with pytest.raises(CannotGoBack, match="no node 'nowhere'"):
            await run.jump("nowhere")
        with pytest.raises(WrongInputs, match="no input 'c'") as wrong:
            await run.jump("back_add", inputs={"c": 1, "a": "text"})
        with pytest.raises(CannotGoBack, match="takes no inputs"):
            await run.jump("back_add", inputs={"a": 1}, outputs=3)

        assert "'a'" in str(wrong.value)
        assert await run.state() == before


async def test_two_who_ask_under_one_id_get_one_branch(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("back_add")
        run = await engine.start(back_diamond, x=1)
        await failed(run)
        broken.clear()

        got = await asyncio.gather(*(run.retry(command_id="again") for _ in range(5)), return_exceptions=True)

        assert [found for found in got if found == 2]
        await run.result()
        assert len(await run.branches()) == 2
        await assert_whole(engine, run)


@node
async def back_gated(ctx: Context, x: int, name: str) -> int:
    ran[name] += 1
    await gates[name].wait()
    return x


@node
async def back_sum(ctx: Context, a: int, b: int) -> int:
    ran["sum"] += 1
    return a + b


@workflow
def back_beside(x: int) -> int:
    return back_sum(back_gated(back_step(x), name="one"), back_gated(x, name="two"))


async def test_siblings_of_a_moving_run_go_on(store_url: str) -> None:
    gates.update(one=asyncio.Event(), two=asyncio.Event())
    async with Engine(store_url) as engine:
        run = await engine.start(back_beside, x=1)
        async with asyncio.timeout(10):
            while ran["one"] + ran["two"] < 2:
                await asyncio.sleep(0.01)

        await run.jump("back_step", inputs={"x": 41})
        gates["one"].set()
        gates["two"].set()

        assert await run.result() == 43
        assert ran == Counter(back_step=2, one=2, two=1, sum=1)
        await assert_whole(engine, run)


async def test_a_cancelled_run_can_be_tried_again(store_url: str) -> None:
    gates.update(one=asyncio.Event(), two=asyncio.Event())
    async with Engine(store_url) as engine:
        run = await engine.start(back_beside, x=1)
        async with asyncio.timeout(10):
            while ran["one"] + ran["two"] < 2:
                await asyncio.sleep(0.01)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        gates["one"].set()
        gates["two"].set()

        await run.retry()

        assert await run.result() == 3
        assert ran["back_step"] == 1
        await assert_whole(engine, run)


@workflow
def back_approved(x: int) -> int:
    ok = ask("Go on?", schema=bool, show=back_step(x))
    return back_add(back_left(x), ok)


async def test_questions_behind_a_node_are_asked_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_approved, x=1)
        first = await question_of(run)
        await run.answer(first, True)
        assert await run.result() == 3

        assert (await run.preview("back_step")).asks == (NodeId("ask"),)
        await run.jump("back_step", inputs={"x": 5})
        second = await question_of(run)
        await run.answer(second, False)

        assert first != second
        assert await run.result() == 2
        assert ran["back_left"] == 1
        await assert_whole(engine, run)


async def question_of(run: Run[Any]) -> str:
    async with asyncio.timeout(10):
        while not (asked := await run.questions()):
            await asyncio.sleep(0.01)
    return asked[0].interaction_id


@node(concurrency=4)
async def back_item(ctx: Context, x: int) -> int:
    ran["item"] += 1
    if x == 13 and "item" in broken:
        raise ValueError("unlucky")
    return x * 10


@workflow
def back_map(xs: list[int]) -> Any:
    return collect(back_item.map(xs))


async def test_of_a_map_only_what_is_not_done_is_tried_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("item")
        run = await engine.start(back_map, xs=list(range(20)))
        await failed(run)
        done = ran["item"] - 1
        assert done >= 10
        broken.clear()
        ran.clear()

        await run.retry()

        assert await run.result() == [x * 10 for x in range(20)]
        assert ran["item"] <= 20 - (done - 4)
        await assert_whole(engine, run)
        stored = await engine.store.load_run(run.run_id)
        assert stored is not None
        (mapped,) = stored.nodes
        assert mapped.stream is not None
        assert (mapped.stream.entries, mapped.stream.failed) == (20, 0)  # nothing was left out


@node(once=True)
async def back_pay(ctx: Context, x: int) -> int:
    ran["pay"] += 1
    return x


@workflow
def back_paid(x: int) -> int:
    return back_add(back_pay(back_step(x)), 1)


async def test_what_must_run_once_is_not_run_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_paid, x=1)
        await run.result()

        with pytest.raises(CannotGoBack, match="'back_pay' must run at most once"):
            await run.jump("back_step")
        await run.jump("back_pay", outputs=Outputs(output=9))

        assert await run.result() == 10
        assert ran["pay"] == 1
        await assert_whole(engine, run)


async def test_a_run_that_was_reopened_is_gone_on_with_elsewhere(store_url: str) -> None:
    broken.add("back_add")
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await failed(run)
    broken.clear()
    async with Engine(store_url, workflows=[], recover=False) as other:
        with pytest.raises(Exception, match="has not yet"):
            await (await other.get(run.run_id)).retry(timeout=0.2)
    async with Engine(store_url) as engine:
        again = await engine.get(run.run_id)
        async with asyncio.timeout(20):
            while (await again.status()) is not RunStatus.COMPLETED:
                await asyncio.sleep(0.05)
        assert await again.result() == 10
        await assert_whole(engine, again)


async def test_the_old_line_of_history_is_all_there(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await run.result()
        before = await log_of(run)
        await run.jump("back_left", inputs={"x": 100})
        await run.result()

        log = await log_of(run)
        assert log[: len(before)] == before
        assert {entry.branch_id for entry in log[len(before) :]} == {BranchId(1), BranchId(2)}
        dump = await engine.store.dump_run(run.run_id)
        assert dump is not None
        old = {node.node_id: node for node in dump.all_nodes if node.branch_id == 1}
        assert old[NodeId("back_left")].status is NodeStatus.COMPLETED


# What was


async def test_a_run_is_seen_as_it_was(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_approved, x=1)
        question = await question_of(run)
        await run.checkpoint("before the answer")
        waiting = await run.load()
        await run.answer(question, True)
        await run.result()
        done = await run.load()

        assert (await run.at("before the answer")).nodes == waiting.nodes
        assert (await run.at(done.run.last_seq)).run == done.run
        assert (await run.at(1)).run.status is RunStatus.CREATED
        for place in (0, done.run.last_seq + 1, "nowhere"):
            with pytest.raises(PlaceNotFound):
                await run.at(place)
        with pytest.raises(PlaceNotFound, match="no branch 2: it has 1"):
            await run.at_end_of(2)


async def test_a_run_is_compared_with_its_own_past(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(back_diamond, x=1)
        await run.result()
        before = await run.load()
        await run.jump("back_left", inputs={"x": 100})
        await run.result()

        old = await run.at_end_of(1)
        found = await run.diff(old)

        assert (old.run.status, old.run.outputs, old.nodes) == (before.run.status, before.run.outputs, before.nodes)
        assert found.first is not None
        assert [node.node_id for node in found.nodes] == ["back_left", "back_add"]
        assert found.first.aspects == ("outputs", "given")
        assert found.outputs == ("output",)
        assert set(found.same) == {"back_step", "back_right"}
        assert (await run.diff(old, old)).is_none
        assert (await run.at_end_of(2)).run == (await run.load()).run
