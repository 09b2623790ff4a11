"""What the committer promises those who decide: each hears what became of its own, and nobody suffers for another."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from perdure.clock import SystemClock
from perdure.engine.recording.committer import SMALL_GROUP, Committer
from perdure.errors import StoreError, StoreLocked
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.transitions import Committed, LeaseLost, Outcome, Rejected, Transition
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import held_row
from tests.store.builders import Draft, save_workflow, started

NO_TEXT = "half \ud800 pair"


class Decided:
    """A source that has decided something. `heard` is told what became of it, one after the other."""

    def __init__(self, *transitions: Transition) -> None:
        self.transitions = list(transitions)
        self.heard: asyncio.Queue[Outcome | StoreError] = asyncio.Queue()
        self.asked = 0
        self.readied = 0
        self.is_gone = False
        self.is_poised = False

    def next_transition(self) -> Transition | None:
        self.asked += 1
        return self.transitions.pop(0) if self.transitions else None

    def being_written(self, *, alone: bool) -> bool:
        self.readied += 1
        return self.is_poised and alone

    def committed(self, transition: Transition, outcome: Outcome) -> None:
        self.heard.put_nowait(outcome)

    def storage_failed(self, error: StoreError) -> None:
        self.heard.put_nowait(error)


@asynccontextmanager
async def committing(
    store: Store, *, patience_seconds: float = 30, async_delay_seconds: float = 0.002
) -> AsyncIterator[Committer]:
    committer = Committer(
        store, SystemClock(), patience_seconds=patience_seconds, async_delay_seconds=async_delay_seconds
    )
    task = asyncio.create_task(committer.run())
    try:
        yield committer
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        await save_workflow(store)
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with opened(store_url) as store:
        yield store


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Store]:
    async with opened(postgres_url) as store:
        yield store


async def begin(store: Store, *names: str) -> list[Draft]:
    drafts = [started(name) for name in names]
    assert list(await store.commit([draft.transition() for draft in drafts])) == [Committed()] * len(names)
    return drafts


async def heard(*sources: Decided) -> list[Outcome | StoreError]:
    async with asyncio.timeout(10):
        return [await source.heard.get() for source in sources]


# What can wait


async def test_what_is_urgent_does_not_wait_for_company(store: Store) -> None:
    patient, hasty = Decided(started().transition()), Decided(started().transition())

    async with committing(store, async_delay_seconds=3_600) as committer:
        committer.submit(patient, urgent=False)
        await asyncio.sleep(0.05)  # it waits for company by now
        assert patient.asked == 0
        committer.submit(hasty)
        assert await heard(hasty, patient) == [Committed(), Committed()]


async def test_what_nobody_waits_for_is_committed_after_a_moment(store: Store) -> None:
    patient = Decided(started().transition())

    async with committing(store) as committer:
        committer.submit(patient, urgent=False)
        assert await heard(patient) == [Committed()]


# How many go together


@pytest.mark.parametrize(("works_beside", "sizes"), [(True, [50] * 12), (False, [100] * 6)])
async def test_half_of_them_go_if_the_others_can_be_at_work_while_these_are_written(
    store: Store, works_beside: bool, sizes: list[int]
) -> None:
    """A hundred that always have more to write: none waits for all others, and none of them is left behind."""
    drafts = await begin(store, *(f"run-{number}" for number in range(100)))
    sources = {draft.run_id: Decided(*(draft.next_node(step).transition() for step in range(6))) for draft in drafts}
    offered: list[list[RunId]] = []

    async def work(committer: Committer, source: Decided) -> None:
        for _ in range(6):
            committer.submit(source)
            assert await source.heard.get() == Committed()

    noting = Noting(store, offered)
    noting.works_beside = works_beside
    async with committing(noting.as_store) as committer, asyncio.TaskGroup() as works:
        for source in sources.values():
            works.create_task(work(committer, source))

    assert [len(group) for group in offered] == sizes
    for first, second in pairwise(offered):
        assert works_beside != bool(set(first) & set(second))
    assert all(source.readied == 6 for source in sources.values())


async def test_few_go_at_once(store: Store) -> None:
    sources = [Decided(started().transition()) for _ in range(SMALL_GROUP)]
    offered: list[list[RunId]] = []

    async with committing(Noting(store, offered).as_store) as committer:
        for source in sources:
            committer.submit(source)
        assert await heard(*sources) == [Committed()] * SMALL_GROUP

    assert [len(group) for group in offered] == [SMALL_GROUP]


class OneByOne(StoreProxy):
    """A store that takes few at once."""

    group_size = 3


async def test_no_more_go_than_the_store_takes(store: Store) -> None:
    sources = [Decided(started().transition()) for _ in range(10)]
    offered: list[list[RunId]] = []

    async with committing(OneByOne(Noting(store, offered).as_store).as_store) as committer:
        for source in sources:
            committer.submit(source)
        assert await heard(*sources) == [Committed()] * 10

    assert [len(group) for group in offered] == [3, 3, 3, 1]


async def test_nobody_who_is_gone_is_remembered(store: Store) -> None:
    source = Decided(started().transition())
    source.is_gone = True
    gone = weakref.ref(source)

    async with committing(store) as committer:
        committer.submit(source)
        assert await heard(source) == [Committed()]
        del source
        await asyncio.sleep(0)
        gc.collect()

        assert gone() is None


# What cannot be written


@pytest.mark.parametrize("company", [0, 5])
async def test_a_text_that_is_none_harms_only_its_own_run(store: Store, company: int) -> None:
    bad = [Decided(started(NO_TEXT).transition()), Decided(started().step("step0", NO_TEXT, 1).transition())]
    others = [Decided(started().transition()) for _ in range(company)]

    async with committing(store) as committer:
        for source in (*others, *bad):
            committer.submit(source)
        outcomes = await heard(*bad)
        assert await heard(*others) == [Committed()] * company
        after = Decided(started().transition())
        committer.submit(after)
        assert await heard(after) == [Committed()]

    for outcome in outcomes:
        assert isinstance(outcome, Rejected)
        assert "surrogates" in outcome.problem


class BrokenFor(StoreProxy):
    """A store that knows no errors of ours for some of what it is given."""

    def __init__(self, inner: Store, run_id: str) -> None:
        super().__init__(inner)
        self._run_id = run_id

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit" and self._run_id in [transition.run_id for transition in args[0]]:
            raise RuntimeError("not this one")
        return await call()


async def test_whatever_the_store_raises_ends_no_other_run(store: Store) -> None:
    bad = Decided(started("bad").transition())
    others = [Decided(started().transition()) for _ in range(6)]

    async with committing(BrokenFor(store, "bad").as_store) as committer:
        for source in (*others[:3], bad, *others[3:]):
            committer.submit(source)
        assert await heard(*others) == [Committed()] * 6
        assert await heard(bad) == [Rejected("RuntimeError: not this one")]


# Runs that somebody holds


async def test_a_busy_run_makes_no_other_wait_and_goes_on_when_it_is_free(postgres: Store, postgres_url: str) -> None:
    locked, *free = await begin(postgres, "locked", "a", "b", "c")
    held = Decided(locked.next_node(0).transition(), locked.next_node(1).transition())
    loop = asyncio.get_running_loop()

    async with committing(postgres) as committer:
        async with held_row(postgres_url, "locked"):
            began = loop.time()
            committer.submit(held)
            for number in range(8):
                others = [Decided(draft.next_node(number).transition()) for draft in free]
                for source in others:
                    committer.submit(source)
                committer.submit(held)
                assert await heard(*others) == [Committed()] * 3
            assert loop.time() - began < 2.5
            assert held.heard.empty()
            assert held.asked == 1
        assert await heard(held, held) == [Committed(), Committed()]

    state = await postgres.load_state(RunId("locked"))
    assert state == locked.projection.run


@pytest.mark.timeout(20)
async def test_one_that_has_decided_more_by_the_time_it_is_found_busy_stops_nothing(
    postgres: Store, postgres_url: str
) -> None:
    (locked,) = await begin(postgres, "locked")
    held = Decided(locked.next_node(0).transition(), locked.next_node(1).transition())

    async with committing(postgres) as committer:
        async with held_row(postgres_url, "locked"):
            committer.submit(held)
            await asyncio.sleep(0.05)  # it is on its way, and waits for the lock
            committer.submit(held)
            await asyncio.sleep(0.5)  # if the loop still turns
            assert held.heard.empty()
        assert await held.heard.get() == Committed()
        assert await held.heard.get() == Committed()


async def test_patience_with_a_busy_run_ends_for_that_run_alone(postgres: Store, postgres_url: str) -> None:
    locked, free = await begin(postgres, "locked", "free")
    held = Decided(locked.next_node(0).transition())
    other = Decided(free.next_node(0).transition())

    async with committing(postgres, patience_seconds=0.3) as committer:
        async with held_row(postgres_url, "locked"):
            committer.submit(held)
            committer.submit(other)
            assert await heard(other) == [Committed()]
            (error,) = await heard(held)
        assert isinstance(error, StoreLocked)
        assert "'locked'" in str(error)
        after = Decided(free.next_node(1).transition())
        committer.submit(after)
        assert await heard(after) == [Committed()]


async def test_what_was_held_for_one_who_has_let_go_is_not_written(postgres: Store, postgres_url: str) -> None:
    locked, free = await begin(postgres, "locked", "free")
    before = await postgres.load_state(RunId("locked"))
    held = Decided(locked.next_node(0).transition())
    offered: list[list[RunId]] = []

    async with committing(Noting(postgres, offered).as_store) as committer:
        async with held_row(postgres_url, "locked"):
            committer.submit(held)
            async with asyncio.timeout(5):
                while len(offered) < 2:  # then it was found busy before
                    await asyncio.sleep(0.01)
            held.is_gone = True
            await asyncio.sleep(0.5)  # longer than until it would be offered again
        after = Decided(free.next_node(0).transition())
        committer.submit(after)
        assert await heard(after) == [Committed()]
        await asyncio.sleep(1)

    assert held.heard.empty()
    assert await postgres.load_state(RunId("locked")) == before


async def test_a_run_that_was_loaded_again_while_it_was_busy_is_offered_once_at_a_time(
    postgres: Store, postgres_url: str
) -> None:
    (locked,) = await begin(postgres, "locked")
    stale = Decided(locked.next_node(0).transition())
    stored = await postgres.load_run(RunId("locked"))
    assert stored is not None
    fresh = Decided(Draft.continued(stored).complete_node("step0").begin_node("other").transition())
    offered: list[list[RunId]] = []

    async with committing(Noting(postgres, offered).as_store) as committer:
        async with held_row(postgres_url, "locked"):
            committer.submit(stale)
            async with asyncio.timeout(5):
                while not offered:
                    await asyncio.sleep(0.01)
            committer.submit(fresh)
            async with asyncio.timeout(5):
                while len(offered) < 6:
                    await asyncio.sleep(0.01)
        outcomes = await heard(stale, fresh)

    assert {type(outcome) for outcome in outcomes} == {Committed, LeaseLost}
    assert all(group == ["locked"] for group in offered)


class Noting(StoreProxy):
    """Writes down which runs were offered together."""

    works_beside = False

    def __init__(self, inner: Store, offered: list[list[RunId]]) -> None:
        super().__init__(inner)
        self._offered = offered

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            group: Sequence[Transition] = args[0]
            self._offered.append([transition.run_id for transition in group])
        return await call()
