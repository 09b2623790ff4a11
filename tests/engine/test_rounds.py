"""Several bodies that end in one round of the loop: what they bring is written together with what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from perdure import Engine, node, workflow
from perdure.engine.inspect import verify_run
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.opening import open_store
from perdure.store.transitions import Transition
from perdure.testing.proxy import StoreProxy

is_open: asyncio.Event
begun: list[int]


@pytest.fixture(autouse=True)
def closed_gate():
    global is_open, begun
    is_open, begun = asyncio.Event(), []


@node
async def gate(x: int) -> int:
    await is_open.wait()
    return x


@node
async def plain(x: int) -> int:
    return x


@node(once=True)
async def once(x: int) -> int:
    begun.append(x)
    return x


@workflow
def one(x: int) -> int:
    return gate(x)


@workflow
def two(x: int) -> dict[str, int]:
    return {"left": gate.named("left")(x), "right": gate.named("right")(x)}


@workflow
def paying(x: int) -> int:
    return once.named("pay")(plain(x))


class Checked(StoreProxy):
    """A store in which every commit is checked as soon as it is made."""

    problems: list[str]

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        outcome = await call()
        if name == "commit":
            transitions: Sequence[Transition] = args[0]
            for transition in transitions:
                found = await verify_run(self.inner, transition.run_id)
                self.problems += [f"{violation.invariant}: {violation.problem}" for violation in found]
        return outcome


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_run_whose_last_bodies_end_together_ends_with_them(store_url: str, is_stopping: bool):
    inner = await open_store(store_url)
    store = Checked(inner)
    store.problems = []
    try:
        async with Engine(store.as_store) as engine:
            runs = [await engine.start(flow, x=1, run_id=flow.name) for flow in (two, one)]
            await asyncio.sleep(0.05)
            if is_stopping:
                asyncio.get_running_loop().call_later(0.1, is_open.set)
                await engine.stop(grace_seconds=20)
            else:
                is_open.set()
                assert [await run.result() for run in runs] == [{"left": 1, "right": 1}, 1]
        assert store.problems == []
        for run in runs:
            stored = await inner.load_run(run.run_id)
            assert stored is not None
            assert (stored.run.status, stored.owner) == (RunStatus.COMPLETED, None)
    finally:
        await inner.close()


class Slow(StoreProxy):
    """A store that takes its time with the start of the node `pay`, and says when it has come to that."""

    asked: asyncio.Event

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit":
            entries = [entry for transition in args[0] for entry in transition.events]
            if any(isinstance(entry.event, e.NodeStarted) and entry.event.node_id == "pay" for entry in entries):
                self.asked.set()
                await asyncio.sleep(0.3)
        return await call()


async def test_a_body_that_never_began_is_not_in_doubt(sqlite_url: str):
    inner = await open_store(sqlite_url)
    store = Slow(inner)
    store.asked = asyncio.Event()
    try:
        async with Engine(store.as_store) as engine:
            run = await engine.start(paying, x=1)
            await store.asked.wait()
            await engine.stop(grace_seconds=0)
        stored = await inner.load_run(run.run_id)
        assert stored is not None
        assert begun == []
        assert stored.run.status is RunStatus.RUNNING
        assert NodeStatus.IN_DOUBT not in {node.status for node in stored.nodes}

        async with Engine(sqlite_url) as engine:
            assert await (await engine.get(run.run_id)).result() == 1
        assert begun == [1]
    finally:
        await inner.close()
