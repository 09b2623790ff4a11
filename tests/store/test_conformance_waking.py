"""What every store promises of runs that rest: whoever is told something or whose time has come is found, and nobody else.

When a run is to be woken is written as it is wanted here, whether or not the events beside it add up to it.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.ids import CommandId, EngineId, NodeId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import Command, RunFilter, Wakings
from perdure.store.transitions import Claim, Committed, Release
from tests.store.builders import Draft, begin, commit, engine_row, loaded, save_workflow, started
from tests.store.conftest import OpenStore

NOW = 1_800_000_000_000_000


@pytest.fixture
def store(unverified_store: Store) -> Store:
    """A store whose runs are not verified in the end: when they wake up is put there by hand."""
    return unverified_store


async def rest(store: Store, draft: Draft, *, wake_at: int | None = None, for_input: bool = False) -> None:
    """Let the run hibernate."""
    draft.add(e.RunSuspended(awaiting_input=for_input, wake_at=wake_at))
    handed_over = draft.transition()
    assert await commit(store, replace(handed_over, run=replace(handed_over.run, wake_at=wake_at))) == [Committed()]


async def resting(
    store: Store, run_id: str, *, wake_at: int | None = None, for_input: bool = False, at: int | None = None
) -> Draft:
    draft = started(run_id, at=at)
    assert await commit(store, draft.transition()) == [Committed()]
    await rest(store, draft, wake_at=wake_at, for_input=for_input)
    return draft


async def stopped(store: Store, run_id: str, *events: e.AnyEvent, wake_at: int | None = None) -> Draft:
    """A run that rests because it was told to, although its time would have come."""
    draft = await begin(store, run_id)
    handed_over = draft.add(*events).transition(lease=Release())
    assert await commit(store, replace(handed_over, run=replace(handed_over.run, wake_at=wake_at))) == [Committed()]
    return draft


async def tell(store: Store, draft: Draft, kind: str = "answer", *, at: int = 1, count: int = 1) -> None:
    for number in range(count):
        command = Command(
            command_id=CommandId(f"{kind}/{number}"), run_id=draft.run_id, kind=kind, payload={}, created_at=at + number
        )
        assert await store.add_command(command)


async def woken(store: Store, *, now: int = NOW, limit: int = 100) -> list[str]:
    return list((await store.find_woken(now=now, limit=limit)).runs)


async def test_when_a_run_is_to_be_woken_is_kept_with_it(store: Store) -> None:
    sleeping = await resting(store, "sleeping", wake_at=NOW)
    born = Draft.create("born").transition()
    assert await commit(store, replace(born, run=replace(born.run, wake_at=5))) == [Committed()]

    assert (await loaded(store, sleeping)).run.wake_at == NOW
    state = await store.load_state(sleeping.run_id)
    assert state is not None
    assert state.wake_at == NOW
    summaries = await store.list_runs(RunFilter(), before=None, limit=9)
    assert {run.run_id: run.wake_at for run in summaries} == {"sleeping": NOW, "born": 5}

    taken = sleeping.claim(EngineId("engine-b")).add(e.RunResumed())
    assert await commit(store, taken.transition()) == [Committed()]
    assert (await loaded(store, sleeping)).run.wake_at is None


@pytest.mark.parametrize("for_input", [False, True])
async def test_a_run_is_woken_when_its_time_has_come(store: Store, for_input: bool) -> None:
    await resting(store, "r", wake_at=NOW, for_input=for_input)
    await resting(store, "never", for_input=for_input)

    assert await store.find_woken(now=NOW - 1, limit=9) == Wakings(runs=(), next_at=NOW)
    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(RunId("r"),), next_at=None)
    assert await store.find_woken(now=NOW + 1, limit=9) == Wakings(runs=(RunId("r"),), next_at=None)


async def test_nothing_rests(store: Store) -> None:
    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(), next_at=None)


async def test_the_next_waking_is_the_first_that_is_to_come(store: Store) -> None:
    for number, wake_at in enumerate((40, 10, 30, 20, 30)):
        await resting(store, f"r{number}", wake_at=wake_at)

    for now, expected in ((0, 10), (9, 10), (10, 20), (25, 30), (30, 40), (40, None)):
        assert (await store.find_woken(now=now, limit=1)).next_at == expected


@pytest.mark.parametrize("kind", ["answer", "resume", "cancel", "signal", "send", "close"])
@pytest.mark.parametrize("for_input", [False, True])
async def test_a_hibernated_run_is_woken_by_whatever_it_is_told(store: Store, kind: str, for_input: bool) -> None:
    draft = await resting(store, "r", wake_at=NOW + 1, for_input=for_input)
    await resting(store, "other", for_input=for_input)
    assert await woken(store) == []

    await tell(store, draft, kind)

    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(draft.run_id,), next_at=NOW + 1)
    assert [found.run_id for found in await store.find_claimable(dead=[], after=None, limit=9)] == ["r"]


PAUSE = (e.RunPausing(), e.RunPaused())
QUARANTINE = (e.RunQuarantined(node_id=NodeId("step0"), recoveries=5, reason="it kills"),)


@pytest.mark.parametrize("events", [PAUSE, QUARANTINE], ids=["paused", "quarantined"])
async def test_a_run_that_was_stopped_is_woken_by_words_but_not_by_time_or_items(
    store: Store, events: tuple[e.AnyEvent, ...]
) -> None:
    draft = await stopped(store, "r", *events, wake_at=1)
    assert (await loaded(store, draft)).run.wake_at == 1
    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(), next_at=None)
    assert await store.find_woken(now=0, limit=9) == Wakings(runs=(), next_at=None)

    for kind in ("send", "close"):
        await tell(store, draft, kind, count=3)
        assert await woken(store) == []
        assert list(await store.find_claimable(dead=[], after=None, limit=9)) == []

    await tell(store, draft, "resume")
    assert await woken(store) == ["r"]
    assert [found.run_id for found in await store.find_claimable(dead=[], after=None, limit=9)] == ["r"]


async def test_a_run_that_does_not_rest_is_not_woken(store: Store) -> None:
    await store.register_engine(engine_row(), ttl_seconds=600)
    ended = await begin(store, "ended")
    assert await commit(store, ended.complete_node("step0").end().transition()) == [Committed()]
    moving = await begin(store, "moving")
    free = Draft.create("free")
    assert await commit(store, free.transition()) == [Committed()]
    for draft in (ended, moving, free):
        await tell(store, draft)
        await tell(store, draft, "send")

    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(), next_at=None)


async def test_a_run_that_somebody_owns_is_not_woken(store: Store) -> None:
    drafts = [await resting(store, "timed", wake_at=1), await resting(store, "told", wake_at=1)]
    await tell(store, drafts[1])
    assert await woken(store) == ["timed", "told"]

    for draft in drafts:
        handed_over = draft.claim(EngineId("engine-b")).transition()
        assert await commit(store, replace(handed_over, run=replace(handed_over.run, wake_at=1))) == [Committed()]
        stored = await loaded(store, draft)
        assert (stored.run.status, stored.run.wake_at, stored.owner) == (RunStatus.SUSPENDED, 1, "engine-b")

    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(), next_at=None)
    assert await store.find_woken(now=0, limit=9) == Wakings(runs=(), next_at=None)


async def test_what_was_taken_up_wakes_nobody(store: Store) -> None:
    draft = await resting(store, "r")
    await tell(store, draft)
    assert await woken(store) == ["r"]

    taken = draft.claim(EngineId("engine-b")).transition(
        Claim(engine_id=EngineId("engine-b"), lets_go=True), commands=[CommandId("answer/0")]
    )
    assert await commit(store, taken) == [Committed()]

    assert await woken(store) == []


async def test_who_waits_longest_is_woken_first(store: Store) -> None:
    for run_id, wake_at in (("c", 30), ("a", 50), ("e", 10), ("b", 30)):
        await resting(store, run_id, wake_at=wake_at)
    for run_id, at in (("d", 20), ("f", 40), ("e", 60), ("a", 5)):
        draft = await resting(store, run_id) if run_id in "df" else Draft.create(run_id)
        await tell(store, draft, at=at, count=2)

    assert await woken(store) == ["a", "e", "d", "b", "c", "f"]
    for limit in range(4, 7):
        assert await woken(store, limit=limit) == ["a", "e", "d", "b", "c", "f"][:limit]


async def test_no_more_are_woken_than_were_asked_for_and_all_in_the_end(store: Store) -> None:
    for number in range(7):
        await resting(store, f"due{number}", wake_at=number)
        await tell(store, await resting(store, f"told{number}"), at=number)
    left = {f"{kind}{number}" for kind in ("due", "told") for number in range(7)}

    while left:
        found = await woken(store, limit=3)
        assert len(found) == min(3, len(left))
        assert set(found) <= left
        for run_id in found:
            stored = await store.load_run(RunId(run_id))
            assert stored is not None
            assert await commit(store, Draft.continued(stored).claim(EngineId("engine-b")).transition()) == [
                Committed()
            ]
        left -= set(found)

    assert await woken(store) == []


async def test_many_commands_of_one_run_hide_no_other(store: Store) -> None:
    await store.register_engine(engine_row(), ttl_seconds=600)
    busy = await begin(store, "a busy one")
    paused = await stopped(store, "a paused one", *PAUSE)
    hibernated = await resting(store, "told a lot")
    for draft in (busy, paused, hibernated):
        await tell(store, draft, "send", count=30)
    await tell(store, await resting(store, "z"))

    assert sorted(await woken(store, limit=2)) == ["told a lot", "z"]


async def test_what_rests_in_another_project_is_not_woken_here(store: Store, open_another: OpenStore) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    draft = await resting(elsewhere, "same", wake_at=1)
    await tell(elsewhere, draft)
    await resting(store, "same")

    assert await store.find_woken(now=NOW, limit=9) == Wakings(runs=(), next_at=None)
    assert await elsewhere.find_woken(now=0, limit=9) == Wakings(runs=(draft.run_id,), next_at=1)
