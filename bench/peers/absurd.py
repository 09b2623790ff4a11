"""Absurd: a queue of tasks in PostgreSQL; each step of a task is a checkpoint row, written by a stored procedure.

One client holds one connection, so many tasks at once need many clients; they share one event loop here.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch

WORKERS = 8
POLL_SECONDS = 0.01
# Workers have connected when the watch starts, as an engine of ours has.
CONNECTED_SECONDS = 0.2
# A worker that was killed is noticed when its lease runs out. The default is two minutes. It takes whole seconds, and 0 for a
# lease that never runs out. Each checkpoint renews it, so that no step here comes near it.
LEASE_SECONDS = 1

Params = dict[str, Any]


class Finished:
    """Counts the tasks that ended in this process, and wakes who waits for the last."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.all = asyncio.Event()

    def one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.all.set()


@asynccontextmanager
async def workers(task: Task, handler: Any, number: int = 1) -> AsyncIterator[AsyncAbsurd]:
    """Yield a client for spawning while `number` workers serve the queue."""
    async with await psycopg.AsyncConnection.connect(task.store_url, autocommit=True) as connection:
        if not task.resumed:
            await connection.execute(BUNDLED_SCHEMA_SQL)
    clients = [AsyncAbsurd(task.store_url) for _ in range(number + 1)]
    for client in clients:
        client.register_task("task")(handler)
    await clients[0].create_queue()
    serving = [
        asyncio.create_task(client.start_worker(claim_timeout=LEASE_SECONDS, poll_interval=POLL_SECONDS))
        for client in clients[1:]
    ]
    await asyncio.sleep(CONNECTED_SECONDS)
    yield clients[0]
    for client in clients:
        client.stop_worker()
    await asyncio.gather(*serving)


def chain_of(body: Callable[[Params], Params], finished: Finished) -> Any:
    async def chain(params: Params, context: Any) -> Any:
        state: Params = {"n": 0}
        for _ in range(params["steps"]):

            async def step(state: Params = state) -> Params:
                return body(state)

            state = await context.step("step", step)
        expect(state["n"], params["steps"])
        finished.one()
        return state["n"]

    return chain


async def run_chain(task: Task, body: Callable[[Params], Params]) -> Any:
    finished = Finished(1)
    async with workers(task, chain_of(body, finished)) as client:
        with stopwatch() as watch:
            await client.spawn("task", {"steps": task.steps}, idempotency_key="chain")
            await finished.all.wait()
    return watch


async def _w1(task: Task) -> Measurement:
    return rate(task.steps, await run_chain(task, count))


async def _w2(task: Task) -> Measurement:
    finished = Finished(task.runs)
    async with workers(task, chain_of(count, finished), WORKERS) as client:
        with stopwatch() as watch:
            for _ in range(task.runs):
                await client.spawn("task", {"steps": task.steps})
            await finished.all.wait()
    return rate(task.runs * task.steps, watch)


async def _w3(task: Task) -> Measurement:
    finished = Finished(1)

    async def fan(params: Params, context: Any) -> Any:
        async def step(state: Params) -> Params:
            return count(state)

        start = await context.step("start", lambda: step({"n": 0}))
        states = await asyncio.gather(*(context.step("work", lambda: step(start)) for _ in range(task.steps)))
        total = sum(state["n"] for state in states)
        joined = await context.step("join", lambda: step({"n": total}))
        expect(joined, {"n": 2 * task.steps + 1})
        finished.one()
        return joined

    async with workers(task, fan) as client:
        with stopwatch() as watch:
            await client.spawn("task", {})
            await finished.all.wait()
    return rate(task.steps + 2, watch, notes="parallel steps of one task share its connection")


async def _w4(task: Task) -> Measurement:
    await run_chain(task, Ledger(task).step)
    return Measurement(
        value=0.0, notes=f"lease set to {LEASE_SECONDS} s, the least that it takes, which is most of the figure"
    )


async def _w5(task: Task) -> Measurement:
    figures = Waiting(task=task)
    waiting, woken = Finished(task.runs), asyncio.Event()
    continued_at: list[float] = []

    async def wait(params: Params, context: Any) -> Any:
        if params["event"] not in seen:
            seen.add(params["event"])
            waiting.one()
        await context.await_event(params["event"])
        continued_at.append(time.perf_counter())
        woken.set()

    seen: set[str] = set()
    async with workers(task, wait, WORKERS) as client:
        figures.idle()
        with stopwatch() as starting:
            for number in range(task.runs):
                await client.spawn("task", {"event": f"go-{number}"})
            await waiting.all.wait()
        figures.waiting()
        for number in range(min(WAKES, task.runs)):
            woken.clear()
            sent = time.perf_counter()
            await client.emit_event(f"go-{number}", True)
            await woken.wait()
            figures.woken(sent, continued_at[-1])
    return figures.measurement(starting)


async def _w6(task: Task) -> Measurement:
    return megabytes(task, await run_chain(task, Texts().after))


def _on_a_loop(measure: Callable[[Task], Coroutine[Any, Any, Measurement]]) -> Callable[[Task], Measurement]:
    return lambda task: asyncio.run(measure(task))


w1, w2, w3, w4, w5, w6 = map(_on_a_loop, (_w1, _w2, _w3, _w4, _w5, _w6))
