"""An engine that leaves others' runs alone keeps to those that were asked of it, for as long as they need someone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, Run, Stream, collect, node, workflow
from perdure.engine.driving.catalogue import MAX_PREPARED
from perdure.engine.owning.listening import LOOK_LATER_SECONDS
from perdure.errors import AnsweredAlready, PerdureError, RunIdTaken
from perdure.graph.forms import graph_from_json
from perdure.graph.writing import graph_to_json
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.transitions import LeaseLost
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store, opened_world
from tests.engine.engines import assert_whole, counted, engine_on, in_another_process, killed_after


@node
async def step(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@workflow
def steps(seconds: float) -> float:
    for _ in range(10):
        seconds = step(seconds)
    return seconds


def test_who_waits_for_a_run_that_nobody_drives_gets_it_driven(sqlite_url: str, tmp_path):
    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path) as world:
            await killed_after(world, lambda engine: engine.start(steps, run_id="run", seconds=1))

            async def finish(engine: Engine) -> float:
                async with asyncio.timeout(100):
                    return await (await engine.get("run")).result()

            assert await in_another_process(world, finish, recover=False) == 1

    run_virtual(main())


def test_a_run_that_was_lost_to_another_engine_is_taken_back_when_that_one_stops(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store, recover=False) as engine:
            run = await engine.start(steps, run_id="run", seconds=5)
            async with engine_on(store) as other:
                await other.adopt("run", engine.engine_id)
                await asyncio.sleep(12)
                assert engine.driver_of(run.run_id) is None
                await other.stop(grace_seconds=0)
            async with asyncio.timeout(200):
                assert await run.result() == 5
            assert (await counted(run))[e.RunClaimed] == 3
            await assert_whole(engine, run)

    run_virtual(main())


def test_other_runs_are_left_alone(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                for name in ("mine", "other"):
                    await engine.start(steps, run_id=name, seconds=1)
                await engine.stop(grace_seconds=0)
            async with engine_on(store, recover=False) as engine:
                assert await (await engine.get("mine")).result() == 1
                await asyncio.sleep(60)
                assert (await (await engine.get("other")).state()).epoch == 1

    run_virtual(main())


def test_a_run_whose_id_could_not_be_taken_is_left_alone(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store, recover=False) as engine:
            async with engine_on(store) as other:
                await other.start(steps, run_id="theirs", seconds=1)
                await other.start(steps, run_id="shared", seconds=1)
                shared = await engine.start(steps, run_id="shared", seconds=1)
                for run_id in ("theirs", "shared"):
                    with pytest.raises(RunIdTaken):
                        await engine.start(steps, run_id=run_id, seconds=2)
                await other.stop(grace_seconds=0)
            await asyncio.sleep(60)
            assert (await (await engine.get("theirs")).state()).epoch == 1
            assert await shared.result() == 1

    run_virtual(main())


def test_what_was_asked_for_is_taken_up_however_many_runs_the_engine_has(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store, max_recovered_runs=3) as engine:
            for number in range(5):
                await engine.start(steps, run_id=f"own-{number}", seconds=10_000)
            async with engine_on(store, recover=False) as other:
                for name in ("cancelled", "awaited", "started", "unasked"):
                    await other.start(steps, run_id=name, seconds=1)
                await other.stop(grace_seconds=0)
            async with asyncio.timeout(37):
                cancelled = await engine.get("cancelled")
                await cancelled.cancel("enough")
                assert (await cancelled.wait()).status is RunStatus.CANCELLED
                assert await (await engine.get("awaited")).result() == 1
                assert await (await engine.start(steps, run_id="started", seconds=1)).result() == 1
            assert (await (await engine.get("unasked")).state()).epoch == 1
            await engine.stop(grace_seconds=0)

    run_virtual(main())


def test_a_run_that_was_dropped_while_it_was_being_written_is_driven_again(sqlite_url: str):
    """The engine gives up waiting for a commit, which is done all the same a moment later, after the run was read again."""

    class Late(StoreProxy):
        """One commit is answered with an error before it is made."""

        is_late = False

        async def passing(self, name, call, *args):
            if name == "commit" and self.is_late:
                self.is_late = False
                self.held = call
                raise RuntimeError("a bug in the store")
            if name == "load_run" and (held := self.__dict__.pop("held", None)) is not None:
                stored = await call()
                await held()
                return stored
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            late = Late(store)
            async with engine_on(late.as_store) as engine:
                run = await engine.start(steps, run_id="run", seconds=3)
                driver = engine.driver_of(run.run_id)
                assert driver is not None
                await asyncio.sleep(1)
                late.is_late = True
                with suppress(PerdureError):
                    await driver.rested
                async with asyncio.timeout(200):
                    while (await run.status()) is not RunStatus.COMPLETED:
                        await asyncio.sleep(1)
                await assert_whole(engine, run)

    run_virtual(main())


# What is remembered


def test_runs_that_have_ended_are_forgotten(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store) as engine:
            async with engine_on(store) as other:
                for number in range(30):
                    run = await engine.start(steps, run_id=f"run-{number}", seconds=0)
                    await engine.start(steps, run_id=f"run-{number}", seconds=0)
                    await run.result()
                    await run.cancel("too late")
                    await (await other.get(run.run_id)).wait()
                    await other.start(steps, run_id=f"run-{number}", seconds=0)
                await asyncio.sleep(60)
                assert len(other._holding.wanted) == 0
            assert len(engine._holding.wanted) == 0

    run_virtual(main())


@pytest.mark.slow
def test_runs_that_were_lost_and_ended_elsewhere_are_forgotten(sqlite_url: str):
    async def main() -> None:
        async with (
            opened_store(sqlite_url) as store,
            engine_on(store, recover=False) as engine,
            engine_on(store) as other,
        ):
            for number in range(50):
                await engine.start(steps, run_id=f"run-{number}", seconds=20)
            for number in range(50):
                await other.adopt(f"run-{number}", engine.engine_id)
            await asyncio.sleep(100)
            assert len(engine._holding.wanted) == 50
            await asyncio.sleep(400)
            assert len(engine._holding.wanted) == 0

    run_virtual(main())


@pytest.mark.slow
def test_graphs_that_are_read_again_and_again_are_not_kept(sqlite_url: str):
    async def main() -> None:
        document = graph_to_json(steps.graph)
        async with engine_on(sqlite_url) as engine:
            for _ in range(MAX_PREPARED + 50):
                run = await engine.start(graph_from_json(document), inputs={"seconds": 0}, durability="exit")
                await run.result()
            assert len(engine._catalogue._saved) == MAX_PREPARED

    run_virtual(main())


def test_nothing_is_lost_between_a_lease_that_is_lost_and_the_next(sqlite_url: str):
    """Commits are answered with LeaseLost although the engine lives: it takes up again what nobody else has."""

    class Refusing(StoreProxy):
        refusals = 0

        async def passing(self, name, call, *args):
            if name == "commit" and self.refusals:
                self.refusals -= 1
                return [LeaseLost() for _ in args[0]]
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            refusing = Refusing(store)
            async with engine_on(refusing.as_store, recover=False) as engine:
                run = await engine.start(steps, run_id="run", seconds=3)
                await asyncio.sleep(1)
                refusing.refusals = 1
                async with asyncio.timeout(200):
                    assert await run.result() == 3
                await assert_whole(engine, run)

    run_virtual(main())


@node
async def asks_someone(ctx: Context) -> str:
    return await ctx.ask("who?")


@workflow
def answered_elsewhere() -> str:
    return asks_someone()


def test_who_waits_for_a_run_that_rests_gets_it_driven_when_somebody_elsewhere_answers(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store, recover=False, hibernate_after=0) as engine:
            run = await engine.start(answered_elsewhere)
            await run.wait()
            waiting = asyncio.ensure_future(run.result())
            await asyncio.sleep(10)

            async with engine_on(store, recover=False, workflows=()) as other:
                (question,) = await other.questions()
                await (await other.get(run.run_id)).answer(question.interaction_id, "me")

            async with asyncio.timeout(60):
                assert await waiting == "me"

    run_virtual(main())


class Meanwhile(StoreProxy):
    """Has something done while the database is asked for something: before or after it answers."""

    act: Callable[[], Awaitable[None]] | None = None

    def __init__(self, inner: Store, what: str, *, before: bool) -> None:
        super().__init__(inner)
        self._what = what
        self._is_before = before

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if self._is_before:
            await self._meanwhile(name)
        answer = await call()
        await self._meanwhile(name)
        return answer

    async def _meanwhile(self, name: str) -> None:
        if name == self._what and (act := self.act) is not None:
            self.act = None
            await act()


RARELY = EngineSettings(poll_seconds=3_600, recovery_seconds=3_600, hibernate_after=0)


async def test_a_run_is_looked_at_again_that_was_told_something_while_it_was_looked_at(store_url: str):
    store = await open_store(store_url)
    seen = Meanwhile(store, "load_run", before=False)
    async with Engine(seen.as_store, settings=RARELY) as engine:
        run = await engine.start(steps, seconds=0.01)
        await run.pause(grace=0)
        await run.wait()
        await asyncio.sleep(
            2 * LOOK_LATER_SECONDS
        )  # until nobody looks any more whether something was said to it too late
        seen.act = run.resume
        await engine.commanded(run.run_id)  # as whoever tells it anything does
        async with asyncio.timeout(20):
            while await run.status() is RunStatus.PAUSED:
                await asyncio.sleep(0.01)
        assert await run.result() == 0.01
    await store.close()


@node
async def hears_two(ctx: Context) -> list[int]:
    return [await ctx.wait_for("a", schema=int), await ctx.wait_for("b", schema=int)]


@workflow
def two_signals() -> list[int]:
    return hears_two()


async def test_what_a_run_is_told_while_it_is_being_claimed_is_heard(store_url: str):
    store = await open_store(store_url)
    seen = Meanwhile(store, "commit", before=True)
    async with Engine(seen.as_store, settings=RARELY, recover=False) as engine:
        run = await engine.start(two_signals)
        await resting_in(engine, run)
        seen.act = lambda: run.signal("b", 2)  # when the claim is on its way
        await run.signal("a", 1)
        async with asyncio.timeout(20):
            while await run.status() is not RunStatus.COMPLETED:
                await asyncio.sleep(0.01)
        assert await run.result() == [1, 2]
    await store.close()


async def test_what_a_run_is_told_while_a_claim_that_is_refused_is_on_its_way_is_heard(store_url: str):
    """Another engine is faster, hears what came before, and lets go of the run again."""
    store = await open_store(store_url)
    seen = Meanwhile(store, "commit", before=True)
    async with (
        Engine(seen.as_store, settings=RARELY, recover=False) as engine,
        Engine(store_url, settings=RARELY, recover=False) as other,
    ):
        run = await engine.start(two_signals)
        await resting_in(engine, run)

        async def overtake() -> None:
            await other.adopt(run.run_id)
            await resting_in(other, run)
            await run.signal("b", 2)

        seen.act = overtake
        await run.signal("a", 1)
        async with asyncio.timeout(20):
            assert await run.result() == [1, 2]
    await store.close()


async def test_what_a_run_is_told_while_another_is_to_be_begun_under_its_id_is_heard(store_url: str):
    store = await open_store(store_url)
    seen = Meanwhile(store, "commit", before=True)
    async with (
        Engine(seen.as_store, settings=RARELY, recover=False) as engine,
        Engine(store_url, settings=RARELY, recover=False) as other,
    ):

        async def be_faster() -> None:
            await resting_in(other, await other.start(two_signals, run_id="taken"))
            there = await engine.get("taken")
            for name, value in (("a", 1), ("b", 2)):
                await there.signal(name, value)

        seen.act = be_faster
        with pytest.raises(RunIdTaken):
            await engine.start(steps, run_id="taken", seconds=1)
        run = await other.get("taken")
        async with asyncio.timeout(20):
            while await run.status() is not RunStatus.COMPLETED:
                await asyncio.sleep(0.01)
        assert await run.result() == [1, 2]
    await store.close()


async def resting_in(engine: Engine, run: Run[Any]) -> None:
    """Wait until an engine has let go of a run, and nobody looks any more whether something was said to it too late."""
    async with asyncio.timeout(20):
        while await run.status() is not RunStatus.SUSPENDED or engine.driver_of(run.run_id) is not None:
            await asyncio.sleep(0.01)
    await asyncio.sleep(2 * LOOK_LATER_SECONDS)


class HeldBack(StoreProxy):
    """Holds back what the database has answered, once, until somebody lets go of it."""

    def __init__(self, inner: Store, what: str) -> None:
        super().__init__(inner)
        self._what = what
        self.is_armed = False
        self.is_holding = asyncio.Event()
        self.lets_go = asyncio.Event()

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        answer = await call()
        if name == self._what and self.is_armed:
            self.is_armed = False
            self.is_holding.set()
            await self.lets_go.wait()
        return answer


@node
async def echoed(x: int) -> int:
    return x


@workflow
def fed(xs: Stream[int]) -> list[int]:
    return collect(echoed.map(xs))


async def test_what_a_run_was_told_is_not_heard_again_from_an_answer_that_is_older_than_its_driver(store_url: str):
    """An item is read twice. The second reading is slow: meanwhile the first has been recorded, and the run was let go of and is
    driven again."""
    store = await open_store(store_url)
    slow = HeldBack(store, "pending_commands")
    seldom = EngineSettings(poll_seconds=3_600, recovery_seconds=3_600)
    async with Engine(slow.as_store, settings=seldom) as engine, asyncio.TaskGroup() as group:
        run = await engine.start(fed)
        slow.is_armed = True
        group.create_task(run.send("xs", 7))
        await slow.is_holding.wait()
        await engine.commanded(run.run_id)  # reads it too, and is faster
        async with asyncio.timeout(20):
            while (await run.load()).commands:
                await asyncio.sleep(0.01)
            await run.pause(grace=0)
            while await run.status() is not RunStatus.PAUSED or engine.driver_of(run.run_id) is not None:
                await asyncio.sleep(0.01)
            await run.resume()
            while (driver := engine.driver_of(run.run_id)) is None or not driver.is_claimed:
                await asyncio.sleep(0.01)

        slow.lets_go.set()
        await asyncio.sleep(0.1)  # whoever was held back has told what it read
        await run.close("xs")
        async with asyncio.timeout(20):
            assert await run.result() == [7]
    await store.close()


async def test_what_is_answered_is_asked_no_more_though_nobody_drives_the_run(store_url: str):
    async with Engine(store_url, settings=EngineSettings(hibernate_after=0)) as engine:
        await (await engine.start(answered_elsewhere, run_id="left")).wait()

    async with Engine(store_url, recover=False, workflows=()) as other:
        run = await other.get("left")
        (question,) = await other.questions()
        await run.answer(question.interaction_id, "me")

        assert list(await other.questions()) == []
        assert list(await run.questions()) == []
        with pytest.raises(AnsweredAlready):
            await run.answer(question.interaction_id, "somebody else")
