"""Bodies and nodes that wait, in virtual time: kept in memory (warm) or ended at once (cold), whatever goes on beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from perdure import Context, Engine, EngineSettings, Interaction, Stream, ask, collect, node, workflow
from perdure.engine.owning import recovery
from perdure.engine.runs.run import Run
from perdure.errors import AnsweredAlready, AnswerRefused, RunFailed
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.loop import run_virtual
from tests.engine.engines import Later, assert_whole, counted, engine_on

T = TypeVar("T")

WARM, COLD = 5.0, 0.0
SELDOM: dict[str, Any] = {"poll_seconds": 3_600, "recovery_seconds": 3_600}
"""Nothing is found by looking now and then: who has to be woken is woken."""
begun: list[Any] = []

either = pytest.mark.parametrize("hibernate_after", [COLD, WARM], ids=["cold", "warm"])


def seldom_looking(url: str, work: Callable[[Engine], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Do something with an engine in virtual time."""
    begun.clear()

    async def main() -> T:
        async with engine_on(url, **{**SELDOM, **options}) as engine:
            return await work(engine)

    return run_virtual(main())


async def until(look: Callable[[], Awaitable[T]], seconds: float = 60) -> T:
    """Look until there is something to see, and return it."""
    async with asyncio.timeout(seconds):
        while not (seen := await look()):
            await asyncio.sleep(0.05)
        return seen


async def asked(run: Run[Any], number: int = 1, seconds: float = 60) -> Sequence[Interaction]:
    """Wait until so many questions are open, and return them."""

    async def look() -> Sequence[Interaction]:
        found = await run.questions()
        return found if len(found) >= number else ()

    return await until(look, seconds)


async def answer_all(run: Run[Any]) -> None:
    for question in await run.questions():
        await run.answer(question.interaction_id, question.prompt.upper())


# Items beside questions


@node(concurrency=3)
async def approved(ctx: Context, x: str) -> str:
    begun.append(x)
    return await ctx.ask(f"{x}?")


@node
async def slow_letters() -> AsyncIterator[str]:
    yield "a"
    await asyncio.sleep(30)
    yield "b"


@workflow
def fed(xs: Stream[str]) -> list[str]:
    return collect(approved.map(xs))


@workflow
def given_slowly() -> list[str]:
    return collect(approved.map(slow_letters()))


