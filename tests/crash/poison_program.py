"""A program with a run that kills whoever drives it, and others that do not: `python -m tests.crash.poison_program STORE HOW`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

from perdure import Context, Engine, EngineSettings, node, workflow
from perdure.testing.ledger import effect

POISONED = "poisoned"
HEALTHY = [f"healthy-{number}" for number in range(20)]


@node
async def innocent(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(0.05)
    return x + 1


@node
async def deadly(ctx: Context, how: str) -> str:
    effect(ctx)
    match how:
        case "exit":
            os._exit(23)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
    return "survived"


@workflow
def healthy(x: int) -> int:
    return innocent(innocent(innocent(x)))


@workflow
def poisoned(x: int, how: str) -> str:
    innocent(x)
    return deadly.named("deadly")(how)


async def main(store: str, how: str) -> None:
    settings = EngineSettings(recovery_seconds=0.2, poll_seconds=0.2, lease_seconds=5.0, heartbeat_seconds=0.5)
    async with Engine(store, workflows=[healthy, poisoned], settings=settings) as engine:
        runs = [await engine.start(healthy, run_id=run_id, x=1) for run_id in HEALTHY]
        runs.append(await engine.start(poisoned, run_id=POISONED, x=1, how=how))
        for run in runs:
            await run.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
