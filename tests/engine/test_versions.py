"""Versions and aliases: what a run gets that is started by name, that it keeps it, and what is kept because of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Engine, Run, Workflow, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import (
    AliasMoved,
    AliasNotFound,
    NothingToRollBack,
    RunIdTaken,
    TypesMissing,
    VersionInUse,
    VersionNotFound,
    WrongInputs,
)
from perdure.graph.aliases import version_for
from perdure.graph.forms import graph_from_json
from perdure.journal import events as e
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_world
from tests.engine.engines import assert_whole, in_another_process, killed_after, log_of

NAME = "ver_greeting"


@dataclass
class VerPerson:
    name: str


@node
async def ver_hello(person: VerPerson) -> str:
    return f"hello {person.name}"


@node
async def ver_louder(said: str, times: int = 1) -> str:
    return said + "!" * times


@workflow(name=NAME)
def ver_first(person: VerPerson) -> str:
    return ver_hello(person)


@workflow(name=NAME)
def ver_second(person: VerPerson) -> str:
    return ver_louder(ver_hello(person))


@workflow(name=NAME)
def ver_third(person: VerPerson, times: int = 3) -> str:
    return ver_louder(ver_hello(person), times)


@workflow
def ver_else(said: str) -> str:
    return ver_louder(said)


RESULTS = {1: "hello Ada", 2: "hello Ada!", 3: "hello Ada!!!"}
ADA = VerPerson("Ada")


async def save_all(engine: Engine) -> None:
    all_three: list[Workflow[..., Any]] = [ver_first, ver_second, ver_third]
    for version, each in enumerate(all_three, 1):
        assert (await engine.save(each)).version == version


async def resolved(run: Run[Any]) -> list[e.VersionResolved]:
    return [entry.event for entry in await log_of(run) if isinstance(entry.event, e.VersionResolved)]


async def test_saving_gives_numbers_and_the_same_graph_keeps_its_own(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        again = await engine.save(ver_first)
        run = await engine.start(ver_second, person=ADA)
        await run.result()

        versions = await engine.versions(NAME)

        assert again.version == 1
        assert [(found.version, found.aliases, found.runs) for found in versions] == [
            (1, (), 0),
            (2, (), 1),
            (3, ("latest",), 0),
        ]
        assert [found.version for found in await engine.versions(ver_first)] == [1, 2, 3]
        with pytest.raises(VersionNotFound, match="No version of workflow 'nowhere'"):
            await engine.versions("nowhere")


async def test_a_run_is_started_by_name_and_version(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        for version, expected in RESULTS.items():
            run = await engine.start(f"{NAME}@{version}", run_id=f"run-{version}", person=ADA)

            assert await run.result() == expected
            assert (await run.state()).version == version
            assert await resolved(run) == []
        with pytest.raises(RunIdTaken, match="version 1"):
            await engine.start(f"{NAME}@2", run_id="run-1", person=ADA)
        with pytest.raises(VersionNotFound, match="No version 4"):
            await engine.start(f"{NAME}@4", person=ADA)
        with pytest.raises(VersionNotFound, match="No version of workflow"):
            await engine.start("ver_nobody", person=ADA)
        with pytest.raises(ValueError, match="names no version"):
            await engine.start(f"{NAME}@?", person=ADA)


@pytest.mark.parametrize("journal", ["log", "audit"])
async def test_a_start_that_is_refused_saves_no_version(store_url: str, journal: e.Journal) -> None:
    async with Engine(store_url, journal=journal) as engine:
        await (await engine.start(ver_first, run_id="run", person=ADA)).result()

    async with Engine(store_url, journal=journal) as engine:
        with pytest.raises(RunIdTaken) as refusal:
            await engine.start(ver_third, run_id="run", person=VerPerson("Bo"))
        with pytest.raises(RunIdTaken, match=r"\(workflow, input 'person'"):
            await engine.start(ver_else, run_id="run", said="hello")

        assert refusal.value.differing == (
            "version 1 of the workflow, which has changed since",
            "input 'person'",
            "input 'times'",
        )
        assert [(found.workflow, found.version) for found in await engine.versions()] == [(NAME, 1)]
        again = await engine.start(ver_first, run_id="run", person=ADA)
        assert await again.result() == RESULTS[1]


async def test_what_has_changed_since_is_told_from_what_was_there_before(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.start(ver_second, run_id="run", person=ADA)

    async with Engine(store_url) as engine:
        with pytest.raises(RunIdTaken, match=r"\(version 2 of the workflow\)"):
            await engine.start(ver_first, run_id="run", person=ADA)
        with pytest.raises(RunIdTaken, match=r"version 2 of the workflow, which has changed since"):
            await engine.start(ver_third, run_id="run", person=ADA)
        assert len(await engine.versions()) == 3


async def test_who_is_overtaken_while_saving_is_told_the_same(store_url: str) -> None:
    async with Engine(store_url) as other:
        store = OvertakenStore(other.store)
        store.after = "where_is"
        store.overtake = lambda: other.start(ver_first, run_id="run", person=ADA)
        async with Engine(store.as_store) as engine:
            with pytest.raises(RunIdTaken, match="version 1 of the workflow"):
                await engine.start(ver_second, run_id="run", person=ADA)


async def test_what_an_alias_meant_is_recorded_in_the_first_transition(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.alias(NAME, "stable", 2)

        run = await engine.start(f"{NAME}@stable", person=ADA)

        assert await run.result() == RESULTS[2]
        types = [type(entry.event) for entry in await log_of(run)][:4]
        assert types == [e.RunCreated, e.RunClaimed, e.VersionResolved, e.RunStarted]
        assert await resolved(run) == [e.VersionResolved(workflow=NAME, alias="stable", version=2, revision=1)]
        await assert_whole(engine, run)


@pytest.mark.parametrize(
    ("what", "instead"), [('"version":2', '"version":3'), (f'"workflow":"{NAME}"', '"workflow":"w"')]
)
async def test_a_run_that_follows_something_else_than_its_alias_meant_is_found(
    sqlite_url: str, what: str, instead: str
) -> None:
    async with Engine(sqlite_url) as engine:
        await save_all(engine)
        await engine.alias(NAME, "stable", 2)
        run = await engine.start(f"{NAME}@stable", person=ADA)
        await run.result()
        assert await verify_run(engine, run.run_id) == []
        connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
        connection.execute(
            "UPDATE run_events SET payload = replace(payload, ?, ?) WHERE event_type = 'VersionResolved'",
            (what, instead),
        )
        connection.close()

        (found,) = await verify_run(engine, run.run_id)

        assert found.invariant == "I2"
        assert "'stable' meant version" in found.problem


async def test_latest_follows_the_newest_version_unless_it_is_pinned(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await engine.save(ver_first)
        (latest,) = await engine.aliases(NAME)
        assert (latest.name, latest.targets, latest.follows) == ("latest", {1: 1}, True)
        await engine.save(ver_second)
        assert (await resolved(await engine.start(NAME, person=ADA)))[0].version == 2

        pinned = await engine.alias(NAME, "latest", 1)
        assert (pinned.targets, pinned.follows, pinned.revision) == ({1: 1}, False, 1)
        await engine.save(ver_third)
        assert (await resolved(await engine.start(f"{NAME}@latest", person=ADA)))[0].version == 1

        await engine.remove_alias(NAME, "latest")
        assert (await resolved(await engine.start(NAME, person=ADA)))[0].version == 3


async def test_a_run_that_is_there_keeps_its_version_wherever_the_alias_points(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.alias(NAME, "stable", 1)
        run = await engine.start(f"{NAME}@stable", run_id="same", person=ADA)
        await run.result()
        await engine.alias(NAME, "stable", 3)  # which has one more input, with a default

        again = await engine.start(f"{NAME}@stable", run_id="same", person=ADA)

        assert await again.result() == RESULTS[1]
        assert len(await resolved(again)) == 1
        with pytest.raises(RunIdTaken, match="person"):
            await engine.start(f"{NAME}@stable", run_id="same", person=VerPerson("Bob"))
        with pytest.raises(WrongInputs, match="times"):
            await engine.start(f"{NAME}@stable", run_id="same", person=ADA, times=3)


async def test_an_alias_does_not_take_the_run_of_another_workflow(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.start(ver_else, run_id="taken", said="hey")

        with pytest.raises(RunIdTaken, match="workflow"):
            await engine.start(NAME, run_id="taken", person=ADA)


async def test_those_who_start_the_same_run_while_the_alias_moves_get_one_run(store_url: str) -> None:
    async with Engine(store_url) as engine, Engine(store_url) as other:
        await save_all(engine)
        await engine.alias(NAME, "stable", 1)

        async def start(which: Engine, number: int) -> Run[Any]:
            return await which.start(f"{NAME}@stable", run_id=f"run-{number}", person=ADA)

        async def move() -> None:
            for number in range(10):
                await other.alias(NAME, "stable", 1 + number % 3)

        starts = [start(which, number) for number in range(10) for which in (engine, other, engine)]
        *runs, _ = await asyncio.gather(*starts, move())

        for run in runs:
            assert run is not None
            (chosen,) = await resolved(run)
            assert await run.result() == RESULTS[chosen.version]


def test_who_starts_again_after_a_kill_gets_the_run_with_its_version(store_url: str, tmp_path: Path) -> None:
    async def begin(engine: Engine) -> None:
        await save_all(engine)
        await engine.alias(NAME, "stable", 1)
        await engine.start(f"{NAME}@stable", run_id="killed", person=ADA)

    async def again(engine: Engine) -> None:
        await engine.alias(NAME, "stable", 3)
        run = await engine.start(f"{NAME}@stable", run_id="killed", person=ADA)
        assert await run.result() == RESULTS[1]
        (chosen,) = await resolved(run)
        assert (chosen.version, chosen.revision) == (1, 1)
        await assert_whole(engine, run)

    async def main() -> None:
        async with opened_world(store_url, tmp_path) as world:
            await killed_after(world, begin)
            await in_another_process(world, again)

    run_virtual(main())


class OvertakenStore(StoreProxy):
    """A store in which something happens just after something, such as an alias, was looked up."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        found = await call()
        if name == self.after and self.overtake is not None:
            overtake, self.overtake = self.overtake, None
            await overtake()
        return found

    after: str = "load_alias"
    overtake: Callable[[], Awaitable[Any]] | None = None


