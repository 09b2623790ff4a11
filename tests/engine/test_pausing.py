"""Runs that are paused and resumed: nothing begins meanwhile, nothing is lost, and what comes from outside is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Stream, ask, collect, node, workflow
from perdure.engine.runs.run import Run
from perdure.engine.runs.telling import stays_paused
from perdure.errors import InputClosed, RunFailed, RunResting
from perdure.ids import CommandId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.shapes import Command
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole, counted, log_of
from tests.engine.test_waiting import answer_all, asked, begun, either, seldom_looking


async def paused(run: Run[Any]) -> None:
    """Wait until the run is paused."""
    async with asyncio.timeout(600):
        assert (await run.wait()).status is RunStatus.PAUSED


@node
async def worked(x: int, seconds: float = 10) -> int:
    begun.append(x)
    await asyncio.sleep(seconds)
    begun.append(-x)
    return x


@node
async def questioned(ctx: Context, x: int) -> str:
    begun.append(f"asked {x}")
    answer = await ctx.ask(f"what of {x}")
    begun.append(f"told {x}")
    return answer


@workflow
def chain() -> int:
    return worked.named("third")(worked.named("second")(worked.named("first")(1)))


@workflow
def asks_beside_work() -> list[Any]:
    return [ask("may I?"), worked(1), questioned(2)]


@workflow
def asks_alone() -> str:
    return questioned(1)


# Bodies


@pytest.mark.slow
def test_what_runs_may_end_and_nothing_else_begins(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(chain)
        await asyncio.sleep(1)
        await run.pause("for a while")
        await asyncio.sleep(1)
        assert await run.status() is RunStatus.PAUSING
        await paused(run)
        await asyncio.sleep(1_000)
        assert begun == [1, -1]
        assert (await run.state()).reason == "for a while"
        with pytest.raises(RunResting):
            await run.result()

        await run.resume()

        assert await run.result() == 1
        assert begun == [1, -1, 1, -1, 1, -1]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_what_does_not_end_in_time_is_stopped_and_runs_again(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(chain)
        await asyncio.sleep(1)
        await run.pause(grace=0)
        await paused(run)
        assert begun == [1]

        await run.resume()

        assert await run.result() == 1
        assert begun[:3] == [1, 1, -1]
        events = await counted(run)
        assert (events[e.AttemptLost], events[e.NodeFailed], events[e.NodeStarted]) == (1, 0, 4)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@either
def test_a_body_that_waits_goes_on_as_the_same_attempt(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(asks_beside_work)
        await asked(run, 2)
        await run.pause(grace=60)
        await paused(run)
        await run.resume()
        await answer_all(run)
        assert await run.result() == ["MAY I?", 1, "WHAT OF 2"]
        assert (await counted(run))[e.NodeStarted] == 3
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


# What comes meanwhile


@either
@pytest.mark.parametrize("when", ["warm", "hibernated"])
def test_an_answer_to_a_paused_run_is_kept_until_it_is_resumed(
    sqlite_url: str, hibernate_after: float, when: str
) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(asks_alone)
        await asked(run)
        if when == "hibernated":
            await run.wait()
        await run.pause()
        await paused(run)
        await answer_all(run)
        await asyncio.sleep(100)
        assert (await run.load()).commands == ()
        assert await run.status() is RunStatus.PAUSED
        assert "told 1" not in begun

        await run.resume()

        assert await run.result() == "WHAT OF 1"
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


@node
async def sleeps_and_listens(ctx: Context) -> list[Any]:
    await ctx.sleep(minutes=10)
    begun.append("woke")
    return [await ctx.wait_for("go"), await ctx.wait_for("go")]


@workflow
def sleeper() -> list[Any]:
    return sleeps_and_listens()


@either
@pytest.mark.slow
def test_time_and_signals_are_heard_of_on_resuming(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(sleeper)
        await asyncio.sleep(60)
        await run.pause()
        await paused(run)
        await run.signal("go", 1)
        await run.signal("go", 2)
        await asyncio.sleep(900)
        assert begun == []
        claims = (await counted(run))[e.RunClaimed]
        assert claims <= 4

        await run.resume()

        assert await run.result() == [1, 2]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after, poll_seconds=2, recovery_seconds=5)


@node
async def loud(x: str) -> str:
    return x.upper()


@workflow
def fed(xs: Stream[str]) -> list[str]:
    return collect(loud.map(xs))


@pytest.mark.slow
def test_items_for_a_paused_run_are_kept_and_whoever_waits_hears_that_it_is_paused(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(fed)
        await run.send("xs", "a")
        await run.pause()
        await paused(run)
        for x in "bc":
            await run.send("xs", x)
        await paused(run)
        claims = (await counted(run))[e.RunClaimed]
        await asyncio.sleep(600)
        assert (await counted(run))[e.RunClaimed] == claims

        await run.resume()
        await run.close("xs")

        assert await run.result() == ["A", "B", "C"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, poll_seconds=2, recovery_seconds=5)


# Wishes that meet


@pytest.mark.parametrize("recover", [True, False])
def test_a_run_that_is_resumed_while_it_is_being_paused_goes_on(sqlite_url: str, recover: bool) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(chain)
        await asyncio.sleep(1)
        await run.pause()
        await asyncio.sleep(1)
        assert await run.status() is RunStatus.PAUSING

        await run.resume()

        assert await run.result() == 1
        events = await counted(run)
        assert (events[e.RunPaused], events[e.RunResumed], events[e.AttemptLost]) == (1, 1, 0)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, recover=recover)


@pytest.mark.parametrize("wishes", ["pr", "prp", "prpr", "ppr", "prprp"])
@pytest.mark.parametrize("when", ["working", "waiting"])
def test_wishes_apply_in_their_order_however_close_they_are(sqlite_url: str, wishes: str, when: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(chain if when == "working" else asks_alone)
        await asyncio.sleep(1 if when == "working" else 60)

        async with asyncio.TaskGroup() as group:
            for wish in wishes:
                group.create_task(run.pause(grace=0) if wish == "p" else run.resume())

        if wishes.endswith("p"):
            await asyncio.sleep(100)
            await paused(run)
            await run.resume()
        if when == "waiting":
            await answer_all(run)
        assert await run.result() == (1 if when == "working" else "WHAT OF 1")
        assert (await counted(run))[e.AttemptLost] <= 3
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


async def send_if_open(run: Run[Any], item: str) -> None:
    with suppress(InputClosed):  # somebody else may be faster
        await run.send("xs", item)


@pytest.mark.parametrize("grace", [None, 0])
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_input_that_is_closed_while_the_run_is_being_paused_is_closed(
    sqlite_url: str, grace: float | None, seconds: float
) -> None:
    async def main(engine: Engine) -> None:
        for turn in range(3):
            run = await engine.start(fed, run_id=f"{turn}")
            await asyncio.sleep(seconds)
            await run.send("xs", "a")
            wishes = [run.pause(grace=grace), run.close("xs"), send_if_open(run, "b")]
            async with asyncio.TaskGroup() as group:
                for wish in wishes[turn:] + wishes[:turn]:
                    group.create_task(wish)
            await paused(run)
            await run.resume()
            assert await run.result() in (["A"], ["A", "B"])
            await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


async def tell_nobody(url: str, run_id: str, *kinds: str) -> None:
    """Have a run told something while no engine is there."""
    store = await open_store(url)
    try:
        for number, kind in enumerate(kinds):
            payload = {"input": "xs"} if kind == "close" else {"grace_seconds": 0}
            command_id = CommandId(f"{kind} {number}")
            await store.add_command(Command(command_id=command_id, run_id=RunId(run_id), kind=kind, payload=payload))
    finally:
        await store.close()


def test_a_run_that_was_paused_and_resumed_while_nobody_was_there_goes_on(sqlite_url: str) -> None:
    async def leave(engine: Engine) -> None:
        await engine.start(chain, run_id="r")
        await engine.stop(grace_seconds=0)

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        assert await run.result() == 1
        assert (await counted(run))[e.AttemptLost] == 1
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, leave)
    asyncio.run(tell_nobody(sqlite_url, "r", "pause", "resume"))
    seldom_looking(sqlite_url, go_on)


def test_an_input_that_was_closed_after_another_pause_lets_the_run_be_paused(sqlite_url: str) -> None:
    async def leave(engine: Engine) -> None:
        run = await engine.start(fed, run_id="r")
        await run.send("xs", "a")
        await run.pause()
        await paused(run)

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        await asyncio.sleep(60)
        await paused(run)
        await run.resume()
        assert await run.result() == ["A"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, leave)
    asyncio.run(tell_nobody(sqlite_url, "r", "resume", "pause", "close"))
    seldom_looking(sqlite_url, go_on)


def test_to_pause_or_resume_twice_is_to_do_it_once(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(chain)
        await asyncio.sleep(1)
        for _ in range(2):
            await run.pause()
        await paused(run)
        await run.pause()
        await paused(run)
        for _ in range(2):
            await run.resume()
        assert await run.result() == 1
        events = await counted(run)
        assert (events[e.RunPausing], events[e.RunPaused], events[e.RunResumed]) == (1, 1, 1)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("when", ["pausing", "paused"])
def test_a_paused_run_can_be_cancelled(sqlite_url: str, when: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(asks_beside_work)
        await asked(run, 2)
        await run.pause()
        if when == "paused":
            await paused(run)
        await run.cancel()
        assert (await run.wait()).status is RunStatus.CANCELLED
        assert await run.questions() == []
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


# Failures


@node
async def breaks(seconds: float) -> int:
    await asyncio.sleep(seconds)
    raise RuntimeError("broken")


@node(retries=1)
async def breaks_once(ctx: Context) -> int:
    begun.append(ctx.attempt)
    await asyncio.sleep(5)
    if ctx.attempt == 1:
        raise RuntimeError("broken")
    return ctx.attempt


@workflow
def failing_beside() -> list[Any]:
    return [breaks(5), ask("may I?"), worked(1, 20)]


@workflow
def trying_again() -> int:
    return breaks_once()


@pytest.mark.parametrize("on_failure", ["stop", "finish"])
def test_what_fails_while_the_run_is_being_paused_fails_it_when_it_is_resumed(sqlite_url: str, on_failure: Any) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(failing_beside, on_failure=on_failure)
        await asyncio.sleep(1)
        await run.pause(grace=60)
        await paused(run)
        assert begun == [1, -1]
        await run.resume()
        if on_failure == "finish":
            await answer_all(run)
        with pytest.raises(RunFailed, match="broken"):
            await run.result()
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("seconds", [1, 5.2], ids=["before it fails", "before it is tried again"])
def test_a_node_is_tried_again_after_the_pause(sqlite_url: str, seconds: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(trying_again)
        await asyncio.sleep(seconds)
        await run.pause()
        await paused(run)
        await asyncio.sleep(100)
        assert begun == [1]
        await run.resume()
        assert await run.result() == 2
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


# Streams


@node
async def numbers(ctx: Context, upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        await asyncio.sleep(0.1)
        yield number


@node(concurrency=4)
async def doubled(x: int) -> int:
    begun.append(x)
    await asyncio.sleep(0.5)
    return 2 * x


@workflow
def flowing(upto: int) -> list[int]:
    return collect(doubled.map(numbers(upto)))


@pytest.mark.parametrize("grace", [None, 0])
def test_a_stream_goes_on_where_it_was(sqlite_url: str, grace: float | None) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(flowing, upto=100)
        for turn in range(3):
            await asyncio.sleep(2)
            await run.pause(grace=grace)
            await paused(run)
            seen = len(begun)
            await asyncio.sleep(50)
            assert len(begun) == seen, turn
            await run.resume()
        assert await run.result() == [2 * x for x in range(100)]
        assert len(begun) == 100 if grace is None else len(begun) <= 100 + 3 * 4
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


# Many runs


def test_all_runs_that_fit_are_paused_and_resumed(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        asking = [await engine.start(asks_alone) for _ in range(3)]
        working = await engine.start(chain)
        for run in asking:
            await asked(run)

        assert set(await engine.pause(workflow="asks_alone")) == {run.run_id for run in asking}
        for run in asking:
            await paused(run)
            await answer_all(run)
        assert set(await engine.resume()) == {run.run_id for run in asking}

        for run in asking:
            assert await run.result() == "WHAT OF 1"
        assert await working.result() == 1
        assert not any(isinstance(entry.event, e.RunPausing) for entry in await log_of(working))
        await assert_whole(engine, *asking, working)

    seldom_looking(sqlite_url, main)


# What was said while nobody drove the run


@pytest.mark.parametrize("words", [("pause",), ("pause", "resume", "pause")])
async def test_a_pause_that_comes_after_a_resume_counts_whoever_has_yet_to_hear_of_both(
    store_url: str, words: tuple[str, ...]
) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(asks_alone)
        await run.wait()
        await run.pause()
        await paused(run)
    async with Engine(store_url, workflows=(), recover=False) as teller:
        assert await teller.resume() == [run.run_id]
        for word in words:
            assert await (teller.pause() if word == "pause" else teller.resume()) == [run.run_id]
        assert await teller.pause() == []

    async with Engine(store_url, workflows=[asks_alone]) as engine:
        run = await engine.get(run.run_id)
        async with asyncio.timeout(60):
            while (await run.load()).commands:
                await asyncio.sleep(0.01)
            await paused(run)
        assert (await counted(run))[e.RunPaused] == 1 + words.count("pause")
        await run.resume()
        await answer_all(run)
        assert await run.result() == "WHAT OF 1"
        await assert_whole(engine, run)


class TakenUpMeanwhile(StoreProxy):
    """Has the run told to go on, and taken up, while somebody looks whether it was told so."""

    def __init__(self, inner: Store, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        answer = await call()
        if name == "latest_commands":
            await self._meanwhile()
        return answer


async def test_a_run_that_goes_on_while_somebody_looks_does_not_stay_paused(store_url: str) -> None:
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0)) as engine:
        run = await engine.start(asks_alone)
        await run.wait()
        await run.pause()
        await paused(run)

        async def resume() -> None:
            await run.resume()
            while await run.status() is RunStatus.PAUSED:
                await asyncio.sleep(0.01)

        looked = TakenUpMeanwhile(engine.store, resume).as_store

        assert await stays_paused(engine.store, run.run_id)
        assert not await stays_paused(looked, run.run_id)
