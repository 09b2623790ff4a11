"""DBOS: a library; each step's result is a row, written in its own transaction.

Plain functions where one thing happens after the other, `async def` where much waits: each is the faster of the two.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch

# On SQLite, writers wait for each other and more threads only cost.
THREADS = {"sqlite": 1, "postgres": 8}
# The default of one second would be what W5's wake-up measures on SQLite; PostgreSQL notifies.
POLLING_SECONDS = 0.01


def launch(task: Task) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": task.store_url.replace("postgresql://", "postgresql+psycopg://"),
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": POLLING_SECONDS,
    }
    DBOS(config=config)
    DBOS.launch()


@DBOS.step()
def step(state: dict[str, int]) -> dict[str, int]:
    return count(state)


@DBOS.workflow()
def chain(steps: int) -> dict[str, int]:
    state = {"n": 0}
    for _ in range(steps):
        state = step(state)
    return state


def w1(task: Task) -> Measurement:
    launch(task)
    with stopwatch() as watch:
        expect(chain(task.steps), {"n": task.steps})
    return rate(task.steps, watch)


def w2(task: Task) -> Measurement:
    launch(task)
    with stopwatch() as watch, ThreadPoolExecutor(THREADS[task.store]) as pool:
        for state in pool.map(chain, [task.steps] * task.runs):
            expect(state, {"n": task.steps})
    return rate(task.runs * task.steps, watch)


@DBOS.step()
async def async_step(state: dict[str, int]) -> dict[str, int]:
    return count(state)


@DBOS.workflow()
async def fan(width: int) -> dict[str, int]:
    start = await async_step({"n": 0})
    states = await asyncio.gather(*(async_step(start) for _ in range(width)))
    return await async_step({"n": sum(state["n"] for state in states)})


def w3(task: Task) -> Measurement:
    launch(task)
    with stopwatch() as watch:
        expect(asyncio.run(fan(task.steps)), {"n": 2 * task.steps + 1})
    return rate(task.steps + 2, watch)


def w4(task: Task) -> Measurement:
    ledger = Ledger(task)

    @DBOS.step()
    def marked_step(state: dict[str, int]) -> dict[str, int]:
        return ledger.step(state)

    @DBOS.workflow()
    def marked_chain(steps: int) -> dict[str, int]:
        state = {"n": 0}
        for _ in range(steps):
            state = marked_step(state)
        return state

    launch(task)  # which also picks up what a killed process left
    if task.resumed:
        result = DBOS.retrieve_workflow("chain").get_result()
    else:
        with SetWorkflowID("chain"):
            result = marked_chain(task.steps)
    expect(result, {"n": task.steps})
    return Measurement(value=0.0)


continued_at: dict[str, float] = {}


@DBOS.workflow()
async def wait_for_go() -> None:
    await DBOS.recv_async("go", timeout_seconds=3_600)
    continued_at[DBOS.workflow_id or ""] = time.perf_counter()


async def _w5(task: Task) -> Measurement:
    figures = Waiting(task=task)
    figures.idle()
    with stopwatch() as starting:
        handles = [await DBOS.start_workflow_async(wait_for_go) for _ in range(task.runs)]
    figures.waiting()
    for handle in handles[:WAKES]:
        sent = time.perf_counter()
        await DBOS.send_async(handle.workflow_id, "now", "go")
        await handle.get_result(polling_interval_sec=0.01)
        figures.woken(sent, continued_at[handle.workflow_id])
    return figures.measurement(starting)


def w5(task: Task) -> Measurement:
    launch(task)
    return asyncio.run(_w5(task))


def w6(task: Task) -> Measurement:
    texts = Texts()

    @DBOS.step()
    def text_step(state: dict[str, Any]) -> dict[str, Any]:
        return texts.after(state)

    @DBOS.workflow()
    def text_chain(steps: int) -> int:
        state: dict[str, Any] = {"n": 0}
        for _ in range(steps):
            state = text_step(state)
        return state["n"]

    launch(task)
    with stopwatch() as watch:
        expect(text_chain(task.steps), task.steps)
    return megabytes(task, watch)