async def test_who_is_overtaken_gets_the_run_that_is_there(store_url: str) -> None:
    async with Engine(store_url) as other:
        await save_all(other)
        await other.alias(NAME, "stable", 1)

        async def overtake() -> None:
            await other.alias(NAME, "stable", 3)
            await other.start(f"{NAME}@stable", run_id="same", person=ADA)

        store = OvertakenStore(other.store)
        store.overtake = overtake
        async with Engine(store.as_store, workflows=[ver_first]) as engine:
            run = await engine.start(f"{NAME}@stable", run_id="same", person=ADA)

            (chosen,) = await resolved(run)
            assert (chosen.version, chosen.revision) == (3, 2)
            assert await run.result() == RESULTS[3]


@pytest.mark.slow
async def test_an_alias_with_weights_spreads_runs_and_each_choice_is_recorded(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.alias(NAME, "rollout", {2: 90, 3: 10})

        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(_started(engine, number)) for number in range(1_000)]
        runs = [start.result() for start in starts]

        chosen = Counter[int]()
        for run in runs:
            ((event,), state) = await resolved(run), await run.state()
            assert (event.alias, event.version) == ("rollout", state.version)
            chosen[event.version] += 1
        # Four and a half standard deviations: once in 150,000 trials, and the ids are the same each time.
        assert abs(chosen[3] - 100) < 4.5 * (1_000 * 0.9 * 0.1) ** 0.5
        assert chosen[2] + chosen[3] == 1_000
        assert {found.version: found.runs for found in await engine.versions(NAME)} == {1: 0, **chosen}


