"""Going back to what a run was: at the end of an earlier branch, at a checkpoint, after an event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import Context, Engine, EngineSettings, Stream, ask, collect, node, workflow
from perdure.engine.driving.waiting import Signal
from perdure.engine.inspect import follow_events
from perdure.engine.recording.driven import driven_seconds
from perdure.engine.runs.run import Run
from perdure.errors import AnsweredAlready, CannotGoBack, PlaceNotFound, RunFailed, RunResting
from perdure.ids import CommandId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.opening import open_store
from perdure.store.shapes import Command
from tests.engine.engines import AtOnce, assert_whole, log_of

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
async def past_step(ctx: Context, x: int) -> int:
    ran[ctx.node_id] += 1
    keys.append(ctx.idempotency_key)
    if ctx.node_id in broken:
        raise ValueError(f"{ctx.node_id} is broken")
    return x + 1


@node
async def past_gated(ctx: Context, x: int) -> int:
    ran[ctx.node_id] += 1
    if ctx.node_id in gates:
        await gates[ctx.node_id].wait()
    return x


@workflow
def past_chain(x: int) -> int:
    return past_step.named("last")(past_step.named("middle")(past_step.named("first")(x)))


@workflow
def past_beside(x: int) -> int:
    left = past_step.named("left")(past_step.named("start")(x))
    return past_sum(left, past_gated.named("slow")(x))


@node
async def past_sum(ctx: Context, a: int, b: int) -> int:
    ran[ctx.node_id] += 1
    return a + b


@workflow
def past_asked(x: int) -> int:
    one = past_step.named("one")(x)
    answer = ask.named("how_much")("How much?", schema=int)
    return past_sum(past_step.named("two")(one), answer)


async def until_status(run: Run[Any], status: RunStatus) -> None:
    async with asyncio.timeout(20):
        while await run.status() is not status:
            await asyncio.sleep(0.01)


async def question_of(run: Run[Any]) -> str:
    async with asyncio.timeout(20):
        while not (found := await run.questions()):
            await asyncio.sleep(0.01)
    return found[0].interaction_id


async def test_a_branch_that_has_ended_is_the_result_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_chain, x=0)
        assert await run.result() == 3
        await run.jump("middle", inputs={"x": 100})
        assert await run.result() == 102
        ran.clear()

        branch = await run.promote(1)

        assert branch == 3
        assert await run.status() is RunStatus.COMPLETED
        assert await run.result() == 3
        assert not ran
        assert (await run.diff(await run.at_end_of(1))).is_none
        assert not (await run.diff(await run.at_end_of(2))).is_none
        made = (await run.branches())[-1]
        assert (made.parent, made.restored, made.reason) == (1, True, "branch 1 promoted")
        created = [entry for entry in await log_of(run) if isinstance(entry.event, e.BranchCreated)]
        assert [entry.branch_id for entry in created] == [1, 2], "each stands on the branch that is left"
        await assert_whole(engine, run)
        assert await run.promote(2) == 4
        assert await run.result() == 102
        await assert_whole(engine, run)


async def test_a_branch_that_has_failed_can_be_tried_again_as_other_work(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("middle")
        run = await engine.start(past_chain, x=0)
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        await run.retry()
        assert await run.result() == 3
        ran.clear()

        await run.promote(1)
        with pytest.raises(RunFailed, match="middle is broken"):
            await run.result()
        assert not ran
        await assert_whole(engine, run)
        await run.retry()

        assert await run.result() == 3
        assert ran == Counter(middle=1, last=1)
        assert len({key for key in keys if "/middle/" in key}) == 2, "what another branch has done is other work"
        await assert_whole(engine, run)


async def test_a_branch_that_was_left_in_motion_goes_on_from_there(store_url: str) -> None:
    gates["slow"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_beside, x=0)
        async with asyncio.timeout(20):
            while ran["left"] == 0 or ran["slow"] == 0:
                await asyncio.sleep(0.01)
        await run.jump("left", inputs={"x": 100})
        gates["slow"].set()
        assert await run.result() == 101
        ran.clear()

        preview = await run.preview(branch=1)
        await run.promote(1)

        assert await run.result() == 2
        assert ran == Counter(slow=1, past_sum=1)
        assert preview.kept == ("start", "left")
        assert preview.runs == ("slow", "past_sum")
        slow = next(found for found in (await run.load()).nodes if found.node_id == "slow")
        assert (slow.attempt, slow.generation) == (2, 2)
        await assert_whole(engine, run)


async def test_a_run_that_moves_is_left_alone(store_url: str) -> None:
    gates["slow"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_beside, x=0)
        async with asyncio.timeout(20):
            while ran["slow"] == 0:
                await asyncio.sleep(0.01)
        await run.jump("left", inputs={"x": 100})

        with pytest.raises(CannotGoBack, match="it is running: pause or cancel it first"):
            await run.promote(1)
        with pytest.raises(CannotGoBack, match="it is on branch 2"):
            await run.promote(2)
        with pytest.raises(PlaceNotFound, match="no branch 3"):
            await run.promote(3)

        await run.pause(grace=0)
        await until_status(run, RunStatus.PAUSED)
        gates.clear()
        await run.promote(1)
        assert await run.result() == 2
        await assert_whole(engine, run)


async def test_of_several_who_have_a_run_go_back_at_once_one_does(store_url: str) -> None:
    stores = [AtOnce(await open_store(store_url)) for _ in range(2)]
    async with Engine(stores[0].as_store) as engine, Engine(stores[1].as_store) as other:
        run = await engine.start(past_chain, x=0)
        await run.result()
        await run.jump("middle", inputs={"x": 100})
        await run.result()
        elsewhere = await other.get(run.run_id)
        together = asyncio.Barrier(5)
        for store in stores:
            store.all_have_looked = together

        async with asyncio.timeout(30):
            got = await asyncio.gather(
                run.promote(1),
                elsewhere.promote(1),
                run.jump("middle", inputs={"x": 7}),
                elsewhere.jump("first", inputs={"x": 8}),
                run.restore(3),
                return_exceptions=True,
            )

        assert [found for found in got if not isinstance(found, CannotGoBack)] == [3]
        assert len(await run.branches()) == 3
        await run.result()
        await assert_whole(engine, run)
    for store in stores:
        await store.inner.close()


async def test_a_run_that_goes_back_has_all_its_time_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_beside, x=0, timeout=60)
        await run.result()
        gates["slow"] = asyncio.Event()
        await run.jump("slow")
        async with asyncio.timeout(20):
            while ran["slow"] == 1:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        gates.pop("slow").set()
        await run.result()
        assert await driven_seconds(engine.store, run.run_id) >= 0.3

        await run.promote(1)

        assert await driven_seconds(engine.store, run.run_id) < 0.3
        await assert_whole(engine, run)


async def test_one_who_asks_again_is_told_of_the_same_branch(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_chain, x=0)
        await run.result()
        await run.jump("middle", inputs={"x": 100})
        await run.result()

        assert [await run.promote(1, command_id="mine") for _ in range(3)] == [3, 3, 3]


async def test_several_who_ask_under_one_id_are_told_of_the_same_branch(store_url: str) -> None:
    async with Engine(store_url) as engine, Engine(store_url) as other:
        run = await engine.start(past_asked, x=0)
        await question_of(run)
        await until_status(run, RunStatus.AWAITING_INPUT)
        await run.checkpoint("asked")
        elsewhere = await other.get(run.run_id)

        async def ask_after(handle: Run[Any], seconds: float) -> int:
            await asyncio.sleep(seconds)
            return await handle.restore("asked", command_id="mine")

        asking = [ask_after(handle, number * 0.004) for number in range(10) for handle in (run, elsewhere)]
        assert await asyncio.gather(*asking) == [2] * 20
        await until_status(run, RunStatus.AWAITING_INPUT)
        assert len(await run.branches()) == 2
        await assert_whole(engine, run)


async def test_a_question_that_was_open_then_is_asked_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_asked, x=0)
        first = await question_of(run)
        await until_status(run, RunStatus.AWAITING_INPUT)
        await run.checkpoint("before the answer")
        await run.answer(first, 10)
        assert await run.result() == 12
        ran.clear()

        preview = await run.preview(place="before the answer")
        assert await run.restore("before the answer") == 2
        second = await question_of(run)

        assert (preview.runs, preview.asks) == (("how_much", "past_sum"), ("how_much",))
        assert preview.kept == ("one", "two")
        assert second != first
        with pytest.raises(AnsweredAlready, match="asked again, under another id"):
            await run.answer(first, 99)
        await until_status(run, RunStatus.AWAITING_INPUT)
        await assert_whole(engine, run)
        await run.answer(second, 20)
        assert await run.result() == 22
        assert ran == Counter(past_sum=1)
        assert (await run.branches())[-1].reason == "back to checkpoint 'before the answer'"
        await assert_whole(engine, run)

        assert await run.restore("before the answer") == 3
        third = await question_of(run)
        assert third not in (first, second)
        await run.answer(third, 30)
        assert await run.result() == 32
        await assert_whole(engine, run)


@node
async def past_patient(ctx: Context, x: int) -> int:
    ran[f"{ctx.node_id}/{ctx.attempt}"] += 1
    x += await ctx.step(past_counted, x)
    await ctx.sleep(seconds=0.3)
    ran["slept"] += 1
    got = await ctx.wait_for("more")
    return x + got


async def past_counted(x: int) -> int:
    ran["step"] += 1
    return x


@workflow
def past_patience(x: int) -> int:
    return past_patient(x)


async def test_a_body_that_slept_and_waited_goes_on_with_what_it_had(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0.0)) as engine:
        run = await engine.start(past_patience, x=1)
        async with asyncio.timeout(20):
            while not (await run.load()).waits:
                await asyncio.sleep(0.01)
        await run.checkpoint("asleep")
        async with asyncio.timeout(20):
            while ran["slept"] == 0:
                await asyncio.sleep(0.01)
        await run.signal("more", 100)
        assert await run.result() == 102

        await run.restore("asleep")

        assert await run.result() == 102, "the signal has come, and the time as well"
        assert ran["step"] == 1
        events = Counter(type(entry.event) for entry in await log_of(run))
        assert (events[e.TimerSet], events[e.TimerFired]) == (1, 2), "it sleeps until the same time"
        assert (await run.load()).nodes[0].attempt == 2
        await assert_whole(engine, run)


async def test_a_run_that_was_paused_is_paused_again(store_url: str) -> None:
    gates["slow"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_beside, x=0)
        async with asyncio.timeout(20):
            while ran["slow"] == 0:
                await asyncio.sleep(0.01)
        await run.pause(grace=0)
        await until_status(run, RunStatus.PAUSED)
        await run.checkpoint("paused")
        gates.clear()
        await run.resume()
        await run.result()

        await run.restore("paused")

        with pytest.raises(RunResting):
            await run.result()
        assert await run.status() is RunStatus.PAUSED
        await assert_whole(engine, run)
        await run.resume()
        assert await run.result() == 2
        await assert_whole(engine, run)


@node
async def past_numbers(n: int) -> AsyncIterator[int]:
    for x in range(n):
        yield x


@node
async def past_double(ctx: Context, x: int) -> int:
    ran[f"item {x}"] += 1
    if f"gate {x}" in gates:
        await gates[f"gate {x}"].wait()
    if f"item {x}" in broken:
        raise ValueError(x)
    return x * 2


@node
async def past_total(xs: list[int]) -> int:
    return sum(xs)


@workflow
def past_flow(n: int) -> int:
    return past_total(collect(past_double.map(past_numbers(n))))


async def until_recorded(run: Run[Any], node_id: str, entries: int) -> None:
    async with asyncio.timeout(20):
        while True:
            nodes = {str(found.node_id): found for found in (await run.load()).nodes}
            stream = nodes[node_id].stream if node_id in nodes else None
            if stream is not None and stream.entries >= entries:
                return
            await asyncio.sleep(0.01)


async def test_items_that_were_done_then_are_not_done_again_where_they_are_kept(store_url: str) -> None:
    broken.add("item 5")
    gates["gate 3"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_flow, n=6)
        await until_recorded(run, "past_double", 3)
        await run.checkpoint("three done")
        gates["gate 3"].set()
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        ran.clear()

        await run.restore("three done")

        assert await run.result() == 30
        assert ran == Counter({"item 3": 1, "item 4": 1, "item 5": 1})
        assert (await run.branches())[-1].dropped == ()
        await assert_whole(engine, run)


async def test_a_stream_whose_items_are_gone_begins_again(store_url: str) -> None:
    gates["gate 3"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_flow, n=6)
        await until_recorded(run, "past_double", 3)
        await run.checkpoint("three done")
        gates["gate 3"].set()
        assert await run.result() == 30
        ran.clear()

        preview = await run.preview(place="three done")
        await run.restore("three done")

        assert await run.result() == 30
        assert sum(ran.values()) == 6
        assert preview.runs == ("past_numbers", "past_double", "past_total")
        assert set((await run.branches())[-1].dropped) == {"past_numbers", "past_double"}
        await assert_whole(engine, run)


@node(once=True)
async def past_once(ctx: Context, x: int) -> int:
    ran["once"] += 1
    if "once" in gates:
        await gates["once"].wait()
    return x + 1


@workflow
def past_paid(x: int) -> int:
    return past_step.named("after")(past_once(past_gated.named("before")(x)))


async def test_what_must_run_once_does_not_run_again(store_url: str) -> None:
    gates["before"] = asyncio.Event()
    gates["once"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_paid, x=0)
        async with asyncio.timeout(20):
            while ran["before"] == 0:
                await asyncio.sleep(0.01)
        await run.checkpoint("before it")
        gates["before"].set()
        async with asyncio.timeout(20):
            while ran["once"] == 0:
                await asyncio.sleep(0.01)
        await run.checkpoint("while it runs")
        gates["once"].set()
        assert await run.result() == 2

        with pytest.raises(CannotGoBack, match="'past_once' must run at most once, and has begun since"):
            await run.restore("before it")
        assert len(await run.branches()) == 1
        preview = await run.preview(place="while it runs")
        await run.restore("while it runs")
        await until_status(run, RunStatus.SUSPENDED)
        await assert_whole(engine, run)
        await run.resolve("past_once", "done", output=41)

        assert await run.result() == 42
        assert preview.in_doubt == ("past_once",)
        await assert_whole(engine, run)
        await run.restore("while it runs")
        await until_status(run, RunStatus.SUSPENDED)
        await run.resolve("past_once", "done", output=11)
        assert await run.result() == 12, "somebody can say it each time"
        assert ran["once"] == 1
        await assert_whole(engine, run)


@workflow
def past_fed(xs: Stream[int]) -> int:
    return past_total(collect(past_double.map(xs)))


async def test_a_run_does_not_go_back_before_something_that_came_from_outside(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_fed)
        await run.send("xs", 1)
        await until_recorded(run, "past_double", 1)
        await run.checkpoint("one")
        await run.cancel()
        await until_status(run, RunStatus.CANCELLED)
        await run.restore("one")
        await run.send("xs", 2)
        await until_recorded(run, "past_double", 2)
        await assert_whole(engine, run)
        await run.close("xs")
        assert await run.result() == 6
        await assert_whole(engine, run)

        with pytest.raises(CannotGoBack, match="what has come for it since cannot be had again"):
            await run.restore("one")
        cancelling = next(entry for entry in await log_of(run) if isinstance(entry.event, e.RunCancelling))
        with pytest.raises(CannotGoBack, match="it was being cancelled at that place"):
            await run.restore(cancelling.seq)


async def test_items_that_were_given_from_the_start_can_be_had_again(store_url: str) -> None:
    gates["gate 3"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_fed, xs=[1, 2, 3, 4])
        await until_recorded(run, "past_double", 2)
        await run.checkpoint("two")
        gates.pop("gate 3").set()
        assert await run.result() == 20
        ran.clear()

        await run.restore("two")

        assert await run.result() == 20
        assert sum(ran.values()) == 4, "they were not kept"
        await assert_whole(engine, run)


@node(retries=1, backoff=timedelta(milliseconds=1))
async def past_shaky(ctx: Context, x: int) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("once more")
    return x


@workflow
def past_everything(n: int) -> int:
    total = past_total(collect(past_double.map(past_numbers(n))))
    answer = ask.named("and_then")("How much?", schema=int)
    return past_sum(past_patience_less(past_shaky(total)), answer)


@node
async def past_patience_less(ctx: Context, x: int) -> int:
    await ctx.sleep(seconds=0.01)
    return x


async def answered(run: Run[Any]) -> int:
    """Wait for the end of a run, and answer what it asks."""
    async with asyncio.timeout(30):
        while await run.status() not in (RunStatus.COMPLETED, RunStatus.FAILED):
            for question in await run.questions():
                with suppress(AnsweredAlready):
                    await run.answer(question.interaction_id, 100)
            await asyncio.sleep(0.005)
        return await run.result()


@pytest.mark.slow
async def test_a_run_can_go_back_to_every_event_and_comes_to_the_same(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0.0)) as engine:
        run = await engine.start(past_everything, n=3)
        assert await answered(run) == 106
        last = (await run.state()).last_seq
        refused = 0

        for seq in range(1, last + 1):
            try:
                await run.restore(seq)
            except CannotGoBack:
                refused += 1
                continue
            assert await answered(run) == 106, seq
            await assert_whole(engine, run)

        assert refused <= 2, "it had not started yet"
        assert all(found.status is NodeStatus.COMPLETED for found in (await run.load()).nodes)
        await assert_whole(engine, run)


async def test_a_run_does_not_go_back_to_where_it_was_just_going_back(store_url: str) -> None:
    gates["slow"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(past_beside, x=0)
        await run.cancel()
        await until_status(run, RunStatus.CANCELLED)
        gates.pop("slow").set()
        await run.jump("left")
        assert await run.result() == 2
        kinds = (e.RunReopened, e.JumpRequested, e.BranchCreated)
        places = [entry.seq for entry in await log_of(run) if isinstance(entry.event, kinds)]

        for place in places:
            with pytest.raises(CannotGoBack, match="it was just going back"):
                await run.restore(place)

        assert len(places) == 3
        assert await run.result() == 2
        assert await run.promote(1) == 3
        assert await run.status() is RunStatus.CANCELLED
        await assert_whole(engine, run)


async def test_who_follows_the_log_hears_that_the_run_has_ended_as_it_had_before(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(past_asked, x=0)
        await run.answer(await question_of(run), 10)
        assert await run.result() == 12
        await run.jump("how_much")
        await until_status(run, RunStatus.AWAITING_INPUT)
        seen: list[int] = []

        async def follow() -> None:
            async for entry in follow_events(engine.store, run.run_id):
                seen.append(entry.seq)

        following = asyncio.create_task(follow())
        await run.promote(1)

        async with asyncio.timeout(20):
            await following
        assert seen == list(range(1, (await run.state()).last_seq + 1))


@workflow
def past_signalled(x: int) -> int:
    return past_awaited(past_step.named("before")(x))


@node
async def past_awaited(ctx: Context, x: int) -> int:
    return x + int(await ctx.wait_for("more"))


async def test_a_signal_that_came_as_the_run_ended_is_there_when_it_is_tried_again(store_url: str) -> None:
    broken.add("before")
    async with Engine(store_url) as engine:
        run = await engine.start(past_signalled, x=0)
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        signal = Signal(signal_id="s", name="more", value="10")
        sent = Command(
            command_id=CommandId("signal/s"),
            run_id=run.run_id,
            kind="signal",
            payload=msgspec.to_builtins(signal),
            created_at=0,
        )
        await engine.store.add_command(sent)  # by somebody who had seen the run when it still moved

        await run.retry()

        assert await run.result() == 11
        await assert_whole(engine, run)


async def test_a_run_does_not_go_back_to_where_a_node_had_just_failed(store_url: str) -> None:
    broken.add("middle")
    async with Engine(store_url) as engine:
        run = await engine.start(past_chain, x=0)
        with pytest.raises(RunFailed):
            await run.result()
        failed = next(entry.seq for entry in await log_of(run) if isinstance(entry.event, e.NodeFailed))

        with pytest.raises(CannotGoBack, match="it was failing at that place"):
            await run.restore(failed)

        assert await run.status() is RunStatus.FAILED