@either
def test_an_item_that_is_sent_does_not_wait_for_the_answer_of_another(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(fed)
        await run.send("xs", "a")
        await asked(run)
        await run.wait()

        await run.send("xs", "b")

        assert [question.prompt for question in await asked(run, 2)] == ["a?", "b?"]
        await run.close("xs")
        await answer_all(run)
        assert await run.result() == ["A?", "B?"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


@either
def test_an_item_that_comes_late_does_not_wait_for_the_answer_of_another(
    sqlite_url: str, hibernate_after: float
) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(given_slowly)

        await asked(run, 2)

        await answer_all(run)
        assert await run.result() == ["A?", "B?"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


@node(concurrency=2)
async def held_up(ctx: Context, x: int) -> int:
    begun.append(x)
    if x:
        await asyncio.sleep(1)
        return x
    told: int = await ctx.suspend("the first")
    return told


@workflow
def one_is_suspended(xs: list[int]) -> list[int]:
    return collect(held_up.map(xs))


@either
def test_an_item_that_is_suspended_stops_no_other(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(one_is_suspended, xs=[0, 1, 2, 3])

        await run.wait()

        assert begun == [0, 1, 2, 3]
        await run.resume("held_up", 7)
        assert await run.result() == [7, 1, 2, 3]
        assert begun == [0, 1, 2, 3, 0]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


@node(timeout=2)
async def two_things(ctx: Context, x: int) -> list[str]:
    return list(await asyncio.gather(ctx.ask(f"one {x}"), ctx.ask(f"two {x}")))


@workflow
def two_things_of_each(xs: list[int]) -> list[list[str]]:
    return collect(two_things.map(xs))


def test_a_body_that_waits_is_kept_in_memory_for_as_long_as_was_said(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(two_things_of_each, xs=[1])
        await asked(run, 2)

        await asyncio.sleep(4)
        assert engine.driver_of(run.run_id) is not None

        await asyncio.sleep(1.5)
        assert engine.driver_of(run.run_id) is None
        assert await run.status() is RunStatus.AWAITING_INPUT

    seldom_looking(sqlite_url, main, hibernate_after=5)


def test_where_there_are_many_runs_no_body_that_waits_stays_in_memory(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        runs = [await engine.start(two_things_of_each, xs=[1]) for _ in range(4)]
        for run in runs:
            await asked(run, 2)
        await asyncio.sleep(0.5)
        kept = [run for run in runs if engine.driver_of(run.run_id) is not None]
        assert len(kept) <= 2

        for run in runs:
            await answer_all(run)
        assert [await run.result() for run in runs] == [[["ONE 1", "TWO 1"]]] * 4

    seldom_looking(sqlite_url, main, hibernate_after=100, warm_runs=2)


@node
async def asks_once(ctx: Context, x: int) -> str:
    return str(await ctx.ask(f"what of {x}?"))


@workflow
def asked_once(x: int) -> str:
    return asks_once(x)


def test_a_body_that_waits_holds_no_place_for_which_others_wait(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        runs = [await engine.start(asked_once, x=x) for x in range(5)]
        async with asyncio.timeout(1):
            for run in runs:
                await asked(run)

    seldom_looking(sqlite_url, main, hibernate_after=100, loop_bodies=2)


def test_no_wait_counts_as_time_that_an_item_takes(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(two_things_of_each, xs=[1])
        first, second = await asked(run, 2)
        await run.answer(first.interaction_id, "1")
        await asyncio.sleep(50)
        await run.answer(second.interaction_id, "2")

        assert await run.result() == [["1", "2"]]

    seldom_looking(sqlite_url, main, hibernate_after=100)


# Several waits of one body


@node
async def asks_and_listens(ctx: Context, seconds: float) -> list[Any]:
    async def listen() -> Any:
        await asyncio.sleep(seconds)
        heard = await ctx.wait_for("go")
        begun.append(heard)
        return heard

    return list(await asyncio.gather(ctx.ask("a"), listen()))


@workflow
def two_waits(seconds: float) -> list[Any]:
    return asks_and_listens(seconds)


@either
def test_a_signal_that_is_there_is_heard_beside_a_question(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(two_waits, seconds=0)
        await run.signal("go", 1)
        await asked(run)

        await run.wait()

        assert begun == [1]
        await answer_all(run)
        assert await run.result() == ["A", 1]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


def test_a_body_that_runs_again_gets_to_what_has_come_however_slowly(sqlite_url: str) -> None:
    async def begin(engine: Engine) -> str:
        run = await engine.start(two_waits, seconds=2)
        await run.wait()
        return run.run_id

    async def go_on(engine: Engine) -> None:
        run = await engine.get(run_id)
        await run.signal("go", 1)
        await asyncio.sleep(60)
        assert begun == [1]
        assert (await counted(run))[e.NodeResumed] == 1
        await answer_all(run)
        assert await run.result() == ["A", 1]
        await assert_whole(engine, run)

    run_id = seldom_looking(sqlite_url, begin, hibernate_after=WARM)
    seldom_looking(sqlite_url, go_on, hibernate_after=COLD)


# What wakes a run


@node(once=True)
async def must_not_repeat() -> int:
    await asyncio.sleep(10_000)
    return 1


@node
async def loud(x: str) -> str:
    return x.upper()


@workflow
def fed_beside_doubt(xs: Stream[str]) -> list[Any]:
    return [must_not_repeat(), collect(loud.map(xs))]


def test_items_for_a_run_in_doubt_are_taken_at_once(sqlite_url: str) -> None:
    async def leave(engine: Engine) -> str:
        run = await engine.start(fed_beside_doubt)
        await asyncio.sleep(1)
        await engine.stop(grace_seconds=0)
        return run.run_id

    async def go_on(engine: Engine) -> None:
        run = await engine.get(run_id)
        assert (await run.wait()).reason == "in doubt: must_not_repeat"
        claims = (await counted(run))[e.RunClaimed]
        await run.send("xs", "a")
        await asyncio.sleep(600)
        assert (await counted(run))[e.RunClaimed] == claims + 1
        await run.close("xs")
        await run.resolve("must_not_repeat", "done", output=2)
        assert await run.result() == [2, ["A"]]
        await assert_whole(engine, run)

    run_id = seldom_looking(sqlite_url, leave)
    seldom_looking(sqlite_url, go_on, poll_seconds=2, recovery_seconds=5)


@node
async def sleepy(ctx: Context, seconds: float) -> int:
    await ctx.sleep(seconds)
    return 1


@workflow
def known(seconds: float) -> int:
    return sleepy(seconds)


@node
async def sleepy_elsewhere(ctx: Context, seconds: float) -> int:
    await ctx.sleep(seconds)
    return 1


@workflow
def unknown(seconds: float) -> int:
    return sleepy_elsewhere(seconds)


def test_runs_that_are_for_others_to_take_keep_none_from_being_woken(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "WAKE_BATCH", 3)

    async def begin(engine: Engine) -> list[str]:
        others = [await engine.start(unknown, seconds=100 + number) for number in range(10)]
        ours = await engine.start(known, seconds=500)
        await asyncio.sleep(30)
        return [run.run_id for run in (*others, ours)]

    async def go_on(engine: Engine) -> None:
        run = await engine.get(run_ids[-1])
        async with asyncio.timeout(1_000):
            assert await run.result() == 1
        assert {await (await engine.get(run_id)).status() for run_id in run_ids[:-1]} == {RunStatus.SUSPENDED}

    run_ids = seldom_looking(sqlite_url, begin, hibernate_after=COLD)
    seldom_looking(sqlite_url, go_on, workflows=[known])


# Deadlines


@node
async def decided(ctx: Context) -> str:
    return await ctx.ask("which?", deadline=10, default="nobody")


@workflow
def decided_inside() -> str:
    return decided()


@workflow
def decided_between() -> str:
    return ask("which?", deadline=10, default="nobody")


@pytest.mark.slow
@either
@pytest.mark.parametrize("flow", [decided_inside, decided_between], ids=["inside", "between"])
def test_of_an_answer_and_a_deadline_one_wins_and_nobody_is_told_otherwise(
    sqlite_url: str, hibernate_after: float, flow: Any
) -> None:
    async def main(engine: Engine) -> set[str]:
        outcomes: set[str] = set()
        for number in range(-15, 15):
            run = await engine.start(flow)
            (question,) = await asked(run)
            assert question.deadline is not None
            left = question.deadline.timestamp() - engine.clock.now_micros() / 1_000_000
            await asyncio.sleep(left + number / 10_000)
            try:
                await run.answer(question.interaction_id, "somebody")
                told = "somebody"
            except AnsweredAlready:
                told = "nobody"
            assert await run.result() == told
            await assert_whole(engine, run)
            outcomes.add(told)
        return outcomes

    assert seldom_looking(sqlite_url, main, hibernate_after=hibernate_after) == {"somebody", "nobody"}


async def begun_and_left(url: str, flow: Any) -> str:
    """Start a run, and leave it when it rests."""
    async with Engine(url, settings=EngineSettings(hibernate_after=COLD)) as engine:
        run = await engine.start(flow)
        await run.wait()
        return run.run_id


@node
async def insists(ctx: Context) -> str:
    return await ctx.ask("which?", deadline=10)


@workflow
def insists_inside() -> str:
    return insists()


@pytest.mark.parametrize("flow", [decided_inside, decided_between, insists_inside])
async def test_an_answer_after_the_deadline_is_too_late_also_where_no_engine_was_there(
    store_url: str, flow: Any
) -> None:
    run_id = await begun_and_left(store_url, flow)
    async with Engine(store_url, workflows=(), recover=False, clock=Later()) as answering:
        run = await answering.get(run_id)
        (question,) = await run.questions()

        for value in ("somebody", "somebody", "nobody"):
            with pytest.raises(AnsweredAlready, match="was not answered in time"):
                await run.answer(question.interaction_id, value)

        assert await run.questions() == []
        (command,) = await answering.store.latest_commands(run.run_id, limit=10)
        assert command.payload["by"] == "deadline"

    async with Engine(store_url, workflows=[flow]) as engine:  # by its own clock, it is not even time
        run = await engine.get(run_id)
        if flow is insists_inside:
            with pytest.raises(RunFailed, match="nobody has answered 'which\\?' in time"):
                await run.result()
        else:
            assert await run.result() == "nobody"
        await assert_whole(engine, run)


async def test_an_answer_in_time_may_be_sent_again_after_the_deadline(store_url: str) -> None:
    run_id = await begun_and_left(store_url, decided_between)
    async with Engine(store_url, workflows=(), recover=False) as answering:
        run = await answering.get(run_id)
        (question,) = await run.questions()
        await run.answer(question.interaction_id, "somebody", answer_id="one")

    async with Engine(store_url, workflows=(), recover=False, clock=Later()) as late:
        run = await late.get(run_id)
        await run.answer(question.interaction_id, "somebody", answer_id="one")
        with pytest.raises(AnsweredAlready, match="has been answered"):
            await run.answer(question.interaction_id, "somebody else")

    async with Engine(store_url, workflows=[decided_between], clock=Later()) as engine:
        run = await engine.get(run_id)
        assert await run.result() == "somebody"
        await assert_whole(engine, run)


# Nonsense


@node
async def nonsense(ctx: Context, what: str) -> Any:
    given: Any = ctx
    match what:
        case "prompt":
            return await given.ask(123)
        case "signal":
            return await given.wait_for(5)
        case "reason":
            return await given.suspend(7)
        case "no choices":
            return await given.ask("x", choices=[])
        case "schema":
            return await given.ask("x", schema={"type": "integer"})
        case "deadline":
            return await given.ask("x", deadline="soon")
        case "default":
            return await given.ask("x", schema=int, default="many", deadline=3)
        case "no deadline":
            return await given.ask("x", schema=int, default=1)
        case "for ever":
            return await given.sleep(1e300)
        case _:
            return await given.ask("x", deadline=1e13)


@workflow
def nonsensical(what: str) -> Any:
    return nonsense(what)


@workflow
def asks_a_number(x: Any) -> Any:
    return ask(x)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("prompt", "what is asked must be a text, and not 123"),
        ("signal", "the name of a signal must be a text, and not 5"),
        ("reason", "the reason must be a text, and not 7"),
        ("no choices", "a question with choices needs at least one"),
        ("schema", "the schema of an answer is a type"),
        ("deadline", "the deadline must be a number of seconds"),
        ("default", "the default does not fit"),
        ("no deadline", "a default answer needs a deadline"),
        ("for ever", "within a thousand years"),
        ("after the last date", "within a thousand years"),
    ],
)
def test_what_cannot_be_waited_for_fails_the_body_that_asks_for_it(sqlite_url: str, what: str, told: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(nonsensical, what=what)
        state = await run.wait()
        assert state.status is RunStatus.FAILED
        assert state.error is not None
        assert told in state.error.message
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_a_node_that_asks_wants_a_text(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        state = await (await engine.start(asks_a_number, x=5)).wait()
        assert state.error is not None
        assert "what is asked must be a text, and not 5" in state.error.message

    seldom_looking(sqlite_url, main)


# Answers


@node
async def asks_anything(ctx: Context) -> Any:
    return await ctx.ask("anything?", schema=Any)


@workflow
def anything() -> list[Any]:
    return [asks_anything(), ask("anything?", schema=Any)]


@pytest.mark.parametrize(
    "value",
    [None, False, 0, "", [], {}, {"": None}, {"$perdure": "blob"}, {"$type": "bytes", "value": "eA=="}, {"\0": "\0"}],
)
def test_an_answer_arrives_as_it_was_given(sqlite_url: str, value: Any) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(anything)
        for question in await asked(run, 2):
            await run.answer(question.interaction_id, value)
        assert await run.result() == [value, value]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=COLD)


def test_an_answer_that_does_not_fit_leaves_the_question_open(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(counts)
        (question,) = await asked(run)
        for wrong in ("many", None, 1.5, 5.0, True, object()):
            with pytest.raises(AnswerRefused):
                await run.answer(question.interaction_id, wrong)
        await run.answer(question.interaction_id, 3)
        assert await run.result() == 3

    seldom_looking(sqlite_url, main)


@workflow
def counts() -> int:
    return ask("how many?", schema=int)