async def _started(engine: Engine, number: int) -> Run[Any]:
    run = await engine.start(f"{NAME}@rollout", run_id=f"rollout-{number}", person=ADA)
    await run.result()
    return run


@pytest.mark.slow
async def test_a_run_gets_what_the_alias_meant_at_one_moment_while_it_is_moved(store_url: str) -> None:
    states: list[Any] = [1, {2: 1, 3: 1}, {1: 3, 3: 1}, 2]
    async with Engine(store_url) as engine, Engine(store_url) as other, Engine(store_url) as mover:
        await save_all(engine)
        await mover.alias(NAME, "moving", states[-1])
        are_started = asyncio.Event()

        async def move() -> None:
            while not are_started.is_set():
                for to in states:
                    await mover.alias(NAME, "moving", to)

        async def start(which: Engine, number: int) -> Run[Any]:
            return await which.start(f"{NAME}@moving", run_id=f"moving-{number}", person=ADA)

        async with asyncio.TaskGroup() as group:
            group.create_task(move())
            runs = [await start(which, number) for number in range(150) for which in ((engine, other)[number % 2],)]
            are_started.set()

        moves = {move.revision: move.targets for move in await engine.alias_moves(NAME, "moving")}
        seen = Counter[int]()
        for run in runs:
            (event,) = await resolved(run)
            # Of all that the alias has meant, exactly this move says what the run got.
            assert event.version == version_for(run.run_id, NAME, "moving", moves[event.revision])
            assert (await run.state()).version == event.version
            assert await run.result() == RESULTS[event.version]
            seen[event.revision] += 1
        assert len(seen) > 3, "it was not moved while runs were started"
        await assert_whole(engine, *runs)


