"""Bodies that do several things at once: what works with one answer is not ended because something else waits for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Interaction, SyncContext, collect, node, workflow
from perdure.engine.runs.run import Run
from perdure.journal.states import TERMINAL
from tests.engine.engines import assert_whole
from tests.engine.test_waiting import answer_all, asked, begun, seldom_looking, until

no_body_stays = pytest.mark.parametrize("settings", [{"hibernate_after": 0}, {"warm_runs": 0}], ids=["cold", "crowded"])


async def question(run: Run[Any], prompt: str, seconds: float = 60) -> Interaction:
    """Wait until something is asked, and return that."""

    async def look() -> Sequence[Interaction]:
        return [asked for asked in await run.questions() if asked.prompt == prompt]

    return (await until(look, seconds))[0]


async def thought_over() -> str:
    begun.append("thought over")
    await asyncio.sleep(1)
    return "so"


async def talk(ctx: Context, name: str) -> str:
    answer = await ctx.ask(name)
    await asyncio.sleep(1)
    return answer + await ctx.step(thought_over) + await ctx.ask(f"{name} again")


@node
async def talks_to_two(ctx: Context) -> list[str]:
    return list(await asyncio.gather(talk(ctx, "first"), talk(ctx, "second")))


@workflow
def two_talks() -> list[str]:
    return talks_to_two()


@node
async def follows_up(ctx: Context) -> list[str]:
    questions = [asyncio.ensure_future(ctx.ask(name)) for name in ("first", "second")]
    await asyncio.wait(questions, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(1)
    again = await ctx.ask("first again")
    return [await questions[0] + again, await questions[1]]


@workflow
def a_talk_and_a_question() -> list[str]:
    return follows_up()


@node(concurrency=2)
async def talks_for_each(ctx: Context, x: str) -> list[str]:
    return list(await asyncio.gather(talk(ctx, f"first{x}"), talk(ctx, f"second{x}")))


@workflow
def talks_for_all(xs: list[str]) -> list[list[str]]:
    return collect(talks_for_each.map(xs))


@no_body_stays
@pytest.mark.parametrize("talks", [two_talks, a_talk_and_a_question], ids=["each in a task", "one in the middle"])
def test_what_a_body_does_with_an_answer_does_not_wait_for_another(
    sqlite_url: str, talks: Any, settings: dict[str, Any]
) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(talks)
        await asked(run, 2)
        await run.wait()

        await run.answer((await question(run, "first")).interaction_id, "A")

        await question(run, "first again", seconds=10)
        await ends_well(engine, run)

    seldom_looking(sqlite_url, main, **settings)


@no_body_stays
def test_what_a_call_does_with_an_answer_does_not_wait_for_another(sqlite_url: str, settings: dict[str, Any]) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(talks_for_all, xs=["", " too"])
        await asked(run, 4)
        await run.wait()

        await run.answer((await question(run, "first")).interaction_id, "A")

        await question(run, "first again", seconds=10)
        await ends_well(engine, run)

    seldom_looking(sqlite_url, main, **settings)


async def ends_well(engine: Engine, run: Run[Any]) -> None:
    """Answer whatever is asked until the run has ended."""
    while (await run.wait()).status not in TERMINAL:
        await answer_all(run)
        await asyncio.sleep(5)
    assert await run.result()
    await assert_whole(engine, run)


@node
async def thinks_of_one(ctx: Context) -> list[str]:
    async def quick() -> str:
        answer = await ctx.ask("quick")
        await asyncio.sleep(0.3)
        return answer + await ctx.ask("quick again")

    return list(await asyncio.gather(quick(), talk(ctx, "slow")))


@workflow
def one_needs_thought() -> list[str]:
    return thinks_of_one()


@no_body_stays
def test_what_asks_again_ends_nothing_that_is_at_work_beside_it(sqlite_url: str, settings: dict[str, Any]) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(one_needs_thought)
        await asked(run, 2)
        await run.wait()
        await run.pause()
        await answer_all(run)

        await run.resume()  # both have come, and it is asked again while the other answer is thought over

        await question(run, "slow again", seconds=10)
        assert begun == ["thought over"]
        await ends_well(engine, run)

    seldom_looking(sqlite_url, main, **settings)


@node
async def asks_three_times(ctx: Context) -> str:
    return "".join([await ctx.ask(name) for name in ("one", "two", "three")])


@workflow
def one_after_the_other() -> str:
    return asks_three_times()


@no_body_stays
def test_a_body_that_does_one_thing_is_ended_at_once_also_after_an_answer(
    sqlite_url: str, settings: dict[str, Any]
) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(one_after_the_other)
        async with asyncio.timeout(2):
            for name in ("one", "two", "three"):
                found = await question(run, name)
                await run.wait()
                await run.answer(found.interaction_id, name)
            assert await run.result() == "onetwothree"

    seldom_looking(sqlite_url, main, **settings)


# Bodies in threads


@node
def talks_in_threads(ctx: SyncContext) -> list[str]:
    def talk(name: str) -> str:
        answer = ctx.ask(name)
        time.sleep(0.3)
        return answer + ctx.ask(f"{name} again")

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(talk, ("first", "second")))


@workflow
def two_talks_in_threads() -> list[str]:
    return talks_in_threads()


async def test_what_a_body_does_in_threads_with_an_answer_does_not_wait_for_another(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:  # whichever thread is the first to ask
        await asked(await engine.start(two_talks_in_threads, run_id="threads"), 2)
    async with Engine(sqlite_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.get("threads")

        await run.answer((await question(run, "first")).interaction_id, "A")

        await question(run, "first again", seconds=4)


@node
def asks_twice_in_a_thread(ctx: SyncContext) -> str:
    return ctx.ask("one") + ctx.ask("two")


@workflow
def twice_in_a_thread() -> str:
    return asks_twice_in_a_thread()


async def test_a_body_in_a_thread_that_does_one_thing_is_ended_at_once_after_an_answer(sqlite_url: str) -> None:
    async with Engine(sqlite_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(twice_in_a_thread)
        async with asyncio.timeout(3):
            for name in ("one", "two"):
                found = await question(run, name)
                await run.wait()
                await run.answer(found.interaction_id, name)
            assert await run.result() == "onetwo"
