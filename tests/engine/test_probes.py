"""Nodes that must run at most once: a probe says what became of a lost attempt, or else a person does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.engine.attempts import probing
from perdure.engine.attempts.probing import Doubt
from perdure.errors import NotInDoubt, RunFailed, RunResting, StoreUnavailable
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store, opened_world
from tests.engine.engines import assert_whole, counted, engine_on, in_another_process, killed_after, log_of

RUN = "a/run"
asked: list[Doubt] = []
keys: list[str] = []
answer: Any = None


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()
    keys.clear()


async def probe(doubt: Doubt) -> Any:
    asked.append(doubt)
    if isinstance(answer, Exception):
        raise answer
    return answer


@node(once=True, probe=probe)
async def charge(ctx: Context, amount: int) -> str:
    keys.append(ctx.idempotency_key)
    await ctx.checkpoint({"amount": amount})
    if len(keys) == 1:
        await asyncio.sleep(1_000)
    return f"charged {amount}"


@node
async def thank(receipt: str) -> str:
    return f"thanks: {receipt}"


@workflow
def sale(amount: int) -> str:
    return thank(charge(amount))


async def lose(world: Any) -> None:
    """Start a sale and kill its engine while it charges."""

    async def begin(engine: Engine) -> None:
        await engine.start(sale, run_id=RUN, amount=5)
        await asyncio.sleep(2)

    await killed_after(world, begin)


def after_a_loss(url: str, folder: Path, said: Any, look: Callable[[Engine], Any]) -> None:
    async def main() -> None:
        global answer
        answer = said
        async with opened_world(url, folder) as world:
            await lose(world)

            async def follow(engine: Engine) -> None:
                async with asyncio.timeout(500):
                    await look(engine)
                await assert_whole(engine, await engine.get(RUN))

            await in_another_process(world, follow)

    run_virtual(main())


@pytest.mark.parametrize(
    ("said", "result", "bodies"),
    [
        (("done", "found it"), "thanks: found it", 1),
        ("retry", "thanks: charged 5", 2),
    ],
)
def test_a_probe_decides_and_the_run_goes_on(sqlite_url: str, tmp_path: Path, said: Any, result: str, bodies: int):
    async def look(engine: Engine) -> None:
        run = await engine.get(RUN)
        assert await run.result() == result
        assert len(keys) == bodies
        log = await counted(run)
        assert log[e.NodeInDoubt] == log[e.NodeResolved] == 1
        assert log[e.RunSuspended] == 0
        (resolved,) = (entry.event for entry in await log_of(run) if isinstance(entry.event, e.NodeResolved))
        assert resolved.by == "probe"

    after_a_loss(sqlite_url, tmp_path, said, look)

    (doubt,) = asked
    assert (doubt.run_id, doubt.node_id, doubt.attempt) == (RUN, "charge", 1)
    assert doubt.idempotency_key == keys[0]
    assert doubt.restored == {"amount": 5}


def test_a_probe_may_fail_the_node(sqlite_url: str, tmp_path: Path):
    async def look(engine: Engine) -> None:
        with pytest.raises(RunFailed, match="charge"):
            await (await engine.get(RUN)).result()

    after_a_loss(sqlite_url, tmp_path, "fail", look)


@pytest.mark.parametrize(
    "said",
    [None, "perhaps", ("retry", 1, 2), ConnectionError("no bank"), ("done", object())],
    ids=lambda said: str(said)[:9],
)
def test_without_an_answer_a_person_decides(sqlite_url: str, tmp_path: Path, said: Any):
    async def look(engine: Engine) -> None:
        run = await engine.get(RUN)
        with pytest.raises(RunResting, match=r"in doubt: charge.*perdure resolve a/run"):
            await run.result()
        await run.resolve("charge", "done", output="by hand")
        assert await run.result() == "thanks: by hand"
        assert len(keys) == 1

    after_a_loss(sqlite_url, tmp_path, said, look)
    assert len(asked) == 1


def test_a_probe_that_takes_too_long_has_no_answer_and_holds_up_no_other_run(sqlite_url: str, tmp_path: Path):
    async def main() -> None:
        global answer
        never = asyncio.Event()

        async def hang(doubt: Doubt) -> None:
            await never.wait()

        @node(once=True, probe=hang)
        async def stuck(x: int) -> int:
            await asyncio.sleep(1_000)
            return x

        @workflow
        def doubtful(x: int) -> int:
            return stuck(x)

        async with opened_world(sqlite_url, tmp_path) as world:

            async def begin(engine: Engine) -> None:
                await engine.start(doubtful, run_id="doubtful", x=1)
                await engine.start(sale, run_id="other", amount=1)
                await asyncio.sleep(2)

            await killed_after(world, begin)
            answer = "retry"

            async def follow(engine: Engine) -> None:
                began = asyncio.get_running_loop().time()
                assert await (await engine.get("other")).result() == "thanks: charged 1"
                assert asyncio.get_running_loop().time() - began < 10
                run = await engine.get("doubtful")
                assert (await run.wait()).status is RunStatus.SUSPENDED
                waited = asyncio.get_running_loop().time() - began
                assert probing.PROBE_SECONDS <= waited < probing.PROBE_SECONDS + 10
                await assert_whole(engine, run)

            await in_another_process(world, follow)

    run_virtual(main())


def test_a_body_that_was_stopped_with_its_engine_is_probed_by_the_next_one(sqlite_url: str):
    async def main() -> None:
        global answer
        answer = ("done", "went through")
        async with opened_store(sqlite_url) as store:
            async with engine_on(store) as engine:
                await engine.start(sale, run_id=RUN, amount=5)
                await asyncio.sleep(2)
                await engine.stop(grace_seconds=1)
            assert asked == []
            async with engine_on(store) as engine:
                run = await engine.get(RUN)
                async with asyncio.timeout(100):
                    while (await run.status()) is not RunStatus.COMPLETED:
                        await asyncio.sleep(1)
                assert await run.result() == "thanks: went through"
                assert len(keys) == len(asked) == 1
                await assert_whole(engine, run)

    run_virtual(main())


def test_a_run_is_left_to_its_probes_in_the_transition_that_lets_go_of_it(sqlite_url: str):
    """Whatever becomes of the engine after that, somebody will ask."""

    class Unheard(StoreProxy):
        async def passing(self, name: str, call: Callable[[], Any], *args: Any) -> Any:
            if name == "add_command":
                raise StoreUnavailable("nothing more can be said")
            return await call()

    async def main() -> None:
        global answer
        answer = ("done", "went through")
        async with opened_store(sqlite_url) as store:
            async with engine_on(Unheard(store).as_store) as engine:
                await engine.start(sale, run_id=RUN, amount=5)
                await asyncio.sleep(2)
                await engine.stop(grace_seconds=1)
            async with engine_on(store) as engine:
                run = await engine.get(RUN)
                async with asyncio.timeout(100):
                    assert await run.result() == "thanks: went through"
                assert len(keys) == len(asked) == 1
                assert (await counted(run))[e.RunSuspended] == 0
                await assert_whole(engine, run)

    run_virtual(main())


class AfterReading(StoreProxy):
    """Has something done when a run has been read."""

    act: Callable[[], Awaitable[None]] | None = None

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        answer = await call()
        if name == "load_run" and (act := self.act) is not None:
            self.act = None
            await act()
        return answer


async def test_what_a_run_is_told_when_its_probes_have_answered_is_heard(store_url: str):
    begun = asyncio.Event()
    after: AfterReading | None = None

    async def look(doubt: Doubt) -> Any:
        assert after is not None
        after.act = tell
        return "done", doubt.attempt

    async def tell() -> None:
        await run.signal("b", 2)
        await asyncio.sleep(0.2)  # whoever looks after what was asked for finds that the run is being seen to

    @node(once=True, probe=look)
    async def once() -> int:
        begun.set()
        await asyncio.sleep(1_000)
        return 0

    @node
    async def told(ctx: Context, attempt: int) -> list[int]:
        return [attempt, await ctx.wait_for("b", schema=int)]

    @workflow
    def told_after_a_doubt() -> list[int]:
        return told(once())

    async with Engine(store_url) as engine:
        await engine.start(told_after_a_doubt, run_id=RUN)
        await begun.wait()
        await engine.stop(grace_seconds=0)

    store = await open_store(store_url)
    after = AfterReading(store)
    rarely = EngineSettings(poll_seconds=3_600, recovery_seconds=3_600, hibernate_after=3_600)
    async with Engine(after.as_store, settings=rarely) as engine:
        run = await engine.get(RUN)
        async with asyncio.timeout(7):  # after ten seconds everybody is looked at in any case
            while await run.status() is not RunStatus.COMPLETED:
                await asyncio.sleep(0.01)
        assert await run.result() == [1, 2]
    await store.close()


@dataclass
class Progress:
    """A model that no handle is annotated with."""

    cents: int


async def test_a_probe_is_given_the_checkpoint_as_the_body_would_be(sqlite_url: str):
    restored: list[Any] = []

    async def look(doubt: Doubt) -> Any:
        restored.append(doubt.restored)
        return ("done", 1)

    begun = asyncio.Event()

    @node(once=True, probe=look)
    async def saving(ctx: Context) -> int:
        await ctx.checkpoint(Progress(5))
        begun.set()
        await asyncio.sleep(1_000)
        return 0

    @workflow
    def saved() -> int:
        return saving()

    async with Engine(sqlite_url) as engine:
        await engine.start(saved, run_id=RUN)
        await begun.wait()
        await engine.stop(grace_seconds=0)
    async with Engine(sqlite_url) as engine, asyncio.timeout(20):
        assert await (await engine.get(RUN)).result() == 1
    assert restored == [Progress(5)]


async def test_a_plain_function_is_asked_off_the_loop(sqlite_url: str):
    threads: list[threading.Thread] = []

    def plain(doubt: Doubt) -> str:
        threads.append(threading.current_thread())
        return "retry"

    tries = 0

    @node(once=True, probe=plain)
    async def once(x: int) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            await asyncio.sleep(1_000)
        return x

    @workflow
    def plainly(x: int) -> int:
        return once(x)

    async with Engine(sqlite_url) as engine:
        await engine.start(plainly, run_id=RUN, x=4)
        while not tries:
            await asyncio.sleep(0.01)
        await engine.stop(grace_seconds=0)
    async with Engine(sqlite_url) as engine:
        run = await engine.get(RUN)
        await engine.adopt(RUN)
        async with asyncio.timeout(20):
            while (await run.status()) is not RunStatus.COMPLETED:
                await asyncio.sleep(0.02)
        assert await run.result() == 4
    assert threads
    assert threads[0] is not threading.main_thread()


class Loads(StoreProxy):
    """Counts how often a run is read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.count = 0

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        self.count += name == "load_run" and args[0] == RUN
        return await call()