async def test_an_alias_is_moved_back_step_by_step(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        for to in (1, {1: 90, 2: 10}, 2):
            await engine.alias(NAME, "stable", to)

        first, second = await engine.rollback(NAME, "stable"), await engine.rollback(NAME, "stable")

        assert (first.targets, second.targets, second.revision) == ({1: 90, 2: 10}, {1: 1}, 5)
        with pytest.raises(NothingToRollBack):
            await engine.rollback(NAME, "stable")
        await engine.alias(NAME, "stable", 3)
        assert (await engine.rollback(NAME, "stable")).targets == {1: 1}
        assert [(move.targets, move.restores) for move in await engine.alias_moves(NAME, "stable")] == [
            ({1: 1}, None),
            ({1: 90, 2: 10}, None),
            ({2: 1}, None),
            ({1: 90, 2: 10}, 2),
            ({1: 1}, 1),
            ({3: 1}, None),
            ({1: 1}, 1),
        ]


async def test_what_was_removed_or_pinned_can_be_taken_back(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        await engine.alias(NAME, "stable", 1)
        await engine.remove_alias(NAME, "stable")
        with pytest.raises(AliasNotFound, match=r"no alias 'stable' \(it has 'latest'\)"):
            await engine.start(f"{NAME}@stable", person=ADA)
        with pytest.raises(AliasNotFound):
            await engine.remove_alias(NAME, "stable")

        assert (await engine.rollback(NAME, "stable")).targets == {1: 1}

        await engine.alias(NAME, "latest", 1)
        latest = await engine.rollback(NAME, "latest")
        assert (latest.targets, latest.follows) == ({3: 1}, True)
        with pytest.raises(NothingToRollBack):
            await engine.rollback(NAME, "latest")
        for look in (engine.rollback, engine.alias_moves):
            with pytest.raises(AliasNotFound):
                await look(NAME, "nothing")
            with pytest.raises(VersionNotFound):
                await look("ver_nobody", "stable")


async def test_who_says_what_was_seen_does_not_overwrite_what_was_not(store_url: str) -> None:
    async with Engine(store_url) as engine, Engine(store_url) as other:
        await save_all(engine)
        seen = await engine.alias(NAME, "stable", 1)
        await other.alias(NAME, "stable", 2)

        with pytest.raises(AliasMoved):
            await engine.alias(NAME, "stable", 3, revision=seen.revision)
        with pytest.raises(AliasMoved):
            await engine.remove_alias(NAME, "stable", revision=seen.revision)

        assert (await engine.alias(NAME, "stable", 3, revision=2)).targets == {3: 1}
        with pytest.raises(AliasMoved):
            await engine.alias(NAME, "fresh", 3, revision=1)
        assert (await engine.alias(NAME, "fresh", 3, revision=0)).revision == 1


@pytest.mark.parametrize("alias", ["3", "", "a b", "a@b", "é", 3])
async def test_an_alias_is_no_number_and_no_text_that_could_be_read_otherwise(sqlite_url: str, alias: Any) -> None:
    async with Engine(sqlite_url) as engine:
        await engine.save(ver_first)
        with pytest.raises(ValueError, match="is no alias"):
            await engine.alias(NAME, alias, 1)


async def test_an_alias_points_only_at_what_is_saved(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        with pytest.raises(VersionNotFound, match="No version 4"):
            await engine.alias(NAME, "stable", {3: 1, 4: 1})
        with pytest.raises(VersionNotFound):
            await engine.alias("ver_nobody", "stable", 1)

        assert [found.name for found in await engine.aliases(NAME)] == ["latest"]


async def test_a_version_is_kept_while_something_refers_to_it(store_url: str) -> None:
    async with Engine(store_url) as engine:
        await save_all(engine)
        run = await engine.start(ver_first, person=ADA)
        await run.result()
        await engine.alias(NAME, "stable", 2)

        with pytest.raises(VersionInUse, match="runs refer to it"):
            await engine.delete_version(NAME, 1)
        with pytest.raises(VersionInUse, match="an alias points at it"):
            await engine.delete_version(NAME, 2)
        with pytest.raises(VersionInUse, match="the newest"):
            await engine.delete_version(NAME, 3)
        with pytest.raises(VersionNotFound):
            await engine.delete_version(NAME, 9)

        await engine.remove_alias(NAME, "stable")
        await engine.delete_version(ver_second, 2)
        assert [found.version for found in await engine.versions(NAME)] == [1, 3]


async def test_a_graph_whose_version_was_deleted_elsewhere_is_saved_again(store_url: str) -> None:
    async with Engine(store_url) as engine, Engine(store_url) as other:
        await save_all(engine)
        await other.delete_version(NAME, 1)
        await other.delete_version(NAME, 2)

        run = await engine.start(ver_first, person=ADA)
        assert await run.result() == RESULTS[1]
        assert (await run.state()).version == 4
        assert (await engine.save(ver_second)).version == 5
        with pytest.raises(VersionNotFound):
            await engine.start(f"{NAME}@1", person=ADA)


async def test_what_is_started_by_name_has_to_be_here(store_url: str) -> None:
    document = (
        b'{"name":"ver_far","nodes":[{"id":"far","type":"ver_away","data":{}}],'
        b'"edges":[{"source":"far","target":"$output","targetHandle":"output"}]}'
    )
    async with Engine(store_url) as engine:
        graph = graph_from_json(document)
        await engine.store.save_version("ver_far", "h", document, {}, at=1)
        with pytest.raises(TypesMissing, match="ver_away"):
            await engine.start("ver_far")
        assert graph.name == "ver_far"


async def test_a_graph_without_code_is_saved_and_started_by_name(store_url: str) -> None:
    graph = graph_from_json(
        b'{"name":"ver_only_a_graph","inputs":[{"name":"said","schema":{"type":"string"}}],'
        b'"nodes":[{"id":"l","type":"%b","data":{"times":2}}],'
        b'"edges":[{"source":"$input","sourceHandle":"said","target":"l","targetHandle":"said"},'
        b'{"source":"l","target":"$output","targetHandle":"output"}]}' % ver_louder.name.encode()
    )
    async with Engine(store_url) as engine:
        await engine.save(graph)
        run = await engine.start("ver_only_a_graph", said="hey")

        assert await run.result() == "hey!!"
        assert not await verify_run(engine, run.run_id)
        with pytest.raises(WrongInputs, match="said"):
            await engine.start("ver_only_a_graph", said=7)
