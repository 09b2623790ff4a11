"""Starting runs: durable when it returns, once per id, and nothing started that does not fit."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Engine, node, when, workflow
from perdure.engine.starting import beginning
from perdure.errors import RunIdTaken, RunNotFound, WrongInputs
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.loop import run_virtual
from tests.engine.engines import assert_whole, counted, engine_on


@node
async def double(ctx: Context, x: int) -> int:
    await asyncio.sleep(1)
    return 2 * x


@workflow
def doubling(x: int, note: str = "") -> int:
    return double(x)


@workflow(name="doubling")
def doubling_twice(x: int, note: str = "") -> int:
    return double(double(x))


@workflow
def optional(x: int, wanted: bool = False) -> int:
    with when(wanted):
        doubled = double(x)
    return doubled


def test_starting_again_gives_the_same_run(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            first = await engine.start(doubling, run_id="run", x=2)
            second = await engine.start(doubling, run_id="run", x=2)
            assert await first.result() == await second.result() == 4
            third = await engine.start(doubling, run_id="run", x=2)
            assert await third.result() == 4
            assert (await counted(first))[e.NodeStarted] == 1
            await assert_whole(engine, first)

    run_virtual(main())


@pytest.mark.parametrize("is_over", [False, True])
def test_an_id_belongs_to_one_workflow_with_one_set_of_inputs(sqlite_url: str, is_over: bool):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(doubling, run_id="run", x=2)
            if is_over:
                await run.result()
            with pytest.raises(RunIdTaken, match="input 'x'"):
                await engine.start(doubling, run_id="run", x=3)
            with pytest.raises(RunIdTaken, match="input 'note'"):
                await engine.start(doubling, run_id="run", x=2, note="another")
            with pytest.raises(RunIdTaken, match="workflow"):
                await engine.start(optional, run_id="run", x=2)
            with pytest.raises(RunIdTaken, match="version 1"):
                await engine.start(doubling_twice, run_id="run", x=2)
            assert await run.result() == 4

    run_virtual(main())


def test_an_id_is_taken_in_another_engine_too(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine, engine_on(sqlite_url) as other:
            await engine.start(doubling, run_id="run", x=2)
            with pytest.raises(RunIdTaken):
                await other.start(doubling, run_id="run", x=3)
            same = await other.start(doubling, run_id="run", x=2)
            assert await same.result() == 4
            assert (await same.load()).run.epoch == 1

    run_virtual(main())


def test_a_run_is_durable_when_start_returns(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine, engine_on(sqlite_url, recover=False) as other:
            for number in range(5):
                run_id = f"run-{number}"
                starts = [engine.start(doubling, run_id=run_id, x=1) for _ in range(3)]
                for start in asyncio.as_completed(starts):
                    await start
                    await other.get(run_id)

    run_virtual(main())


def test_wrong_inputs_start_nothing(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            with pytest.raises(WrongInputs) as problems:
                await engine.start(doubling, run_id="run", x="two", colour="red")
            assert len(problems.value.problems) == 2
            with pytest.raises(WrongInputs, match="'x' is missing"):
                await engine.start(doubling, run_id="run")
            with pytest.raises(RunNotFound):
                await engine.get("run")

    run_virtual(main())


def test_a_run_in_which_nothing_is_to_be_done_completes_at_once(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(optional, x=7)
            assert await run.result() is None
            stored = await run.load()
            assert stored.run.status is RunStatus.COMPLETED
            assert stored.owner is None
            await assert_whole(engine, run)

    run_virtual(main())


def test_runs_are_listed_newest_first(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            for number in range(5):
                await (await engine.start(doubling, run_id=f"run-{number}", x=1)).result()
            await engine.start(doubling, run_id="other", x=1)
            done = await engine.list(status="completed", limit=2)
            assert [run.run_id for run in done] == ["run-4", "run-3"]
            rest = await engine.list(status="completed", before=(done[-1].created_at, done[-1].run_id))
            assert [run.run_id for run in rest] == ["run-2", "run-1", "run-0"]
            assert [run.run_id for run in await engine.list(status="running")] == ["other"]

    run_virtual(main())


@pytest.mark.parametrize(
    ("run_id", "told"),
    [
        ("", "names no run"),
        ("a\nb", r"has a control character \('\\n'\)"),
        ("a\x1b[2J", "has a control character"),
        ("a\x85b", "has a control character"),
        ("a" * 513, "has 513 characters, and 512 are the most"),
        ("-a", "begins with '-'"),
    ],
)
async def test_an_id_that_nobody_could_read_or_write_down_is_refused(sqlite_url: str, run_id: str, told: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(optional, run_id="run", x=1)
        with pytest.raises(ValueError, match=told):
            await engine.start(optional, run_id=run_id, x=1)
        with pytest.raises(ValueError, match=told):
            await run.fork(run_id=run_id)

        assert [found.run_id for found in await engine.list()] == ["run"]
        longest = await engine.start(optional, run_id="ä" * 512, x=1)
        assert await longest.result() is None


async def test_a_run_that_has_such_an_id_can_be_looked_at(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as before:
        before.setattr(beginning, "why_no_run_id", lambda text: None)
        async with Engine(sqlite_url) as engine:
            await (await engine.start(optional, run_id="a\nb", x=1)).result()

    async with Engine(sqlite_url) as engine:
        run = await engine.get("a\nb")
        assert [found.run_id for found in await engine.list()] == ["a\nb"]
        assert await run.result() is None
        await assert_whole(engine, run)