async def test_what_a_probe_says_while_the_engine_stops_is_left_to_the_next_one(sqlite_url: str):
    asked, says = asyncio.Event(), asyncio.Event()

    async def slow(doubt: Doubt) -> Any:
        asked.set()
        await says.wait()
        return ("done", 7)

    begun = asyncio.Event()

    @node(once=True, probe=slow)
    async def once(x: int) -> int:
        begun.set()
        await asyncio.sleep(1_000)
        return x

    @node
    async def going_on(x: int) -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1_000)
        await says.wait()
        return x

    @workflow
    def doubtful(x: int) -> int:
        return once(x)

    @workflow
    def beside(x: int) -> int:
        return going_on(x)

    async with Engine(sqlite_url) as engine:
        await engine.start(doubtful, run_id=RUN, x=4)
        await begun.wait()
        await engine.stop(grace_seconds=0)
    inner = await open_store(sqlite_url)
    loads = Loads(inner)
    async with Engine(loads.as_store) as engine, asyncio.timeout(20):
        await engine.start(beside, x=1)
        await asked.wait()
        stopping = asyncio.create_task(engine.stop(grace_seconds=0.3))
        await asyncio.sleep(0)
        before = loads.count
        says.set()
        await stopping
    await inner.close()
    assert loads.count == before > 0
    async with Engine(sqlite_url) as engine, asyncio.timeout(20):
        assert await (await engine.get(RUN)).result() == 7


