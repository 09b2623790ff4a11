"""Many runs that wait for an answer, in one SQLite file: how fast they are created, what they cost while they wait, and how soon
an answer continues one.

    python -m bench.asking [runs]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import psutil

from bench.places import scratch
from perdure import Engine, ask, workflow

RUNS = 100_000
ABREAST = 100
ANSWERED = 20
MIB = 2**20


@workflow
def approval(number: int) -> str:
    return ask("Publish this?", show=number)


async def measure(url: str, runs: int) -> None:
    process = psutil.Process()
    async with Engine(url) as engine:
        await (await engine.start(approval, number=-1)).wait()
        gc.collect()
        idle = process.memory_info().rss

        async def start(first: int) -> None:
            for number in range(first, runs, ABREAST):
                await engine.start(approval, number=number, run_id=f"run-{number}")

        began, used = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for first in range(ABREAST):
                group.create_task(start(first))
        took, used = time.perf_counter() - began, time.process_time() - used
        print(f"{runs:,} runs created: {runs / took:,.0f}/s, and {runs / used:,.0f} per second of processor time")
        while any(engine.driver_of(run.run_id) for run in await engine.list(limit=ABREAST)):
            await asyncio.sleep(0.05)
        gc.collect()
        print(f"memory beyond an idle engine: {(process.memory_info().rss - idle) / MIB:.1f} MiB")
        for number in range(0, runs, max(1, runs // ANSWERED)):
            run = await engine.get(f"run-{number}")
            (question,) = await run.questions()
            asked = time.perf_counter()
            await run.answer(question.interaction_id, "yes")
            assert await run.result() == "yes"
            print(f"run-{number} ended {(time.perf_counter() - asked) * 1_000:.0f} ms after it was answered")


if __name__ == "__main__":
    with scratch("asking") as folder:
        asyncio.run(measure(f"sqlite:///{folder}/runs.db", int(sys.argv[1]) if sys.argv[1:] else RUNS))
