"""Calls that wait, in virtual time, where there are few places for bodies: others get them, and none is lost or gained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure import Context, Engine, collect, node, workflow
from perdure.journal.states import TERMINAL
from tests.engine.engines import assert_whole
from tests.engine.test_waiting import answer_all, asked, asked_once, begun, seldom_looking

at_once: list[int] = [0]
"""How many bodies have run at the same time, at the moment and at most."""


@node(concurrency=4)
async def asks_for_each(ctx: Context, x: int) -> str:
    begun.append(x)
    try:
        return await ctx.ask(f"each {x}")
    except asyncio.CancelledError:
        if x == 3:
            raise OSError("ended") from None
        raise


@workflow
def all_are_asked(xs: list[int]) -> list[str]:
    return collect(asks_for_each.map(xs))


@node
async def numbers_now_and_then() -> AsyncIterator[int]:
    for number in range(3):
        yield number
        await asyncio.sleep(60)


@workflow
def asked_now_and_then() -> list[str]:
    return collect(asks_for_each.map(numbers_now_and_then()))


@node(concurrency=4)
async def counts_at_once(x: int) -> int:
    at_once[0] += 1
    at_once.append(at_once[0])
    await asyncio.sleep(1)
    at_once[0] -= 1
    return x


@workflow
def counted_at_once(xs: list[int]) -> list[int]:
    return collect(counts_at_once.map(xs))


async def assert_places(engine: Engine, number: int) -> None:
    """Assert that there are so many places, and that they are free."""
    at_once[:] = [0]
    async with asyncio.timeout(10):
        await (await engine.start(counted_at_once, xs=[1, 2, 3, 4])).result()
    assert max(at_once) == number


@pytest.mark.parametrize("places", [1, 2, 3])
def test_calls_that_wait_hold_no_place_for_which_others_wait(sqlite_url: str, places: int) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(all_are_asked, xs=[0, 1, 2, 3, 4, 5])
        async with asyncio.timeout(1):
            first, *_ = await asked(run, 4)
            other = await engine.start(asked_once, x=9)
            await asked(other)
        await run.answer(first.interaction_id, "EACH 0")

        while (await run.state()).status not in TERMINAL:
            await asyncio.sleep(1)
            await answer_all(run)
        assert await run.result() == [f"EACH {x}" for x in range(6)]
        assert sorted(begun) == [0, 1, 2, 3, 4, 5]
        await answer_all(other)
        await other.result()
        await assert_places(engine, places)
        await assert_whole(engine, run, other)

    seldom_looking(sqlite_url, main, hibernate_after=100, loop_bodies=places)


def test_a_call_that_waits_holds_no_place_while_others_may_come(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(asked_now_and_then)
        await asked(run)
        other = await engine.start(asked_once, x=9)
        async with asyncio.timeout(10):
            await asked(other)

        await asked(run, 3, seconds=200)
        await answer_all(run)
        assert await run.result() == ["EACH 0", "EACH 1", "EACH 2"]
        await assert_places(engine, 1)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=5, loop_bodies=1)


@pytest.mark.parametrize("end", ["cancel", "pause", "sleep"])
def test_calls_that_are_ended_while_they_wait_leave_as_many_places_as_there_were(sqlite_url: str, end: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(all_are_asked, xs=[0, 1, 2, 3, 4, 5])
        await asked(run, 4)

        if end != "sleep":
            await getattr(run, end)()
        await run.wait()

        await assert_places(engine, 2)

    seldom_looking(sqlite_url, main, hibernate_after=100, loop_bodies=2)


@node(concurrency=2)
async def asks_in_vain(ctx: Context, x: int) -> int:
    asking = [asyncio.ensure_future(ctx.ask(f"in vain {x} {number}")) for number in range(2)]
    # An odd one ends while it is recorded that it asks.
    await (asyncio.sleep(0) if x % 2 else asyncio.wait(asking, timeout=1))
    if x == 5:
        await asyncio.sleep(100)
    return x


@workflow
def all_in_vain(xs: list[int]) -> list[int]:
    return collect(asks_in_vain.map(xs))


def test_questions_that_calls_leave_behind_hold_no_place_and_give_none(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(all_in_vain, xs=[0, 2, 4, 6])
        assert await run.result() == [0, 2, 4, 6]
        await assert_places(engine, 3)
        for xs in ([0, 1, 2, 3, 4], [1]):
            run = await engine.start(all_in_vain, xs=xs)
            assert await run.result() == xs
            await assert_places(engine, 3)
            await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=100, loop_bodies=3)


def test_a_call_that_has_left_a_question_behind_has_one_place(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        await engine.start(all_in_vain, xs=[0, 2, 4, 6, 8, 5])
        await asyncio.sleep(20)

        await assert_places(engine, 3)  # the last one waits, whatever else it does

    seldom_looking(sqlite_url, main, hibernate_after=100, loop_bodies=3)


@node(concurrency=2)
async def works_after_an_answer(ctx: Context, x: int) -> str:
    answer = await ctx.ask(f"work {x}?")
    await asyncio.sleep(100)
    return answer


@workflow
def work_after_answers(xs: list[int]) -> list[str]:
    return collect(works_after_an_answer.map(xs))


def test_a_call_that_goes_on_has_its_place_again(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(work_after_answers, xs=[1, 2])
        await asked(run, 2)

        await answer_all(run)
        await asyncio.sleep(1)

        await assert_places(engine, 1)
        assert await run.result() == ["WORK 1?", "WORK 2?"]
        await assert_places(engine, 3)

    seldom_looking(sqlite_url, main, hibernate_after=1_000, loop_bodies=3)


def test_calls_that_go_on_do_so_at_once_however_few_places_there_are(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(work_after_answers, xs=[1, 2])
        await asked(run, 2)

        await answer_all(run)

        async with asyncio.timeout(110):
            assert await run.result() == ["WORK 1?", "WORK 2?"]
        await assert_places(engine, 1)

    seldom_looking(sqlite_url, main, hibernate_after=1_000, loop_bodies=1)


@node
async def asks_for_two(ctx: Context, x: int) -> list[str]:
    return list(await asyncio.gather(ctx.ask(f"{x} one"), ctx.ask(f"{x} two")))


@workflow
def two_for_each(xs: list[int]) -> list[list[str]]:
    return collect(asks_for_two.map(xs))


def test_a_call_that_has_one_of_two_answers_holds_no_place(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(two_for_each, xs=[1])
        first, _ = await asked(run, 2)
        await run.answer(first.interaction_id, "yes")
        await asyncio.sleep(1)

        async with asyncio.timeout(1):
            await asked(await engine.start(asked_once, x=9))

    seldom_looking(sqlite_url, main, hibernate_after=1_000, loop_bodies=1)


# Bodies that cannot be ended when others begin to wait for their place


@node
async def works_beside_a_question(ctx: Context, seconds: float) -> list[str]:
    async def work() -> str:
        answer = await ctx.ask("first")
        await asyncio.sleep(seconds)
        return answer

    return list(await asyncio.gather(work(), ctx.ask("second")))


@workflow
def work_beside_a_question(seconds: float) -> list[str]:
    return works_beside_a_question(seconds)


def test_a_body_that_was_at_work_when_others_came_makes_room_when_it_only_waits(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(work_beside_a_question, seconds=3)
        first, _ = await asked(run, 2)
        await run.answer(first.interaction_id, "yes")
        await asyncio.sleep(0.5)

        other = await engine.start(asked_once, x=9)

        await asyncio.sleep(3)
        assert list(await other.questions()) == []
        async with asyncio.timeout(3):
            await asked(other)
        await answer_all(other)
        await other.result()
        await answer_all(run)
        assert await run.result() == ["yes", "SECOND"]
        await assert_whole(engine, run, other)

    seldom_looking(sqlite_url, main, hibernate_after=1_000, loop_bodies=1)
