"""Bodies that wait beside others that work, in virtual time: none of them holds up another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Context, Engine, collect, node, workflow
from perdure.engine.driving.driver import Driver
from perdure.errors import AnsweredAlready
from perdure.journal import events as e
from perdure.journal.states import NodeStatus
from perdure.testing.loop import VirtualClock
from tests.engine.engines import assert_whole, counted
from tests.engine.test_waiting import answer_all, asked, begun, either, seldom_looking

# Streams beside a question


@node
async def asks_aside(ctx: Context) -> str:
    return await ctx.ask("aside?")


@node(retries=1, backoff=timedelta(seconds=60))
async def fails_at_first() -> AsyncIterator[int]:
    begun.append("first")
    yield 1
    if len(begun) == 1:
        raise OSError("not yet")
    yield 2


@node
async def doubled_beside(x: int) -> int:
    return 2 * x


@node
async def both_beside(numbers: list[int], answer: str) -> list[Any]:
    return [numbers, answer]


@workflow
def tried_again_beside_a_question() -> list[Any]:
    return both_beside(collect(doubled_beside.map(fails_at_first())), asks_aside())


def test_who_reads_from_a_node_that_is_tried_again_goes_on_with_it(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(tried_again_beside_a_question)
        await asked(run)

        await asyncio.sleep(100)

        nodes = {node.node_id: node.status for node in (await run.load()).nodes}
        assert nodes["doubled_beside"] is NodeStatus.COMPLETED
        await answer_all(run)
        assert await run.result() == [[2, 4], "ASIDE?"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=5)


# Items beside questions of others


@node(concurrency=2)
async def goes_on_without_answer(ctx: Context, x: int) -> int:
    if x:
        await asyncio.sleep(20)
        return x
    await asyncio.wait((asyncio.ensure_future(ctx.ask("any news?")),), timeout=1)
    return x


@workflow
def leaves_a_question(xs: list[int]) -> list[int]:
    return collect(goes_on_without_answer.map(xs))


@either
def test_a_question_that_a_call_has_left_behind_ends_no_other(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(leaves_a_question, xs=[0, 1])

        async with asyncio.timeout(30):
            assert await run.result() == [0, 1]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


# Answers to what is not asked any more


def test_an_answer_that_comes_too_late_is_refused_however_often_it_is_given(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(leaves_a_question, xs=[0, 1])
        (question,) = await asked(run)
        await run.cancel()
        await run.wait()

        for _ in range(2):
            with pytest.raises(AnsweredAlready):
                await run.answer(question.interaction_id, "none", answer_id="mine")

        assert (await run.load()).commands == ()

    seldom_looking(sqlite_url, main)


# Bodies that work for long beside others that wait


@node
async def works_for_an_hour() -> list[int]:
    await asyncio.sleep(3_600)
    return []


@workflow
def an_hour_beside_a_question() -> list[Any]:
    return both_beside(works_for_an_hour(), asks_aside())


def test_a_run_that_stays_in_memory_is_not_looked_at_all_the_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    set_timer = Driver.later

    def later(driver: Driver, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        looks.append(seconds)
        return set_timer(driver, seconds, work)

    monkeypatch.setattr(Driver, "later", later)

    async def main(engine: Engine) -> None:
        run = await engine.start(an_hour_beside_a_question)
        await asked(run)
        await asyncio.sleep(1_000)
        assert len(looks) < 1_000

    seldom_looking(sqlite_url, main, hibernate_after=5)


# Clocks that are set


class SetClock(VirtualClock):
    """A clock that is set to another time while a run is in memory."""

    ahead_seconds = 0.0

    def now_micros(self) -> int:
        return super().now_micros() + int(self.ahead_seconds * 1_000_000)


@node
async def sleeps_for_days(ctx: Context) -> str:
    await ctx.sleep(days=3)
    return "awake"


@node
async def asks_for_days(ctx: Context) -> str:
    return await ctx.ask("well?", deadline=timedelta(days=3), default="awake")


@workflow
def days_beside_an_hour() -> list[Any]:
    return both_beside(works_for_an_hour(), sleeps_for_days())


@workflow
def days_to_answer_beside_an_hour() -> list[Any]:
    return both_beside(works_for_an_hour(), asks_for_days())


@either
@pytest.mark.parametrize(
    ("days", "came"), [(days_beside_an_hour, e.TimerFired), (days_to_answer_beside_an_hour, e.InteractionResponded)]
)
def test_a_time_is_noticed_that_has_come_because_the_clock_was_set(
    sqlite_url: str, hibernate_after: float, days: Any, came: type[e.Event]
) -> None:
    clock = SetClock()

    async def main(engine: Engine) -> None:
        run = await engine.start(days)
        await asyncio.sleep(20)

        clock.ahead_seconds = 3 * 86_400
        await asyncio.sleep(15)

        assert (await counted(run))[came] == 1
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, clock=clock, hibernate_after=hibernate_after)
