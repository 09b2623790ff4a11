"""Checkpoints that are saved by themselves: how often, when, and only if something has happened. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Checkpoint, Context, Engine, node, workflow
from perdure.engine.runs.run import Run
from perdure.errors import InvalidDeclaration
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.loop import VirtualClock, run_virtual
from tests.crash.backends import opened_world
from tests.engine.engines import assert_whole, counted, engine_on, in_another_process, killed_after
from tests.engine.test_pausing import paused
from tests.engine.test_waiting import answer_all, asked, begun, either, seldom_looking

HOUR = 3_600


@pytest.fixture(autouse=True)
def hours_pass_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process writes into these files, so there is no need to look for its news ten times a second."""
    monkeypatch.setattr("perdure.store.sqlite.news.POLL_SECONDS", 10.0)


@node
async def toiled(ctx: Context, x: int, seconds: float) -> int:
    begun.append(ctx.attempt)
    await asyncio.sleep(seconds)
    return x + 1


@node
async def marked(ctx: Context, times: int, seconds: float) -> int:
    """Do something that is recorded, again and again."""
    done: int = ctx.restored or 0
    while done < times:
        await asyncio.sleep(seconds)
        done += 1
        await ctx.checkpoint(done)
    return done


@node
async def puzzled(ctx: Context, x: int) -> str:
    return await ctx.ask(f"what of {x}")


@workflow
def toils(seconds: float) -> int:
    return toiled.named("second")(toiled.named("first")(1, seconds), seconds)


@workflow
def marks(times: int, seconds: float) -> int:
    return marked(times, seconds)


@workflow
def puzzles() -> str:
    return puzzled(1)


@workflow
def puzzles_twice() -> str:
    return puzzled.named("then")(toiled.named("between")(_length(puzzled.named("first")(1)), 1))


@node
async def _length(text: str) -> int:
    return len(text)


@workflow(checkpoint_every=7)
def saved_often(times: int, seconds: float) -> int:
    return marked(times, seconds)


async def periodic(run: Run[Any]) -> Sequence[Checkpoint]:
    """Return those that were saved by themselves, which are named by their numbers."""
    found = [saved for saved in await run.checkpoints() if saved.periodic]
    assert [saved.name for saved in found] == [f"periodic-{number}" for number in range(1, len(found) + 1)]
    return found


def seconds_between(saved: Sequence[Checkpoint]) -> list[float]:
    return [(after.at - before.at).total_seconds() for before, after in itertools.pairwise(saved)]


# How often


