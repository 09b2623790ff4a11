"""Temporal: a server that keeps histories; workflows are replayed, activities run in a worker in this process.

The development server, because the real one is a cluster: read its figures as a development server's.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.workloads import WAKES, Ledger, Measurement, Task, Texts, Waiting, count, expect, megabytes, rate, stopwatch

QUEUE = "bench"
ABREAST = 100
ONE_MINUTE = timedelta(minutes=1)
# How soon a killed worker is noticed. The other limits are left as they come.
HEARTBEAT = timedelta(seconds=2)

State = dict[str, Any]
continued_at: dict[str, float] = {}


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, steps: int, local: bool) -> int:
        state: State = {"n": 0}
        for _ in range(steps):
            if local:
                state = await workflow.execute_local_activity("step", state, schedule_to_close_timeout=ONE_MINUTE)
            else:
                state = await workflow.execute_activity("step", state, start_to_close_timeout=HEARTBEAT)
        return state["n"]


@workflow.defn
class Fan:
    @workflow.run
    async def run(self, width: int) -> int:
        def step(state: State) -> Awaitable[State]:
            return workflow.execute_activity("step", state, start_to_close_timeout=ONE_MINUTE)

        start = await step({"n": 0})
        states = await asyncio.gather(*(step(start) for _ in range(width)))
        return (await step({"n": sum(state["n"] for state in states)}))["n"]


@workflow.defn
class Wait:
    def __init__(self) -> None:
        self._told = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._told)
        continued_at[workflow.info().workflow_id] = time.perf_counter()

    @workflow.signal
    def go(self) -> None:
        self._told = True


@asynccontextmanager
async def worker(task: Task, body: Callable[[State], State]) -> AsyncIterator[Client]:
    @activity.defn(name="step")
    async def step(state: State) -> State:
        return body(state)

    client = await Client.connect(task.store_url)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Chain, Fan, Wait],
        activities=[step],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield client


async def run_chain(task: Task, body: Callable[[State], State]) -> Any:
    async with worker(task, body) as client:
        with stopwatch() as watch:
            if task.resumed:
                result = await client.get_workflow_handle("chain").result()
            else:
                arguments = [task.steps, task.variant == "local activities"]
                result = await client.execute_workflow("Chain", args=arguments, id="chain", task_queue=QUEUE)
    expect(result, task.steps)
    return watch


async def _w1(task: Task) -> Measurement:
    return rate(task.steps, await run_chain(task, count))


async def _w2(task: Task) -> Measurement:
    room = asyncio.Semaphore(ABREAST)
    async with worker(task, count) as client:

        async def run(number: int) -> None:
            async with room:
                arguments = [task.steps, False]
                result = await client.execute_workflow("Chain", args=arguments, id=f"run-{number}", task_queue=QUEUE)
            expect(result, task.steps)

        with stopwatch() as watch:
            await asyncio.gather(*(run(number) for number in range(task.runs)))
    return rate(task.runs * task.steps, watch)


async def _w3(task: Task) -> Measurement:
    async with worker(task, count) as client:
        with stopwatch() as watch:
            result = await client.execute_workflow("Fan", task.steps, id="fan", task_queue=QUEUE)
    expect(result, 2 * task.steps + 1)
    return rate(task.steps + 2, watch)


async def _w4(task: Task) -> Measurement:
    await run_chain(task, Ledger(task).step)
    return Measurement(value=0.0, notes=f"only the worker is killed, start_to_close_timeout {HEARTBEAT.seconds} s")


async def _w5(task: Task) -> Measurement:
    figures = Waiting(task=task)
    room = asyncio.Semaphore(ABREAST)
    async with worker(task, count) as client:

        async def start(number: int) -> Any:
            async with room:
                return await client.start_workflow("Wait", id=f"run-{number}", task_queue=QUEUE)

        figures.idle()
        with stopwatch() as starting:
            handles = await asyncio.gather(*(start(number) for number in range(task.runs)))
        figures.waiting()
        for handle in handles[:WAKES]:
            sent = time.perf_counter()
            await handle.signal("go")
            await handle.result()
            figures.woken(sent, continued_at[handle.id])
    return figures.measurement(starting)


async def _w6(task: Task) -> Measurement:
    return megabytes(task, await run_chain(task, Texts().after))


def _on_a_loop(measure: Callable[[Task], Coroutine[Any, Any, Measurement]]) -> Callable[[Task], Measurement]:
    return lambda task: asyncio.run(measure(task))


w1, w2, w3, w4, w5, w6 = map(_on_a_loop, (_w1, _w2, _w3, _w4, _w5, _w6))
