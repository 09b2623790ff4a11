"""What every store promises over time: readers beside writers, other processes, callers that leave, and a clean end."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from perdure.ids import CommandId, EngineId, RunId
from perdure.journal.projection import fold
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.shapes import Command, RunFilter
from perdure.store.transitions import Committed, Keep, Outcome, Release, RunExists
from tests.store.builders import ENGINE, Draft, engine_row, save_workflow, started
from tests.store.conftest import OpenStore

ROOT = Path(__file__).parent.parent.parent


async def test_a_reader_never_sees_half_a_transition(store: Store, open_another: OpenStore) -> None:
    another = await open_another()
    drafts = [started() for _ in range(10)]
    await store.commit([draft.transition() for draft in drafts])
    is_done = False

    async def write() -> list[Outcome]:
        nonlocal is_done
        outcomes: list[Outcome] = []
        try:
            for number in range(500):
                outcomes += await store.commit([drafts[number % 10].next_node(number // 10).transition()])
                await asyncio.sleep(0)
        finally:
            is_done = True
        return outcomes

    async def read(reader: Store) -> int:
        looks = 0
        while not is_done:
            dump = await reader.dump_run(drafts[looks % 10].run_id)
            assert dump is not None
            assert [entry.seq for entry in dump.events] == list(range(1, dump.stored.run.last_seq + 1))
            projection = fold(dump.stored.run.run_id, dump.events)
            assert projection.run == dump.stored.run
            assert projection.nodes == {node.node_id: node for node in dump.stored.nodes}
            looks += 1
            await asyncio.sleep(0.005)
        return looks

    outcomes, *looks = await asyncio.gather(write(), read(store), read(another))

    assert outcomes == [Committed()] * 500
    assert min(looks) >= 3


async def test_a_commit_whose_caller_leaves_is_finished(store: Store) -> None:
    for turns in range(8):
        draft = started()
        task = asyncio.create_task(store.commit([draft.transition()]))
        for _ in range(turns):
            await asyncio.sleep(0)
        begun = turns > 0
        task.cancel()
        await asyncio.wait([task])

        # What comes after it is written after it.
        after = started()
        assert list(await store.commit([after.transition()])) == [Committed()]
        stored = await store.load_run(draft.run_id)
        assert (stored is not None) == begun
        assert stored is None or stored.run == draft.projection.run


async def test_a_read_whose_caller_leaves_disturbs_nobody(store: Store) -> None:
    draft = started()
    await store.commit([draft.transition()])

    for turns in range(12):
        task = asyncio.create_task(store.dump_run(draft.run_id))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        stored = await store.load_run(draft.run_id)
        assert stored is not None
        assert stored.run == draft.projection.run


# Other processes


@pytest.mark.parametrize("what", ["command", "release", "creation", "retirement"])
async def test_another_process_hears_that_something_happened(store: Store, open_another: OpenStore, what: str) -> None:
    another = await open_another()
    draft = started()
    await store.commit([draft.transition()])

    async def happen(number: int) -> None:
        match what:
            case "command":
                await store.add_command(Command(command_id=CommandId(str(number)), run_id=draft.run_id, kind="pause"))
            case "release":
                await store.commit([draft.transition(Release())])
            case "creation":
                await store.commit([Draft.create().transition(Keep())])
            case _:
                await store.register_engine(engine_row(EngineId(f"e{number}")), ttl_seconds=60)
                await store.retire_engine(EngineId(f"e{number}"))

    hearing = asyncio.create_task(another.wait_for_news(60))
    number = 0
    # Again and again: who begins to listen does not hear what happened before.
    while not hearing.done():
        await happen(number)
        await asyncio.wait([hearing], timeout=0.2)
        number += 1

    assert await hearing
    assert number < 50


async def test_what_a_store_does_itself_is_no_news_to_it(store: Store) -> None:
    draft = started()
    await store.commit([draft.transition()])
    await store.wait_for_news(0.05)

    hearing = asyncio.create_task(store.wait_for_news(0.5))
    await store.add_command(Command(command_id=CommandId("c"), run_id=draft.run_id, kind="pause"))
    await store.commit([draft.transition(Release())])

    assert not await hearing


async def test_waiting_for_news_ends_in_time(store: Store) -> None:
    await store.wait_for_news(0.05)  # whatever happened before the first question

    async with asyncio.timeout(10):
        assert not await store.wait_for_news(0.1)
        assert not await store.wait_for_news(0)


async def test_projects_do_not_see_each_other(store: Store, open_another: OpenStore) -> None:
    other = await open_another(project_id="other")
    await save_workflow(other)
    mine = started("same")
    await store.commit([mine.transition()])

    theirs = Draft.create("same")
    assert await other.load_run(RunId("same")) is None
    assert list(await other.commit([theirs.transition(Keep())])) == [Committed()]
    assert list(await other.commit([Draft.create("same").transition(Keep())])) == [RunExists()]
    command = Command(command_id=CommandId("c"), run_id=RunId("same"), kind="pause")
    assert await other.add_command(command)
    assert await store.add_command(command)

    assert list(await store.commit([mine.next_node(0).transition(commands=[CommandId("c")])])) == [Committed()]
    stored = await other.load_run(RunId("same"))
    assert stored is not None
    assert stored.commands == (command,)
    assert stored.run.last_seq == 1
    assert [run.run_id for run in await other.find_claimable(dead=[ENGINE], after=None, limit=10)] == ["same"]
    assert len(await other.list_runs(RunFilter(), before=None, limit=10)) == 1
    assert [version.workflow for version in await other.list_versions()] == ["letters"]


OPEN_AND_SAVE = """
import asyncio, sys
from perdure.store.opening import open_store

async def main(url, number):
    store = await open_store(url)
    version = await store.save_version("w", number, number.encode(), {}, at=1)
    print(version.version)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.new_database
async def test_many_processes_may_open_a_fresh_database_at_once(url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPEN_AND_SAVE, url, str(number)),
            cwd=ROOT / "src",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for number in range(8)
    ]
    said = [await process.communicate() for process in processes]

    assert [process.returncode for process in processes] == [0] * 8, said
    assert sorted(int(out) for out, _ in said) == list(range(1, 9))
    store = await open_store(url)
    assert [version.version for version in await store.list_versions("w")] == list(range(1, 9))
    await store.close()


# The end


async def test_a_closed_store_leaves_nothing_behind(url: str) -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())

    store = await open_store(url)
    await save_workflow(store)
    drafts = [started() for _ in range(5)]
    await asyncio.gather(*(store.commit([draft.transition()]) for draft in drafts))
    await asyncio.gather(*(store.dump_run(draft.run_id) for draft in drafts))
    await store.commit([draft.transition(Release()) for draft in drafts])
    await store.wait_for_news(0.2)
    reading = [asyncio.create_task(store.dump_run(draft.run_id)) for draft in drafts]
    await asyncio.wait(reading)
    await store.close()

    assert asyncio.all_tasks() - tasks == set()
    assert set(threading.enumerate()) - threads == set()


async def test_what_was_committed_is_there_after_closing_and_opening(url: str) -> None:
    first = await open_store(url)
    await save_workflow(first)
    draft = started()
    await first.commit([draft.transition()])
    await first.close()

    second = await open_store(url)
    stored = await second.load_run(draft.run_id)
    await second.close()

    assert stored is not None
    assert stored.run == draft.projection.run
    assert stored.owner == ENGINE