def test_without_being_asked_for_none_is_saved(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(marks, times=100, seconds=60)
        driver = engine.driver_of(run.run_id)
        assert driver is not None
        assert driver.periodic is None
        await run.result()
        assert await run.checkpoints() == []
        assert (await counted(run))[e.CheckpointSaved] == 0

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("every", [60, timedelta(minutes=1)])
def test_while_a_run_is_driven_one_is_saved_at_most_so_often(sqlite_url: str, every: float | timedelta) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(marks, times=100, seconds=10, checkpoint_every=every)
        await run.result()
        saved = await periodic(run)
        assert len(saved) == 1_000 // 60
        assert all(between >= 60 for between in seconds_between(saved))
        assert saved[0].at.timestamp() - (await run.state()).created_at / 1_000_000 == pytest.approx(60, abs=0.1)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_none_is_saved_while_nothing_happens(sqlite_url: str) -> None:
    """A body works for half an hour, in which nothing is recorded."""

    async def main(engine: Engine) -> None:
        run = await engine.start(toils, seconds=HOUR / 2, checkpoint_every=60)
        await asyncio.sleep(HOUR / 2 - 60)
        assert len(await periodic(run)) == 1
        await asyncio.sleep(HOUR / 4)
        assert len(await periodic(run)) == 2
        assert await run.result() == 3
        assert len(await periodic(run)) == 2
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("hibernate_after", [0.0, 5.0, 10 * HOUR], ids=["cold", "warm", "kept in memory"])
def test_a_run_that_waits_for_an_hour_gets_exactly_one(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(puzzles, checkpoint_every=60)
        await asked(run)
        await asyncio.sleep(HOUR)
        (saved,) = await run.checkpoints()
        assert saved.periodic
        expected = 60 if hibernate_after > HOUR else hibernate_after
        created = (await run.state()).created_at / 1_000_000
        assert saved.at.timestamp() - created == pytest.approx(expected, abs=1)
        await answer_all(run)
        assert await run.result() == "WHAT OF 1"
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


def test_one_that_somebody_asked_for_counts_as_well(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(toils, seconds=HOUR, checkpoint_every=60)
        await asyncio.sleep(30)
        await run.checkpoint("by hand")
        await asyncio.sleep(HOUR - 60)
        assert [saved.name for saved in await run.checkpoints()] == ["by hand"]
        await run.result()
        assert [saved.name for saved in await run.checkpoints()] == ["by hand", "periodic-1"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


# Rest


@either
def test_whenever_a_run_comes_to_rest_it_is_saved(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(puzzles_twice, checkpoint_every=HOUR)
        for turn in (1, 2):
            await asked(run)
            await run.wait()
            saved = await periodic(run)
            assert len(saved) == turn
            assert saved[-1].seq == (await run.state()).last_seq - 1
            await answer_all(run)
        await run.result()
        assert len(await periodic(run)) == 2
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


def test_a_run_that_is_paused_is_saved(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(toils, seconds=10, checkpoint_every=HOUR)
        await asyncio.sleep(1)
        await run.pause()
        await paused(run)
        (saved,) = await periodic(run)
        assert saved.seq == (await run.state()).last_seq - 1
        await asyncio.sleep(2 * HOUR)
        assert await periodic(run) == [saved]
        await run.resume()
        assert await run.result() == 3
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_a_run_that_rests_is_not_saved_again_for_being_looked_at(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(puzzles, checkpoint_every=60)
        await asked(run)
        await run.wait()
        for _ in range(3):
            await run.resume()  # there is nothing to resume
            await asyncio.sleep(100)
        assert (await counted(run))[e.RunClaimed] == 4
        assert len(await periodic(run)) == 1
        await run.checkpoint("by hand")
        await asyncio.sleep(100)
        assert [saved.name for saved in await run.checkpoints()] == ["periodic-1", "by hand"]

        await run.signal("kept")  # that is something

        await asyncio.sleep(100)
        assert len(await periodic(run)) == 2
        await answer_all(run)
        await run.result()
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


# Whoever takes the run up


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_after_a_restart_they_are_counted_on(store_url: str, tmp_path: Path, how: str) -> None:
    async def begin(engine: Engine) -> None:
        run = await engine.start(marks, run_id="r", times=40, seconds=10, checkpoint_every=60)
        await asyncio.sleep(150)
        assert len(await periodic(run)) == 2
        if how == "stopped":
            await engine.stop(grace_seconds=0)

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        await run.result()
        saved = await periodic(run)
        assert len(saved) == 400 // 60
        # The time between the last one before and the first one after is counted from the last one.
        assert all(59.9 <= between <= 75 for between in seconds_between(saved))
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(store_url, tmp_path) as world:
            if how == "killed":
                await killed_after(world, begin)
            else:
                await in_another_process(world, begin)
            await in_another_process(world, go_on)

    run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_wrong_holds_them_up_no_longer_than_one_interval(sqlite_url: str, hours: int) -> None:
    async def begin() -> None:
        async with engine_on(sqlite_url, clock=VirtualClock(wall_offset_seconds=hours * HOUR)) as engine:
            await engine.start(marks, run_id="r", times=100, seconds=10, checkpoint_every=60)
            await asyncio.sleep(70)
            await engine.stop(grace_seconds=0)

    async def go_on() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("r")
            await asyncio.sleep(100)
            assert len(await periodic(run)) >= 2
            await run.result()
            await assert_whole(engine, run)

    run_virtual(begin())
    run_virtual(go_on())


def test_an_attempt_that_was_lost_and_begun_again_is_something(sqlite_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        run = await engine.start(toils, run_id="r", seconds=200, checkpoint_every=60)
        await asyncio.sleep(70)
        assert len(await periodic(run)) == 1

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        await asyncio.sleep(190)
        assert len(await periodic(run)) == 2
        await run.result()
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            await killed_after(world, begin)
            await in_another_process(world, go_on)

    run_virtual(main())


# Durability


@pytest.mark.slow
def test_what_is_written_at_the_end_is_written_with_each_checkpoint_too(sqlite_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        run = await engine.start(marks, run_id="r", times=100, seconds=10, durability="exit", checkpoint_every=60)
        await asyncio.sleep(59)
        before = (await run.state()).last_seq
        await asyncio.sleep(2)
        assert (await run.state()).last_seq >= before + 6
        assert len(await periodic(run)) == 1

    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            await killed_after(world, begin)

            async def go_on(engine: Engine) -> None:
                run = await engine.get("r")
                assert await run.result() == 100
                await assert_whole(engine, run)

            await in_another_process(world, go_on)

    run_virtual(main())


# Settings


def test_the_workflow_says_how_often_unless_the_start_does(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        for every, expected in ((None, 7.0), (3, 3.0)):
            run = await engine.start(saved_often, times=3, seconds=10, checkpoint_every=every)
            assert (await run.state()).settings.checkpoint_every_seconds == expected
            await run.result()
            assert len(await periodic(run)) >= 3

    seldom_looking(sqlite_url, main)


def test_options_say_how_often() -> None:
    assert marks.options(checkpoint_every=9).settings.checkpoint_every == timedelta(seconds=9)
    assert saved_often.options().settings.checkpoint_every == timedelta(seconds=7)


@pytest.mark.parametrize("every", [0, -1, float("inf"), "often", timedelta(0)])
def test_what_is_no_time_is_refused(sqlite_url: str, every: Any) -> None:
    async def main(engine: Engine) -> None:
        with pytest.raises(ValueError, match=r"checkpoint_every=.* is no time above zero"):
            await engine.start(marks, run_id="r", times=1, seconds=1, checkpoint_every=every)
        assert await engine.store.load_run(RunId("r")) is None

    seldom_looking(sqlite_url, main)
    with pytest.raises(InvalidDeclaration, match="checkpoint_every"):
        workflow(checkpoint_every=every)
    with pytest.raises(InvalidDeclaration, match="checkpoint_every"):
        marks.options(checkpoint_every=every)


def test_a_run_that_fails_or_is_cancelled_ends_without_one(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(toils, seconds=100, checkpoint_every=HOUR)
        await asyncio.sleep(10)
        await run.cancel()
        assert (await run.wait()).status is RunStatus.CANCELLED
        assert await run.checkpoints() == []
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)
