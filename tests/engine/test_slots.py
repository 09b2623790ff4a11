"""Places for bodies: none is lost, nobody loses its turn, and a long queue is no deep one."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import node, workflow
from perdure.dispatch.base import SlotKind
from perdure.engine.slots import Grant, Slots
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
