"""Checkpoints that somebody asks for: what they name, who gets a name, and what becomes of the run meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Checkpoint, Context, Engine, ask, collect, node, workflow
from perdure.engine.driving.checkpointing import CHECKPOINT
from perdure.engine.inspect import verify_run
from perdure.engine.runs.run import Run
from perdure.errors import CheckpointExists, CheckpointPending, RunEnded, RunNotFound
from perdure.ids import CommandId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.shapes import Command
from perdure.testing.loop import VirtualLoop, run_virtual
from perdure.testing.process import Process
from perdure.testing.stores import in_own_loop
from tests.crash.backends import opened_world
from tests.engine import test_probes
from tests.engine.engines import assert_whole, counted, engine_on, in_another_process, killed_after, log_of
from tests.engine.test_pausing import paused
from tests.engine.test_waiting import answer_all, asked, begun, either, seldom_looking


@node
async def laboured(x: int, seconds: float = 10) -> int:
    begun.append(x)
    await asyncio.sleep(seconds)
    return x + 1


@node
async def wondered(ctx: Context, x: int) -> str:
    begun.append("wondered")
    return await ctx.ask(f"what of {x}")


@node
async def dozed(ctx: Context) -> str:
    begun.append("dozed")
    await ctx.sleep(minutes=10)
    return "rested"


@workflow
def labours() -> int:
    return laboured.named("third")(laboured.named("second")(laboured.named("first")(1)))


@workflow
def wonders() -> str:
    return wondered(laboured(1, 1))


@workflow
def dozes() -> str:
    return dozed()


async def hibernated(run: Run[Any]) -> None:
    async with asyncio.timeout(60):
        while await run.status() not in (RunStatus.AWAITING_INPUT, RunStatus.SUSPENDED):
            await asyncio.sleep(0.05)


async def added(run: Run[Any], since: int) -> list[type[e.Event]]:
    """Return what was recorded since the log was so long."""
    return [type(entry.event) for entry in (await log_of(run))[since:]]


# What they name


def test_a_checkpoint_names_all_that_was_recorded_before_it_was_asked_for(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        await asyncio.sleep(11)
        before = (await run.state()).last_seq

        saved = await run.checkpoint("half way")

        assert (saved.name, saved.seq, saved.periodic, saved.branch) == ("half way", before, False, 1)
        entry = (await log_of(run))[before]
        assert isinstance(entry.event, e.CheckpointSaved)
        assert (entry.event.name, entry.event.seq, entry.event.periodic) == ("half way", before, 0)
        assert entry.at == round(saved.at.timestamp() * 1_000_000)
        assert await run.result() == 4
        events = await counted(run)
        assert (events[e.NodeStarted], events[e.RunClaimed], events[e.CheckpointSaved]) == (3, 1, 1)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_checkpoints_are_listed_oldest_first(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        assert await run.checkpoints() == []
        made: list[Checkpoint] = []
        for name in ("zebra", "ant", "mole"):
            made.append(await run.checkpoint(name))
            await asyncio.sleep(5)
        await run.result()

        assert await run.checkpoints() == made
        assert [saved.seq for saved in made] == sorted({saved.seq for saved in made})
        with pytest.raises(RunNotFound):
            await Run[Any](engine, RunId("nobody")).checkpoints()

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "periodic-1", "x" * 201, None, 7])
def test_what_is_no_name_is_refused_and_nothing_is_kept(sqlite_url: str, name: Any) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        with pytest.raises(ValueError, match="name"):
            await run.checkpoint(name)
        assert (await run.load()).commands == ()
        assert await run.checkpoints() == []

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_what_is_no_time_to_wait_for_is_refused(sqlite_url: str, timeout: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        with pytest.raises(ValueError, match="no time to wait for"):
            await run.checkpoint("here", timeout=timeout)
        assert (await run.load()).commands == ()

    seldom_looking(sqlite_url, main)


# Who gets a name


def test_a_name_stays_where_it_is(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        saved = await run.checkpoint("here")
        await asyncio.sleep(15)

        with pytest.raises(CheckpointExists, match=f"at event {saved.seq}") as refused:
            await run.checkpoint("here")

        assert (refused.value.name, refused.value.seq) == ("here", saved.seq)
        assert await run.checkpoints() == [saved]
        await run.result()
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("has_ended", [False, True])
def test_who_repeats_a_wish_is_told_what_came_of_it(sqlite_url: str, has_ended: bool) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        saved = await run.checkpoint("here", command_id="mine")
        await (run.result() if has_ended else asyncio.sleep(15))

        assert await run.checkpoint("here", command_id="mine") == saved
        with pytest.raises(CheckpointExists):
            await run.checkpoint("here", command_id="another's")
        with pytest.raises(CheckpointExists):
            await run.checkpoint("here")
        assert (await counted(run))[e.CheckpointSaved] == 1

    seldom_looking(sqlite_url, main)


def test_a_name_is_taken_though_nobody_remembers_who_asked_for_it(sqlite_url: str) -> None:
    """The run has been copied with its log, but without what it was told."""

    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        saved = await run.checkpoint("here", command_id="mine")
        in_own_loop(_execute(sqlite_url, "DELETE FROM run_commands"))

        with pytest.raises(CheckpointExists):
            await run.checkpoint("here", command_id="another's")
        assert await run.checkpoint("here", command_id="mine") == saved
        assert (await run.load()).commands == ()
        assert await run.result() == 4
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.parametrize("when", ["working", "resting"])
@pytest.mark.parametrize("seed", range(3))
def test_of_many_who_want_a_name_at_once_one_gets_it(store_url: str, tmp_path: Path, seed: int, when: str) -> None:
    """In two engines on one store."""
    flow = labours if when == "working" else wonders

    async def main() -> None:
        running: list[Engine] = []
        over = asyncio.Event()

        async def serve(engine: Engine) -> None:
            running.append(engine)
            await over.wait()

        async with opened_world(store_url, tmp_path) as world, asyncio.TaskGroup() as group:
            for number in range(2):
                process = Process(f"engine {number}")
                group.create_task(process.run(world.engine(world.door(process)), serve))
            while len(running) < 2:
                await asyncio.sleep(0.1)
            run = await running[0].start(flow, run_id="r")
            await (asyncio.sleep(1) if when == "working" else hibernated(run))
            handles = [run, await running[1].get("r")] * 4

            outcomes = await asyncio.gather(*(handle.checkpoint("here") for handle in handles), return_exceptions=True)

            saved = [outcome for outcome in outcomes if isinstance(outcome, Checkpoint)]
            assert len(saved) == 1
            assert sum(isinstance(outcome, CheckpointExists) for outcome in outcomes) == len(handles) - 1
            assert list(await handles[1].checkpoints()) == saved
            await assert_whole(running[0], run)
            over.set()

    # On PostgreSQL the server decides who comes first, and no seed can.
    loop = VirtualLoop(seed=seed if store_url.startswith("sqlite") else None)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


# Runs that rest


@either
def test_a_run_that_waits_goes_on_waiting(sqlite_url: str, hibernate_after: float) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(wonders)
        await asked(run)
        await hibernated(run)
        before = await run.state()
        seen = list(begun)

        saved = await run.checkpoint("while it waits")

        assert await added(run, before.last_seq) == [e.RunClaimed, e.CheckpointSaved]
        assert saved.seq == before.last_seq + 1
        after = await run.load()
        assert (after.run.status, after.run.reason, after.run.recoveries) == (before.status, before.reason, 0)
        assert after.owner is None
        assert begun == seen
        await answer_all(run)
        assert await run.result() == "WHAT OF 2"
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=hibernate_after)


def test_a_run_that_sleeps_is_woken_in_time(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(dozes)
        began = asyncio.get_running_loop().time()
        await hibernated(run)
        due = (await run.state()).wake_at
        await asyncio.sleep(100)

        await run.checkpoint("asleep")

        state = await run.state()
        assert (state.status, state.wake_at) == (RunStatus.SUSPENDED, due)
        assert begun == ["dozed"]
        assert await run.result() == "rested"
        assert asyncio.get_running_loop().time() - began == pytest.approx(600, abs=1)
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, poll_seconds=3_600)


def test_a_paused_run_stays_paused(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        await asyncio.sleep(1)
        await run.pause("lunch")
        await paused(run)
        before = await run.state()

        await run.checkpoint("at lunch")

        assert await added(run, before.last_seq) == [e.RunClaimed, e.CheckpointSaved]
        state = await run.state()
        assert (state.status, state.reason) == (RunStatus.PAUSED, before.reason)
        await asyncio.sleep(100)
        assert begun == [1]
        await run.resume()
        assert await run.result() == 4
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_a_run_that_is_being_paused_gets_its_checkpoint(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        await asyncio.sleep(1)
        await run.pause()
        await asyncio.sleep(1)
        assert await run.status() is RunStatus.PAUSING

        await run.checkpoint("on the way")

        assert await run.status() is RunStatus.PAUSING
        await paused(run)
        await run.resume()
        assert await run.result() == 4
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_a_quarantined_run_stays_quarantined(sqlite_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        await engine.start(labours, run_id="r")
        await asyncio.sleep(1)

    async def look(engine: Engine) -> None:
        run = await engine.get("r")
        before = await run.wait()
        assert before.status is RunStatus.QUARANTINED

        await run.checkpoint("as it was found")

        assert await added(run, before.last_seq) == [e.RunClaimed, e.CheckpointSaved]
        state = await run.state()
        assert (state.status, state.recoveries, state.reason) == (before.status, before.recoveries, before.reason)
        await run.resume()
        assert await run.result() == 4
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            for _ in range(6):
                await killed_after(world, begin)
            await in_another_process(world, look)

    run_virtual(main())


def test_a_run_in_doubt_goes_on_resting_and_no_probe_is_asked(sqlite_url: str, tmp_path: Path) -> None:
    async def look(engine: Engine) -> None:
        run = await engine.get(test_probes.RUN)
        await hibernated(run)
        asked_before, keys_before = len(test_probes.asked), len(test_probes.keys)

        await run.checkpoint("in doubt")

        assert await run.status() is RunStatus.SUSPENDED
        assert (len(test_probes.asked), len(test_probes.keys)) == (asked_before, keys_before)
        await run.resolve("charge", "done", output="somebody knew")
        assert await run.result() == "thanks: somebody knew"

    test_probes.asked.clear()
    test_probes.keys.clear()
    test_probes.after_a_loss(sqlite_url, tmp_path, None, look)


# Whoever drives the run


def test_a_run_of_another_process_gets_its_checkpoint(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def own(engine: Engine) -> None:
            await engine.start(labours, run_id="r")
            await over.wait()

        async def ask_for(engine: Engine) -> None:
            run = await engine.get("r")
            assert engine.driver_of(RunId("r")) is None
            saved = await run.checkpoint("from afar")
            assert list(await run.checkpoints()) == [saved]
            assert (await counted(run))[e.RunClaimed] == 1
            await run.result()
            await assert_whole(engine, run)
            over.set()

        async with opened_world(store_url, tmp_path) as world, asyncio.TaskGroup() as group:
            owner = Process("owner")
            group.create_task(owner.run(world.engine(world.door(owner)), own))
            await asyncio.sleep(1)
            await in_another_process(world, ask_for, recover=False)

    run_virtual(main())


def test_whoever_cannot_drive_the_run_does_not_wait_for_ever_and_the_wish_is_kept(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def begin(engine: Engine) -> None:
        await engine.start(labours, run_id="r")
        await asyncio.sleep(1)

    async def ask_for(engine: Engine) -> None:
        run = await engine.get("r")
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(100):
            with pytest.raises(CheckpointPending, match="is kept"):
                await run.checkpoint("later", timeout=5)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.1)
        with pytest.raises(CheckpointExists, match="to be saved"):
            await run.checkpoint("later")
        assert await run.checkpoints() == []

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        assert await run.result() == 4
        (saved,) = await run.checkpoints()
        log = await log_of(run)
        claim = next(entry.seq for entry in log if isinstance(entry.event, e.RunClaimed) and entry.event.epoch == 2)
        started_again = next(
            entry.seq for entry in log if isinstance(entry.event, e.NodeStarted) and entry.event.attempt == 2
        )
        assert claim < saved.seq < started_again
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            await killed_after(world, begin)
            await in_another_process(world, ask_for, workflows=(), recover=False)
            await in_another_process(world, go_on)

    run_virtual(main())


@node(retries=1, backoff=900)
async def fails_at_first(ctx: Context) -> int:
    begun.append(ctx.attempt)
    if ctx.attempt == 1:
        raise RuntimeError("not today")
    return ctx.attempt


@workflow
def retries_later() -> int:
    return fails_at_first()


@workflow
def asks_plainly() -> str:
    return ask("what now?")


@pytest.mark.parametrize("flow", [wonders, dozes, retries_later, asks_plainly], ids=lambda flow: flow.name)
def test_a_run_that_rests_needs_nobody_who_has_its_code(sqlite_url: str, flow: Any) -> None:
    async def leave(engine: Engine) -> None:
        run = await engine.start(flow, run_id="r")
        await hibernated(run)

    async def name(engine: Engine) -> None:
        run = await engine.get("r")
        before = await run.state()
        seen = list(begun)
        saved = await run.checkpoint("by a stranger", timeout=5)
        assert saved.seq == before.last_seq + 1
        after = await run.load()
        assert (after.run.status, after.run.wake_at, after.owner) == (before.status, before.wake_at, None)
        assert begun == seen
        await assert_whole(engine, run)

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        await answer_all(run)
        await run.result()
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, leave)
    seldom_looking(sqlite_url, name, workflows=(), recover=False)
    seldom_looking(sqlite_url, go_on)


def test_a_paused_run_needs_nobody_who_has_its_code_but_only_for_that(sqlite_url: str) -> None:
    async def leave(engine: Engine) -> None:
        run = await engine.start(labours, run_id="r")
        await asyncio.sleep(1)
        await run.pause(grace=0)
        await paused(run)

    async def name(engine: Engine) -> None:
        run = await engine.get("r")
        await run.checkpoint("one", timeout=5)
        assert await run.status() is RunStatus.PAUSED
        await run.resume()
        with pytest.raises(CheckpointPending):
            await run.checkpoint("two", timeout=5)
        assert await run.status() is RunStatus.PAUSED

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        assert await run.result() == 4
        assert [saved.name for saved in await run.checkpoints()] == ["one", "two"]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, leave)
    seldom_looking(sqlite_url, name, workflows=(), recover=False)
    seldom_looking(sqlite_url, go_on)


# Runs that have ended


@pytest.mark.parametrize("how", [RunStatus.COMPLETED, RunStatus.CANCELLED])
def test_a_run_that_has_ended_gets_no_checkpoint(sqlite_url: str, how: RunStatus) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        if how is RunStatus.CANCELLED:
            await run.cancel()
        await run.wait()
        last = (await run.state()).last_seq

        with pytest.raises(RunEnded, match=f"it is {how.value}") as refused:
            await run.checkpoint("too late")

        assert refused.value.status == how.value
        assert (await run.state()).last_seq == last
        assert (await run.load()).commands == ()
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


def test_who_waits_for_a_checkpoint_of_a_run_that_ends_first_is_told(sqlite_url: str) -> None:
    """The wish is in the store, but the run has ended before anybody has heard of it."""

    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        heard = engine._listening.take_commands

        async def hears_nothing() -> None:
            await asyncio.sleep(100)
            await heard()

        engine._listening.take_commands = hears_nothing  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(RunEnded, match="'here' was not saved"):
            await run.checkpoint("here", timeout=1_000)
        assert await run.checkpoints() == []
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_that_meets_the_end_is_saved_or_refused(sqlite_url: str, seed: int) -> None:
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            for number in range(5):
                run = await engine.start(labours)
                await asyncio.sleep(29.999 + number / 1_000)
                try:
                    saved = await run.checkpoint("here")
                except RunEnded:
                    assert await run.checkpoints() == []
                else:
                    assert await run.checkpoints() == [saved]
                assert await run.result() == 4
                await assert_whole(engine, run)

    run_virtual(main(), seed=seed)


# Branches


@node
async def told_otherwise(ctx: Context) -> Any:
    for number in range(4):
        yield f"{number} by attempt {ctx.attempt}" if number == 3 else f"{number}"
    await asyncio.sleep(100)


@node
async def echoed(x: str) -> str:
    return x


@workflow
def differs() -> list[str]:
    return collect(echoed.map(told_otherwise()))


def test_names_stay_when_the_run_goes_on_on_a_branch(sqlite_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        run = await engine.start(differs, run_id="r")
        await asyncio.sleep(1)
        await run.checkpoint("before")

    async def go_on(engine: Engine) -> None:
        run = await engine.get("r")
        await asyncio.sleep(10)
        with pytest.raises(CheckpointExists):
            await run.checkpoint("before")
        await run.checkpoint("after")
        assert (await run.result())[-1] == "3 by attempt 2"
        assert [(saved.name, saved.branch) for saved in await run.checkpoints()] == [("before", 1), ("after", 2)]
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            await killed_after(world, begin)
            await in_another_process(world, go_on)

    run_virtual(main())


# Damage


DAMAGE = [
    ("DELETE FROM run_checkpoints WHERE name = 'one'", "I4"),
    ("UPDATE run_checkpoints SET name = 'three' WHERE name = 'one'", "I4"),
    ("UPDATE run_checkpoints SET seq = seq - 1 WHERE name = 'one'", "I4"),
    ("UPDATE run_checkpoints SET saved_at = saved_at + 1 WHERE name = 'one'", "I4"),
    ("UPDATE run_checkpoints SET branch_id = 2 WHERE name = 'one'", "I4"),
    (
        "INSERT INTO run_checkpoints (project_id, run_id, name, branch_id, seq, event_seq, periodic, asked_as, saved_at)"
        " VALUES ('default', 'r', 'invented', 1, 1, 2, 0, '', 5)",
        "I4",
    ),
    (
        "UPDATE run_events SET payload = replace(payload, '\"two\"', '\"one\"') WHERE event_type = 'CheckpointSaved'",
        "I33",
    ),
    (
        "UPDATE run_events SET payload = replace(payload, '\"seq\":', '\"seq\":9') WHERE event_type = 'CheckpointSaved'",
        "I33",
    ),
]


@pytest.mark.parametrize(("statement", "invariant"), DAMAGE)
def test_damage_is_found(store_url: str, tmp_path: Path, statement: str, invariant: str) -> None:
    async def main() -> None:
        async def live(engine: Engine) -> None:
            run = await engine.start(labours, run_id="r")
            await run.checkpoint("one")
            await run.checkpoint("two")
            await run.result()
            await assert_whole(engine, run)
            in_own_loop(_execute(store_url, statement))

            found = await verify_run(engine, "r")

            assert invariant in {violation.invariant for violation in found}

        async with opened_world(store_url, tmp_path) as world:
            process = Process("whole")
            await process.run(world.engine(world.door(process)), live)

    run_virtual(main())


async def _execute(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            database.execute(statement)
        return
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def test_a_command_of_another_program_is_obeyed(sqlite_url: str) -> None:
    """What is stored of a wish is enough: its name."""

    async def main(engine: Engine) -> None:
        run = await engine.start(labours)
        command = Command(
            command_id=CommandId("checkpoint/by hand"),
            run_id=run.run_id,
            kind=CHECKPOINT,
            payload={"name": "by hand", "asked_as": "x"},
        )
        await engine.store.add_command(command)
        await engine.commanded(run.run_id)
        await run.result()
        assert [saved.name for saved in await run.checkpoints()] == ["by hand"]

    seldom_looking(sqlite_url, main)