# A person's word


def test_a_word_about_nothing_in_doubt_is_refused(sqlite_url: str, tmp_path: Path):
    async def look(engine: Engine) -> None:
        run = await engine.get(RUN)
        await run.wait()
        with pytest.raises(NotInDoubt, match=r"idle|nothing has happened"):
            await run.resolve("thank", "done")
        with pytest.raises(NotInDoubt, match=r"chagre.*In doubt: charge"):
            await run.resolve("chagre", "done")
        await run.resolve("charge", "done", output="first")
        with pytest.raises(NotInDoubt, match=r"resolved as 'done' before|it is completed"):
            await run.resolve("charge", "retry")
        assert await run.result() == "thanks: first"
        with pytest.raises(NotInDoubt, match="it is completed"):
            await run.resolve("charge", "retry")

    after_a_loss(sqlite_url, tmp_path, None, look)
    assert len(keys) == 1


def test_of_two_who_speak_at_once_one_is_heard_and_the_other_told(sqlite_url: str, tmp_path: Path):
    async def look(engine: Engine) -> None:
        run = await engine.get(RUN)
        await run.wait()
        said = await asyncio.gather(
            *(run.resolve("charge", "done", output=word) for word in ("one", "two", "three")), return_exceptions=True
        )
        assert [type(problem) for problem in said if problem is not None] == [NotInDoubt, NotInDoubt]
        assert await run.result() in ("thanks: one", "thanks: two", "thanks: three")

    after_a_loss(sqlite_url, tmp_path, None, look)


@pytest.mark.slow
def test_a_doubt_may_be_given_up_in_quarantine(sqlite_url: str):
    """The run was lost so often that it is quarantined; somebody says that the node has failed."""

    async def main() -> None:
        global answer
        answer = None
        async with opened_store(sqlite_url) as store, engine_on(store) as engine:
            run = await engine.start(sale, run_id=RUN, amount=5)
            await asyncio.sleep(2)
            driver = engine.driver_of(run.run_id)
            assert driver is not None
            at = engine.clock.now_micros()
            driver.decider.attempt_lost(driver.projection.node("charge").node_id, reason="lost", at=at)
            driver.decider._quarantine(None, at)
            driver.happened()
            assert (await run.wait()).status is RunStatus.QUARANTINED
            (in_doubt,) = (await run.load()).nodes
            assert in_doubt.status is NodeStatus.IN_DOUBT
            await run.resolve("charge", "fail")
            with pytest.raises(RunFailed):
                await run.result()

    run_virtual(main())
