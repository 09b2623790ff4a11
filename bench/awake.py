"""`python -m bench.awake [REPETITIONS]`: what staying awake for quick commits brings and costs (`docs/decisions/0009`).

A chain on PostgreSQL, two at once in engines of their own, and one whose steps take 10 ms: with a loop that sleeps while a
commit is on its way, with one that stays awake, and with one that never gives way. They take turns, each in a fresh process and
an empty database.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from contextlib import nullcontext
from multiprocessing.synchronize import Barrier
from typing import Any
from unittest.mock import patch

from bench import servers
from bench.perdure_subject import State, chain_of, step
from bench.workloads import count
from perdure import Engine, node
from perdure.engine.recording import vigil

Found = list[tuple[float, float]]
"""Of each repetition the steps per second of all engines together, and how many processors they kept busy."""
REPETITIONS = 9
MEETING_SECONDS = 60
ASLEEP = "asleep"
WAYS: dict[str, Any] = {
    ASLEEP: patch.object(vigil, "LONGEST_SECONDS", 0.0),
    "awake": nullcontext(),
    "awake, never giving way": patch.object(os, "sched_yield", lambda: None),
}


@node
async def step_of_10_ms(state: State) -> State:
    await asyncio.sleep(0.01)
    return count(state)


CASES = {"one engine": (1, step, 1_000), "two engines": (2, step, 1_000), "steps of 10 ms": (1, step_of_10_ms, 200)}


def main(repetitions: int) -> None:
    with servers.postgres() as postgres:
        for case in CASES:
            found: dict[str, Found] = {way: [] for way in WAYS}
            for _ in range(repetitions):
                for way in WAYS:
                    with postgres.database("awake") as url:
                        found[way].append(measure(case, way, url))
            for way, measured in found.items():
                print(f"{case}, {way}: {describe(measured, found[ASLEEP])}", flush=True)


def describe(measured: Found, asleep: Found) -> str:
    rates, loads = zip(*measured, strict=True)
    rate, ratio = statistics.median(rates), statistics.median(rates) / statistics.median(rate for rate, _ in asleep)
    spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
    return f"{rate:,.0f} steps/s ({spread}), {ratio:.2f}x; {statistics.median(loads):.3f} processors"


def measure(case: str, way: str, url: str) -> tuple[float, float]:
    engines, _, steps = CASES[case]
    spawning = multiprocessing.get_context("spawn")
    start, answers = spawning.Barrier(engines), spawning.SimpleQueue()
    processes = [spawning.Process(target=run, args=(case, way, url, n, start, answers)) for n in range(engines)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("An engine has failed; what it said is above.")
    took, used = zip(*(answers.get() for _ in processes), strict=True)
    return engines * steps / max(took), sum(used) / max(took)


def run(case: str, way: str, url: str, number: int, start: Barrier, answers: Any) -> None:
    with WAYS[way]:
        answers.put(asyncio.run(chain(case, url, number, start)))


async def chain(case: str, url: str, number: int, start: Barrier) -> tuple[float, float]:
    """Return the seconds that the chain took, and those of a processor."""
    _, body, steps = CASES[case]
    async with Engine(url) as engine:
        flow = chain_of(body, steps)
        await engine.save(flow)
        start.wait(MEETING_SECONDS)
        began, used = time.perf_counter(), time.process_time()
        await (await engine.start(flow, state={"n": 0}, run_id=f"chain-{number}")).result()
        return time.perf_counter() - began, time.process_time() - used


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else REPETITIONS)
