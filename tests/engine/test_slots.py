"""Places for bodies: none is lost, nobody loses its turn, and a long queue is no deep one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure import Context, collect, node, workflow
from perdure.dispatch.base import SlotKind
from perdure.engine.attempts.slots import Grant, Slots
from perdure.journal.states import RunStatus
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, engine_on

WAITING = 600


class Asker:
    """One who waits for slots, and answers as it was told to."""

    def __init__(self, slots: Slots, heard: list[Asker], answer: Grant = Grant.TAKEN) -> None:
        self.slots = slots
        self.heard = heard
        self.answer = answer

    def slot_granted(self, kind: SlotKind) -> Grant:
        self.heard.append(self)
        return self.answer


def test_a_slot_that_thousands_do_not_need_is_free_again():
    slots = Slots({"thread": 1})
    heard: list[Asker] = []
    first = Asker(slots, heard)
    assert slots.acquire("thread", first)
    others = [Asker(slots, heard, Grant.UNNEEDED) for _ in range(5_000)]
    for other in others:
        assert not slots.acquire("thread", other)

    slots.release("thread")

    assert heard == others
    assert slots.acquire("thread", first)


def test_who_may_not_start_yet_keeps_its_place():
    slots = Slots({"thread": 1})
    heard: list[Asker] = []
    slots.acquire("thread", Asker(slots, heard))
    waiting = [Asker(slots, heard, Grant.NOT_YET) for _ in range(3)]
    late = Asker(slots, heard)
    for one in waiting:
        slots.acquire("thread", one)
    slots.release("thread")
    for one in waiting:
        one.answer = Grant.TAKEN
    heard.clear()

    assert not slots.acquire("thread", late)  # the slot is free, but not for one who has just come
    for _ in waiting:
        slots.release("thread")

    assert heard == [*waiting, late]


def test_one_who_releases_while_it_is_asked_makes_no_circle():
    slots = Slots({"thread": 1})
    heard: list[Asker] = []

    class Restless(Asker):
        def slot_granted(self, kind: SlotKind) -> Grant:
            super().slot_granted(kind)
            self.slots.release(kind)
            return Grant.TAKEN

    slots.acquire("thread", Asker(slots, heard))
    for _ in range(5_000):
        slots.acquire("thread", Restless(slots, heard))
    slots.release("thread")

    assert len(heard) == 5_000
    assert slots.acquire("thread", Asker(slots, heard))


@node
async def brief(x: int) -> int:
    await asyncio.sleep(0.3)
    return x


@workflow
def briefly(x: int) -> int:
    return brief(x)


@pytest.mark.slow
def test_a_doubtful_lease_costs_no_slot_however_many_wait(sqlite_url: str):
    """The heartbeat does not get through for a while, with hundreds of runs waiting for four slots."""

    class Muted(StoreProxy):
        is_muted = False

        async def passing(self, name, call, *args):
            while name == "renew_engine" and self.is_muted:
                await asyncio.sleep(0.5)
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            muted = Muted(store)
            async with engine_on(muted.as_store, loop_bodies=4) as engine:
                runs = [await engine.start(briefly, x=number, durability="exit") for number in range(WAITING)]
                muted.is_muted = True
                await asyncio.sleep(22)  # nothing has been started for the last two seconds
                done = Counter([await run.status() for run in runs])
                assert done[RunStatus.RUNNING] > WAITING // 3, done
                muted.is_muted = False
                began = asyncio.get_running_loop().time()
                assert [await run.result() for run in runs] == list(range(WAITING))
                left = done[RunStatus.RUNNING]
                # All four slots were at work: with fewer it would have taken longer.
                assert asyncio.get_running_loop().time() - began < left / 4 * 0.3 + 15
                await assert_whole(engine, *runs[::100])

    run_virtual(main())


# Going on with the same slot


@node
async def instant(x: int) -> int:
    return x + 1


@workflow
def instants(x: int) -> int:
    for _ in range(5):
        x = instant(x)
    return x


def test_a_run_that_others_wait_behind_goes_on_in_one_transition_per_step(sqlite_url: str):
    """What ends and what follows from it is one transition, however many wait for a slot."""

    transitions: Counter[str] = Counter()

    class Counting(StoreProxy):
        async def passing(self, name, call, *args):
            if name == "commit":
                transitions.update(transition.run_id for transition in args[0])
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(Counting(store).as_store, loop_bodies=2) as engine:
            runs = [await engine.start(instants, x=0, run_id=f"run-{number}") for number in range(40)]
            assert [await run.result() for run in runs] == [5] * 40
            await assert_whole(engine, *runs)
        crowded = [transitions[f"run-{number}"] for number in range(2, 40)]
        # Its start, the slot it has waited for, and each of its five steps.
        assert max(crowded) <= 7, crowded

    run_virtual(main())


@node
async def lasting(run: str, step: int) -> int:
    begun.append((run, step))
    await asyncio.sleep(0.04)
    return step + 1


begun: list[tuple[str, int]] = []


@workflow
def lasts(run: str) -> int:
    step = lasting(run, 0)
    for _ in range(9):
        step = lasting(run, step)
    return step


def test_nobody_keeps_a_slot_for_longer_than_its_turn_while_others_wait(sqlite_url: str):
    begun.clear()

    async def main() -> None:
        async with engine_on(sqlite_url, loop_bodies=1) as engine:
            runs = [await engine.start(lasts, run=name) for name in ("a", "b")]
            assert [await run.result() for run in runs] == [10, 10]

    run_virtual(main())

    order = "".join(run for run, _ in begun)
    assert len(order) == 20
    longest = max(len(stretch) for stretch in order.replace("ab", "a b").replace("ba", "b a").split())
    assert 1 < longest <= 5, order  # bodies of 40 ms, and turns of 100 ms that begin when somebody waits


@node
async def long(run: str, step: int) -> int:
    begun.append((run, step))
    await asyncio.sleep(3_600)
    return step + 1


@workflow
def takes_long(run: str) -> int:
    step = long(run, 0)
    for _ in range(2):
        step = long(run, step)
    return step


def test_whoever_has_had_a_slot_for_long_leaves_it_to_those_who_wait(sqlite_url: str):
    begun.clear()

    async def main() -> None:
        async with engine_on(sqlite_url, loop_bodies=1) as engine:
            runs = [await engine.start(takes_long, run=name) for name in ("a", "b", "c")]
            assert [await run.result() for run in runs] == [3, 3, 3]

    run_virtual(main())

    assert "".join(run for run, _ in begun) == "abcabcabc"


running: list[float] = []
together: list[float] = []


@asynccontextmanager
async def noted() -> AsyncIterator[None]:
    """Note for how long a body runs beside another."""
    loop = asyncio.get_running_loop()
    running.append(loop.time())
    yield
    if len(running) > 1:
        together.append(loop.time() - max(running))
    running.pop()


@node
async def waits_a_little(ctx: Context, x: int) -> int:
    await ctx.sleep(2)
    async with noted():
        await asyncio.sleep(60)
    return x


@node
async def a_second(x: int) -> int:
    async with noted():
        await asyncio.sleep(1)
    return x + 1


@workflow
def waits_in_a_map(xs: list[int]) -> list[int]:
    return collect(waits_a_little.map(xs))


@workflow
def seconds(x: int) -> int:
    for _ in range(20):
        x = a_second(x)
    return x


def test_a_slot_that_is_owed_is_not_passed_on(sqlite_url: str):
    """One that has given its slot back while it waited takes it again at once: there is one too many until the next body ends."""
    together.clear()

    async def main() -> None:
        async with engine_on(sqlite_url, loop_bodies=1) as engine:
            mapped = await engine.start(waits_in_a_map, xs=[1])
            await asyncio.sleep(0.5)
            chain = await engine.start(seconds, x=0)
            assert [await mapped.result(), await chain.result()] == [[1], 20]

    run_virtual(main())

    assert 0 < sum(together) <= 1, together
