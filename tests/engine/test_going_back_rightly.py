"""Going back where something must not happen twice, is out of time, or cannot be said."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Outputs, Stream, collect, node, stage, workflow
from perdure.engine.driving.waiting import Answer, answer_command
from perdure.engine.runs.run import Run
from perdure.errors import CannotGoBack, InputClosed, RunCancelled, RunFailed, WrongInputs
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from tests.engine.engines import assert_whole, log_of

ran: Counter[str] = Counter()
keys: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    keys.clear()
    gates.clear()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def rests(run: Run[Any], status: RunStatus) -> None:
    async with asyncio.timeout(10):
        while await run.status() is not status:
            await asyncio.sleep(0.01)


@node
async def rightly_plus(ctx: Context, x: int, y: int = 1) -> int:
    ran["plus"] += 1
    if "plus" in gates and not gates["plus"].is_set():
        raise ValueError("not yet")
    return x + y


@node
async def rightly_gated(ctx: Context, x: int) -> int:
    ran["gated"] += 1
    if "gated" in gates:
        await gates["gated"].wait()
    return x


@workflow
def rightly_two(x: int) -> int:
    return rightly_plus(rightly_gated(x))


async def test_who_asks_again_under_an_id_is_told_of_the_branch_there_is(store_url: str) -> None:
    gates["plus"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_two, x=1)
        with pytest.raises(RunFailed):
            await run.result()
        gates.clear()
        retried = await run.retry(command_id="one")
        assert await run.result() == 2
        assert await run.retry(command_id="one") == retried

        gone_back = await run.jump("rightly_plus", inputs={"y": 5}, command_id="two")
        assert await run.jump("rightly_plus", inputs={"y": 5}, command_id="two") == gone_back
        assert await run.result() == 6
        assert len(await run.branches()) == 3


async def test_a_run_that_is_tried_again_has_all_its_time(store_url: str) -> None:
    gates["gated"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_two, x=1, timeout=1.0)
        with pytest.raises(RunFailed, match="took longer"):
            await run.result()
        await run.retry()
        await until(lambda: ran["gated"] == 2)
        gates["gated"].set()

        assert await run.result() == 2
        await assert_whole(engine, run)


@node(once=True)
async def rightly_once(ctx: Context, x: int) -> int:
    ran["once"] += 1
    keys.append(ctx.idempotency_key)
    if "once" in gates:
        await gates["once"].wait()
    return x


@workflow
def rightly_paid(x: int) -> int:
    return rightly_plus(rightly_once(x))


@pytest.mark.parametrize("word", ["done", "retry"])
async def test_what_must_run_once_and_was_stopped_is_in_doubt(store_url: str, word: Any) -> None:
    gates["once"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_paid, x=1)
        await until(lambda: ran["once"] == 1)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        gates.clear()

        preview = await run.preview()
        assert preview.in_doubt == ("rightly_once",)
        assert preview.runs == ("rightly_plus",)
        await run.retry()
        await rests(run, RunStatus.SUSPENDED)
        assert ran["once"] == 1, "nobody knows whether it was done"
        await assert_whole(engine, run)
        if word == "done":
            await run.resolve("rightly_once", "done", output=41)
        else:
            await run.resolve("rightly_once", "retry")

        assert await run.result() == (42 if word == "done" else 2)
        assert ran["once"] == (1 if word == "done" else 2)
        assert len(set(keys)) == 1
        await assert_whole(engine, run)


@node
async def rightly_numbers(ctx: Context, n: int) -> AsyncIterator[int]:
    for x in range(n):
        yield x


@node
async def rightly_double(ctx: Context, x: int) -> int:
    return x * 2


@node
async def rightly_total(xs: list[int]) -> int:
    return sum(xs)


@workflow
def rightly_flow(n: int) -> int:
    return rightly_total(collect(rightly_double.map(rightly_numbers(n))))


async def test_nobody_says_what_a_stream_is_that_is_read_item_by_item(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_flow, n=4)
        assert await run.result() == 12

        with pytest.raises(CannotGoBack, match="item by item"):
            await run.jump("rightly_numbers", outputs=[1, 2])
        assert len(await run.branches()) == 1
        await run.jump("rightly_double", outputs=[1, 2])

        assert await run.result() == 3
        await assert_whole(engine, run)


@workflow
def rightly_staged(x: int) -> int:
    with stage("first"):
        x = rightly_gated(x)
    with stage("second"):
        return rightly_plus(rightly_plus(x))


async def test_stages_of_which_all_begins_again_do_so_too(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_staged, x=1)
        await run.result()
        await run.jump("rightly_plus")
        await run.result()
        await run.jump("rightly_plus_2")
        await run.result()

        staged = [
            (entry.branch_id, entry.event.stage, type(entry.event).__name__)
            for entry in await log_of(run)
            if isinstance(entry.event, e.StageStarted | e.StageCompleted)
        ]
        assert staged[4:] == [
            (2, "second", "StageStarted"),
            (2, "second", "StageCompleted"),
            (3, "second", "StageCompleted"),
        ]
        await assert_whole(engine, run)


@workflow
def rightly_paid_later(x: int) -> int:
    return rightly_plus(rightly_once(rightly_gated(x)))


async def test_what_must_run_once_does_not_run_when_somebody_has_said_what_it_gave(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_paid_later, x=1)
        await run.result()
        await run.jump("rightly_once", outputs=9)
        assert await run.result() == 10

        with pytest.raises(CannotGoBack, match="at most once"):
            await run.jump("rightly_gated")
        assert ran["once"] == 1


async def test_nobody_says_what_a_node_gave_under_a_name_that_it_does_not_know(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_two, x=1)
        await run.result()

        with pytest.raises(WrongInputs, match="no output 'nowhere'"):
            await run.jump("rightly_gated", outputs=Outputs(nowhere=3))
        assert len(await run.branches()) == 1


@node
async def rightly_read(ctx: Context, xs: Stream[int]) -> int:
    total = 0
    async for x in xs:
        if x == 4 and "read" in gates:
            raise ValueError("not this one")
        total += x
    return total


@workflow
def rightly_fed(xs: Stream[int], x: int) -> int:
    return rightly_plus(rightly_read(xs), rightly_gated(x))


async def test_readers_that_rest_go_on_with_a_run_that_goes_back_beside_them(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0.05)) as engine:
        run = await engine.start(rightly_fed, x=1)
        await run.send("xs", 1)
        await rests(run, RunStatus.SUSPENDED)

        await run.jump("rightly_gated", inputs={"x": 10})
        await until(lambda: ran["gated"] == 2)
        await rests(run, RunStatus.SUSPENDED)
        await run.send("xs", 2)
        await run.close("xs")

        async with asyncio.timeout(10):
            assert await run.result() == 13
        await assert_whole(engine, run)


async def test_what_was_sent_to_a_failing_run_is_there_when_it_is_tried_again(store_url: str) -> None:
    gates["read"] = asyncio.Event()
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_fed, x=0)
        for x in range(10):
            try:
                await run.send("xs", x)
            except InputClosed:
                break
            ran["sent"] += x
        with pytest.raises(RunFailed):
            await run.result()
        gates.clear()

        await run.retry()
        await run.close("xs")

        assert await run.result() == ran["sent"]
        await assert_whole(engine, run)


@node
async def rightly_asking(ctx: Context, x: int) -> int:
    return x if await ctx.ask("Go on?", schema=bool) else 0


@workflow
def rightly_asked(x: int) -> int:
    return rightly_plus(rightly_asking(x))


async def test_a_question_that_was_answered_too_late_can_be_answered_when_it_is_asked_again(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_asked, x=1)
        first = await question_of(run)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        late = Answer(wait_id=first, value="true")
        await engine.store.add_command(answer_command(run.run_id, late, at=engine.clock.now_micros()))

        await run.retry()
        await run.answer(await question_of(run), True)

        assert await run.result() == 2
        await assert_whole(engine, run)


async def question_of(run: Run[Any]) -> str:
    async with asyncio.timeout(10):
        while not (asked := await run.questions()):
            await asyncio.sleep(0.01)
    return asked[0].interaction_id


@node
async def rightly_unlike(ctx: Context, n: int) -> AsyncIterator[int]:
    ran["unlike"] += 1
    for x in range(n):
        if x == 3 and "unlike" in gates:
            raise ValueError("half-way")
        yield x + 100 * ran["unlike"]


@workflow
def rightly_unlikely(n: int) -> int:
    return rightly_total(collect(rightly_double.map(rightly_unlike(n))))


async def test_what_a_node_is_given_stays_when_a_stream_differs(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(rightly_unlikely, n=2)
        await run.result()
        gates["unlike"] = asyncio.Event()
        await run.jump("rightly_unlike", inputs={"n": 5})
        with pytest.raises(RunFailed):
            await run.result()
        gates.clear()

        await run.retry()

        assert await run.result() == 2 * sum(300 + x for x in range(5))
        assert len(await run.branches()) == 4
        assert (await run.load()).given.keys() == {"rightly_unlike"}
        await assert_whole(engine, run)
