"""Answers, signals, items, pauses and resumptions raced with suspension, from two engines on one database.

Bodies are suspended as soon as they wait, or a moment later, so that whatever comes from outside meets a run at every stage of
falling asleep and waking up. The engines hardly ever look by themselves: a wake-up that is lost shows as a run that does not end.
What must hold: each run ends, with what was acknowledged and nothing else, each thing applied once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Stream, SyncContext, ask, collect, node, workflow
from perdure.engine.inspect import verify_run
from perdure.engine.runs.run import Run
from perdure.errors import AnsweredAlready
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import TERMINAL
from perdure.store.base import Store
from tests.torture import checks

ABREAST = 24
RACE_SECONDS = 40.0
SHORTLY = 0.03
"""Within this many seconds after it was begun, something comes for a run."""
MOST_CLAIMS = 20


@node
async def listening(ctx: Context) -> list[Any]:
    return [await ctx.wait_for("go"), await ctx.wait_for("go")]


@node
def listening_in_a_thread(ctx: SyncContext) -> list[Any]:
    return [ctx.wait_for("go"), ctx.wait_for("go")]


@node
async def asking_and_listening(ctx: Context) -> list[Any]:
    return list(await asyncio.gather(ctx.ask("what?"), ctx.wait_for("go")))


@node
async def asking(ctx: Context) -> str:
    return await ctx.ask("what?")


@node
async def late(ctx: Context, seconds: float) -> str:
    return await ctx.ask("what?", deadline=seconds, default="nobody")


@node
async def told(ctx: Context) -> Any:
    return await ctx.suspend("until told")


@node(concurrency=2)
async def echoed(ctx: Context, x: int) -> int:
    await ctx.sleep(0.01)
    return x


@workflow
def signalled() -> list[Any]:
    return listening()


@workflow
def signalled_in_a_thread() -> list[Any]:
    return listening_in_a_thread()


@workflow
def asked_and_signalled() -> list[Any]:
    return asking_and_listening()


@workflow
def asked_between() -> str:
    return ask("what?")


@workflow
def asked_inside() -> str:
    return asking()


@workflow
def asked_in_time(seconds: float) -> str:
    return late(seconds)


@workflow
def resumed() -> Any:
    return told()


@workflow
def fed(xs: Stream[int]) -> list[int]:
    return collect(echoed.map(xs))


class Race:
    """One run, and those who tell it something, each through either engine and after a moment of its own."""

    def __init__(self, engines: Sequence[Engine], run_id: str, seed: str) -> None:
        self._engines = engines
        self._chance = random.Random(seed)
        self.run_id = run_id

    @property
    def run(self) -> Run[Any]:
        """The run as one of the engines has it."""
        return Run(self._chance.choice(self._engines), RunId(self.run_id))

    @property
    def store(self) -> Store:
        return self._engines[0].store

    async def hold(self) -> None:
        """Tell the run one thing and another, and see that it ends as it must."""
        kinds = (self.signals, self.answers, self.both, self.deadline, self.pauses, self.resumption, self.items)
        await self._chance.choice(kinds)()

    async def signals(self) -> None:
        await self._start(self._chance.choice((signalled, signalled_in_a_thread)))
        await self._at_once(
            lambda: self.run.signal("go", "first", id="1"),
            lambda: self.run.signal("go", "second", id="2"),
            lambda: self.run.signal("go", "first", id="1"),
        )
        assert sorted(await self.run.result()) == ["first", "second"]

    async def answers(self) -> None:
        await self._start(self._chance.choice((asked_between, asked_inside)))
        said = ("one", "another")
        taken = await self._at_once(*(lambda value=value: self._answer(value) for value in said))
        assert sum(taken) == 1, taken
        assert await self.run.result() == said[taken.index(True)]

    async def both(self) -> None:
        await self._start(asked_and_signalled)
        await self._at_once(lambda: self._answer("yes"), lambda: self.run.signal("go", 1), self._pause_and_resume)
        assert await self.run.result() == ["yes", 1]

    async def deadline(self) -> None:
        seconds = self._chance.uniform(0, 2 * SHORTLY)
        await self._start(asked_in_time, seconds=seconds)
        (is_taken,) = await self._at_once(lambda: self._answer("somebody"))
        assert await self.run.result() == ("somebody" if is_taken else "nobody")

    async def pauses(self) -> None:
        await self._start(self._chance.choice((asked_between, asked_inside)))
        await self._at_once(self._pause_and_resume, lambda: self._answer("yes"))
        assert await self.run.result() == "yes"

    async def resumption(self) -> None:
        await self._start(resumed)
        await self._asked()
        outcomes = await self._at_once(*(lambda value=value: self._tell(value) for value in (1, 2)))
        assert sorted(outcomes) == [False, True], outcomes
        assert await self.run.result() == (1 if outcomes[0] else 2)

    async def items(self) -> None:
        await self._start(fed)
        await self._at_once(*(lambda x=x: self.run.send("xs", x) for x in range(3)), self._pause_and_resume)
        await self.run.close("xs")
        assert sorted(await self.run.result()) == [0, 1, 2]

    async def _start(self, flow: Any, **inputs: Any) -> None:
        await self._chance.choice(self._engines).start(flow, run_id=self.run_id, **inputs)

    async def _a_moment(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, SHORTLY))

    async def _at_once(self, *things: Callable[[], Awaitable[Any]]) -> list[Any]:
        async def do(thing: Callable[[], Awaitable[Any]]) -> Any:
            await self._a_moment()
            return await thing()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(thing)) for thing in things]
        return [task.result() for task in tasks]

    async def _asked(self) -> str:
        """Return the id of the question once it is asked, or nothing if it has been answered by then."""
        while not (questions := await self.run.questions()):
            if await self.run.status() in TERMINAL:
                return ""
            await asyncio.sleep(0.002)
        return questions[0].interaction_id

    async def _answer(self, value: str) -> bool:
        """Answer; False if that was too late."""
        question = await self._asked()
        if not question:
            return False
        try:
            await self.run.answer(question, value)
        except AnsweredAlready:
            return False
        return True

    async def _tell(self, value: int) -> bool:
        try:
            await self.run.resume("told", value)
        except AnsweredAlready:
            return False
        return True

    async def _pause_and_resume(self) -> None:
        for _ in range(self._chance.randrange(1, 3)):
            await self.run.pause(grace=self._chance.choice((None, 0)))
            await self._a_moment()
            await self.run.resume()
            await self._a_moment()


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_in_400_races(store_url: str) -> None:
    await hold_races(store_url, 400)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_nothing_is_lost_or_doubled_in_10_000_races(store_url: str) -> None:
    await hold_races(store_url, 10_000)


async def hold_races(url: str, number: int) -> None:
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    room = asyncio.Semaphore(ABREAST)
    async with engine_of(url, 0.0) as one, engine_of(url, SHORTLY) as other:

        async def hold(at: int) -> None:
            async with room:
                race = Race((one, other), f"run-{at}", f"{seed}/{at}")
                try:
                    async with asyncio.timeout(RACE_SECONDS):
                        await race.hold()
                except TimeoutError:
                    state = await race.run.state()
                    pytest.fail(f"{race.run_id} of seed {seed} is left {state.status}, {state.reason!r}")
                await look_at(race)

        async with asyncio.TaskGroup() as group:
            for at in range(number):
                group.create_task(hold(at))


def engine_of(url: str, hibernate_after: float) -> Engine:
    settings = EngineSettings(hibernate_after=hibernate_after, poll_seconds=120, recovery_seconds=120)
    return Engine(url, settings=settings)


async def look_at(race: Race) -> None:
    """See that the run obeys the law, and was not claimed in vain again and again."""
    run = race.run
    assert await verify_run(race.store, race.run_id) == []
    claims = Counter(type(entry.event) for entry in [entry async for entry in run.events(follow=False)])[e.RunClaimed]
    assert claims <= MOST_CLAIMS, f"{race.run_id} was claimed {claims} times"
