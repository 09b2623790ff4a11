"""Prefect: an orchestrator; a task's result goes to a file and its states to the server.

A flow that is started again skips the tasks whose results it finds, by a cache key made from their inputs.
W5 is left out: a flow run that waits for input is a suspended process or a paused one, not a waiting run.
"""
# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.workloads import Ledger, Measurement, Task, Texts, count, expect, megabytes, rate, stopwatch

ABREAST = 10
State = dict[str, Any]


def configure(task: Task) -> None:
    """Settings are read when the package is imported, so the functions below import it late."""
    os.environ |= {
        "PREFECT_API_URL": task.store_url,
        "PREFECT_HOME": str(task.workdir / "client"),
        "PREFECT_LOCAL_STORAGE_PATH": str(task.workdir / "results"),
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
    }


def step_of(body: Any) -> Any:
    from prefect import task as prefect_task
    from prefect.cache_policies import INPUTS

    @prefect_task(persist_result=True, cache_policy=INPUTS)
    def step(state: State, run: str) -> State:
        return body(state)

    return step


def chain_of(body: Any) -> Any:
    from prefect import flow

    step = step_of(body)

    @flow(persist_result=False)
    def chain(steps: int, run: str) -> int:
        state: State = {"n": 0}
        for _ in range(steps):
            state = step(state, run)
        return state["n"]

    return chain


def w1(task: Task) -> Measurement:
    configure(task)
    chain = chain_of(count)
    with stopwatch() as watch:
        expect(chain(task.steps, "chain"), task.steps)
    return rate(task.steps, watch)


def w2(task: Task) -> Measurement:
    configure(task)
    chain = chain_of(count)
    with stopwatch() as watch, ThreadPoolExecutor(ABREAST) as pool:
        for result in pool.map(lambda number: chain(task.steps, f"run-{number}"), range(task.runs)):
            expect(result, task.steps)
    return rate(task.runs * task.steps, watch)


def w3(task: Task) -> Measurement:
    configure(task)
    from prefect import flow

    step = step_of(count)

    @flow(persist_result=False)
    def fan(width: int) -> int:
        start = step({"n": 0}, "start")
        futures = step.map([start] * width, [f"work-{number}" for number in range(width)])
        return step({"n": sum(future.result()["n"] for future in futures)}, "join")["n"]

    with stopwatch() as watch:
        expect(fan(task.steps), 2 * task.steps + 1)
    return rate(task.steps + 2, watch)


def w4(task: Task) -> Measurement:
    configure(task)
    expect(chain_of(Ledger(task).step)(task.steps, "chain"), task.steps)
    return Measurement(value=0.0, notes="the server is kept, the flow is called again and skips what is done")


def w6(task: Task) -> Measurement:
    configure(task)
    chain = chain_of(Texts().after)
    with stopwatch() as watch:
        expect(chain(task.steps, "texts"), task.steps)
    return megabytes(task, watch)
