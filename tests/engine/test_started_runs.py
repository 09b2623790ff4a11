"""Runs that other runs start: each once, under an id that tells where it comes from, and on its own from then on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Tick, ask, collect, inbox, node, schedule, text, workflow
from perdure.engine.attempts.keys import started_run_id
from perdure.engine.runs.run import Run
from perdure.errors import MisusedRef, RunCancelled, RunFailed, TypesMissing
from perdure.graph.forms import graph_from_json
from perdure.ids import ROOT_BRANCH, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.states import NodeState, RunStatus
from perdure.testing.loop import run_virtual
from tests.crash.backends import opened_world
from tests.engine.engines import assert_whole, engine_on, in_another_process, killed_after, log_of
from tests.engine.test_triggers import PATIENT

written: list[str] = []


@node
async def write_letter(ctx: Context, number: int, who: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    if number == 13:
        raise ValueError("no thirteenth letter")
    written.append(ctx.run_id)
    return f"letter {number} to {who}"


@workflow
def letter(number: int, who: str = "nobody", seconds: float = 0.0) -> str:
    return write_letter(number, who, seconds)


@workflow
def letters() -> list[str]:
    return collect(letter.start_each(inbox(int), who="Ada"))


@workflow
def slow_letters() -> list[str]:
    return collect(letter.start_each(inbox(int), seconds=30))


@workflow
def all_letters(numbers: list[int]) -> list[str]:
    return collect(letter.start_each(numbers))


@workflow
def unchecked_letters(numbers: Any) -> list[str]:
    return collect(letter.start_each(numbers))


@node
async def day_of(tick: Tick) -> str:
    return f"{tick.at:%d.%m.}"


@workflow
def daily_report(tick: Tick) -> str:
    return day_of(tick)


@workflow
def daily_reports() -> list[str]:
    return collect(daily_report.named("daily").start_each(schedule("0 7 * * *", tz="Europe/Berlin")))


@workflow
def letter_to_another(number: int) -> str:
    return write_letter(number, "another", 0.0)


@workflow
def asked_for(number: int) -> int:
    return ask.named("how_many")(text("How many of ", number, "?"), schema=int)


@workflow
def asking_for_each() -> list[str]:
    return collect(asked_for.start_each(inbox(int)))


@workflow
def nested_letters(number: int) -> list[str]:
    return collect(letter.start_each([number, 1]))


@workflow
def letters_of_letters() -> list[str]:
    return collect(nested_letters.start_each([10, 20]))


@workflow
def broken_letter(number: int) -> int:
    return 1 if number else 2


@workflow
def broken_letters() -> list[str]:
    return collect(broken_letter.start_each([1]))


async def fed(run: Run[Any], *numbers: int) -> list[str]:
    """Deliver numbers, and return the ids of the runs that were started for them."""
    for number in numbers:
        await run.deliver("inbox", number, id=str(number))
    await run.stop()
    result: list[str] = await run.result()
    return result


async def results(engine: Engine, *run_ids: str) -> list[Any]:
    return [await (await engine.get(run_id)).result() for run_id in run_ids]


async def test_each_item_starts_one_run_and_gives_its_id(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(letters, run_id="post")
        started = await fed(run, 1, 2, 2, 3)

        assert started == ["post:letter:0", "post:letter:1", "post:letter:2"]
        assert await results(engine, *started) == ["letter 1 to Ada", "letter 2 to Ada", "letter 3 to Ada"]
        assert {found.run_id for found in await engine.list(id_prefix="post:")} == set(started)
        assert {found.workflow for found in await engine.list(id_prefix="post:")} == {"letter"}
        await assert_whole(engine, run, *[await engine.get(run_id) for run_id in started])


async def test_the_ids_of_started_runs_may_be_longer_than_one_that_is_chosen(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(letters, run_id="p" * 512)

        (started,) = await fed(run, 1)

        assert started == "p" * 512 + ":letter:0"
        assert await results(engine, started) == ["letter 1 to Ada"]
        again = await engine.start(letter, run_id=started, number=1, who="Ada")
        assert (again.run_id, await again.result()) == (started, "letter 1 to Ada")


def test_ids_of_started_runs_do_not_collide() -> None:
    def id_of(run_id: str, node_id: str, item: str, generation: int = 1) -> str:
        state = NodeState(node_id=NodeId(node_id), branch_id=ROOT_BRANCH, generation=generation)
        return started_run_id(RunId(run_id), state, item)

    ids = [
        id_of("a", "b", "1"),
        id_of("a", "b", "1", 2),
        id_of("a:b", "c", "1"),
        id_of("a", "b:c", "1"),
        id_of("a", "b%3Ac", "1"),
        id_of("a/b", "c", "1"),
        id_of("a", "b", "x1+y:2"),
        id_of("a:b:x1+y", "2", "0"),
    ]
    assert len(set(ids)) == len(ids)
    assert id_of("a", "b", "1") == "a:b:1"
    assert "/" not in id_of("a", "b/c", "1").replace("b/c", "")


async def test_what_becomes_of_a_started_run_is_nothing_to_the_one_that_started_it(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(slow_letters, run_id="post")
        await run.deliver("inbox", 1, id="1")
        await run.deliver("inbox", 13, id="13")
        async with asyncio.timeout(10):
            while len(await engine.list(id_prefix="post:")) < 2:
                await asyncio.sleep(0.01)
        await (await engine.get("post:letter:0")).cancel("not this one")
        with pytest.raises(RunCancelled):
            await (await engine.get("post:letter:0")).result()
        assert await run.status() is RunStatus.RUNNING

        await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result()
        assert await (await engine.get("post:letter:1")).status() is RunStatus.RUNNING
        await engine.stop(grace_seconds=0)


async def test_a_started_run_that_fails_fails_alone(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(letters, run_id="post")
        started = await fed(run, 12, 13, 14)

        with pytest.raises(RunFailed, match="no thirteenth letter"):
            await (await engine.get(started[1])).result()
        assert await results(engine, started[0], started[2]) == ["letter 12 to Ada", "letter 14 to Ada"]


async def test_a_value_that_does_not_fit_fails_its_item_clearly(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(unchecked_letters, run_id="post", numbers=[1, "two", 3])

        with pytest.raises(RunFailed, match=r"item 1: The inputs do not fit workflow 'letter': 'number'"):
            await run.result()
        assert "post:letter:1" not in {found.run_id for found in await engine.list(id_prefix="post:")}
        await assert_whole(engine, run)


@pytest.mark.slow
async def test_a_thousand_items_start_a_thousand_runs(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(all_letters, run_id="post", numbers=[*range(14, 1014)])
        started = await run.result()

        assert started == [f"post:letter:{position}" for position in range(1000)]
        assert await results(engine, started[0], started[-1]) == ["letter 14 to nobody", "letter 1013 to nobody"]
        assert len(await engine.list(id_prefix="post:", limit=2_000)) == 1000
        await assert_whole(engine, run)


async def test_runs_that_were_started_start_others(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(letters_of_letters, run_id="post")

        first, second = await run.result()
        assert second == "post:nested_letters:1"
        inner = await (await engine.get(first)).result()
        assert inner == ["post:nested_letters:0:letter:0", "post:nested_letters:0:letter:1"]
        assert await results(engine, *inner) == ["letter 10 to nobody", "letter 1 to nobody"]


def test_a_schedule_starts_a_run_each_day_though_the_process_is_killed(sqlite_url: str, tmp_path: Any) -> None:
    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path, settings=PATIENT) as world:

            async def begin(engine: Engine) -> None:
                await engine.start(daily_reports, run_id="reports")
                await asyncio.sleep(3 * 86_400)

            async def finish(engine: Engine) -> None:
                run = await engine.get("reports")
                await asyncio.sleep(86_400)
                await run.stop()
                started = await run.result()
                assert started == [f"reports:daily:{number}" for number in range(4)]
                days = await results(engine, *started)
                assert len(set(days)) == 4
                await assert_whole(engine, run)

            await killed_after(world, begin)
            await in_another_process(world, finish)

    run_virtual(main())


@pytest.mark.parametrize("grace_seconds", [0, 20])
def test_an_engine_that_stops_while_it_starts_runs_fails_none(sqlite_url: str, grace_seconds: float) -> None:
    numbers = [*range(100, 300)]

    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(all_letters, run_id="post", numbers=numbers)
            async with asyncio.timeout(60):
                while not await engine.list(id_prefix="post:"):
                    await asyncio.sleep(0)
            await engine.stop(grace_seconds=grace_seconds)
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("post")
            begun = len(await engine.list(id_prefix="post:", limit=1_000))
            assert 0 < begun < len(numbers), "it was not stopped in between"
            started = await run.result()
            assert started == [f"post:letter:{position}" for position in range(len(numbers))]
            assert await results(engine, started[0], started[-1]) == ["letter 100 to nobody", "letter 299 to nobody"]
            assert not any(isinstance(entry.event, e.ItemFailed | e.NodeFailed) for entry in await log_of(run))
            await assert_whole(engine, run)

    run_virtual(main())


async def test_two_engines_start_each_run_once(store_url: str) -> None:
    written.clear()
    async with Engine(store_url) as one, Engine(store_url) as other:
        runs = [await engine.start(letters) for engine in (one, other)]
        started = [
            run_id
            for run, engine in zip(runs, (other, one), strict=True)
            for run_id in await fed(await engine.get(run.run_id), *range(20, 40))
        ]
        assert len(await results(other, *started)) == 40

    assert sorted(written) == sorted(started)


async def test_a_run_whose_workflow_is_missing_is_left_to_another_engine(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        run = await engine.start(letters, run_id="post")
        await run.deliver("inbox", 1, id="1")
    async with Engine(sqlite_url, workflows=[daily_report]) as stranger:
        run = await stranger.get("post")
        epoch = (await run.load()).run.epoch
        await run.deliver("inbox", 2, id="2")
        with pytest.raises(TypesMissing, match="needs the workflows letter, which this process does not have"):
            await stranger.adopt("post")
        await asyncio.sleep(0.3)
        assert (await run.load()).run.epoch == epoch
    async with Engine(sqlite_url, workflows=[letters]) as engine:  # with all that it starts
        started = await fed(await engine.get("post"), 3)
        assert await results(engine, *started) == [f"letter {number} to Ada" for number in (1, 2, 3)]


async def test_what_an_older_process_has_started_is_not_started_again(sqlite_url: str) -> None:
    earlier = graph_from_json(
        {
            "name": "letter",
            "inputs": [{"name": "number"}, {"name": "who", "default": "somebody else"}],
            "nodes": [{"id": "how", "type": "perdure.ask", "data": {"prompt": "How?"}}],
        }
    )
    async with Engine(sqlite_url) as engine:
        await engine.start(earlier, run_id="post:letter:0", inputs={"number": 1})
        run = await engine.start(all_letters, run_id="post", numbers=[1, 2])
        assert await run.result() == ["post:letter:0", "post:letter:1"]
        assert (await (await engine.get("post:letter:0")).state()).version == 1

        await engine.start(earlier, run_id="other:letter:0", inputs={"number": 7})
        run = await engine.start(all_letters, run_id="other", numbers=[1, 2])
        with pytest.raises(RunFailed, match=r"item 0: Run 'other:letter:0' exists"):
            await run.result()


async def test_what_was_started_before_and_is_archived_or_deleted_is_not_missed(store_url: str, tmp_path: Path) -> None:
    async with Engine(store_url, settings=EngineSettings(archive_folder=str(tmp_path / "archive"))) as engine:
        for number in (0, 1):
            await (await engine.start(letter, run_id=f"post:letter:{number}", number=number)).result()
            if number == 0:
                await (await engine.start(letter_to_another, run_id="other:letter:0", number=1)).result()
                assert (await engine.archive(older_than=timedelta(0))).runs == 2
        await (await engine.get("post:letter:1")).delete()
        written.clear()

        run = await engine.start(all_letters, run_id="post", numbers=[0, 1, 2])
        assert await run.result() == [f"post:letter:{number}" for number in (0, 1, 2)]
        await (await engine.get("post:letter:2")).wait()
        assert written == ["post:letter:2"]

        run = await engine.start(all_letters, run_id="other", numbers=[1])
        with pytest.raises(RunFailed, match=r"item 0: Run 'other:letter:0' is in the archive"):
            await run.result()


async def test_a_workflow_is_not_started_if_one_whose_runs_it_starts_is_wrong(sqlite_url: str) -> None:
    async with Engine(sqlite_url) as engine:
        with pytest.raises(MisusedRef, match="A test of truth needs the value itself"):
            await engine.start(broken_letters)
        assert await engine.list() == []


async def test_a_document_starts_runs_for_each_item_or_one(sqlite_url: str) -> None:
    document: dict[str, Any] = {
        "name": "document_letters",
        "nodes": [
            {"id": "numbers", "type": "perdure.inbox", "data": {"schema": {"type": "integer"}}},
            {"id": "each", "type": "perdure.start", "data": {"workflow": "letter", "who": "Grace"}},
            {"id": "one", "type": "perdure.start", "data": {"workflow": "letter", "number": 7}},
        ],
        "edges": [
            {"source": "numbers", "target": "each", "targetHandle": "number", "mode": "map"},
            {"source": "each", "target": "$output", "targetHandle": "each", "mode": "collect"},
            {"source": "one", "target": "$output", "targetHandle": "one"},
        ],
    }
    async with Engine(sqlite_url) as engine:
        run = await engine.start(graph_from_json(document), run_id="post")
        await run.deliver("numbers", 5, id="5")
        await run.stop()

        assert await run.result() == {"each": ["post:each:0"], "one": "post:one:0"}
        assert await results(engine, "post:each:0", "post:one:0") == ["letter 5 to Grace", "letter 7 to nobody"]
        await assert_whole(engine, run)


async def test_a_started_run_asks_and_goes_on_when_it_is_answered(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(asking_for_each, run_id="post")
        started = await fed(run, 3, 4)
        async with asyncio.timeout(10):
            while len(await engine.questions()) < 2:
                await asyncio.sleep(0.02)
    async with Engine(store_url) as engine:
        asked = {question.prompt: question for question in await engine.questions()}
        assert asked["How many of 4?"].interaction_id == "post:asked_for:1/how_many/1"
        await (await engine.get(started[1])).answer("post:asked_for:1/how_many/1", 40)
        assert await results(engine, started[1]) == [40]
        assert await (await engine.get(started[0])).status() is RunStatus.AWAITING_INPUT


async def test_a_started_run_belongs_to_the_same_project(sqlite_url: str) -> None:
    async with Engine(sqlite_url, project="ours") as engine:
        started = await fed(await engine.start(letters, run_id="post"), 1)
        await results(engine, *started)
    async with Engine(sqlite_url) as engine:
        assert await engine.list() == []
