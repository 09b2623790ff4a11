"""Many clients race for the same runs, in two engines at once: one effect per key, and nobody is told a lie."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from perdure import Context, Engine, node, workflow
from perdure.engine.inspect import verify_run
from perdure.errors import RunIdTaken, RunNotFound
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.testing.ledger import effect
from perdure.testing.loop import VirtualLoop
from perdure.testing.process import Process
from perdure.testing.world import World
from tests.crash.backends import opened_world

CLIENTS = 64
RUN_IDS = [f"run-{number}" for number in range(8)]


@node
async def slow_double(ctx: Context, x: int) -> int:
    effect(ctx)
    await asyncio.sleep(1)
    return 2 * x


@workflow
def doubling(x: int) -> int:
    return slow_double(slow_double(x))


class Race:
    """What clients have asked for, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.started: dict[str, set[int]] = {run_id: set() for run_id in RUN_IDS}
        """Inputs with which the start of a run was acknowledged."""
        self.refused: dict[str, set[int]] = {run_id: set() for run_id in RUN_IDS}
        self.cancelled: set[str] = set()

    async def start(self, engine: Engine) -> None:
        run_id, x = self.draw.choice(RUN_IDS), self.draw.randint(1, 2)
        try:
            await engine.start(doubling, run_id=run_id, x=x)
        except RunIdTaken:
            self.refused[run_id].add(x)
        else:
            # Acknowledged is durable: whoever looks at the store at this moment sees it.
            assert await engine.store.load_run(RunId(run_id)) is not None
            self.started[run_id].add(x)

    async def cancel(self, engine: Engine) -> None:
        run_id = self.draw.choice(RUN_IDS[:4])
        try:
            run = await engine.get(run_id)
        except RunNotFound:
            return
        await run.cancel("enough", command_id=f"{run_id}/{self.draw.randint(1, 2)}")
        self.cancelled.add(run_id)

    async def client(self, engines: list[Engine]) -> None:
        await asyncio.sleep(self.draw.choice((0.0, 0.0, 0.5, 1.0)))
        for _ in range(3):
            act = self.draw.choice((self.start, self.start, self.cancel))
            await act(self.draw.choice(engines))


async def race(world: World, seed: int) -> Race:
    racing = Race(seed)
    running: list[Engine] = []
    async with asyncio.TaskGroup() as group:
        over = asyncio.Event()

        async def serve(engine: Engine) -> None:
            running.append(engine)
            await over.wait()

        for number in range(2):
            process = Process(f"engine {number}")
            group.create_task(process.run(world.engine(world.door(process)), serve))
        while len(running) < 2:
            await asyncio.sleep(0.1)
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(racing.client(running))
        for run_id in RUN_IDS:
            if racing.started[run_id]:
                await (await running[0].get(run_id)).wait()
                assert await verify_run(running[0], run_id) == []
        over.set()
    return racing


async def check(world: World, racing: Race) -> Counter[str]:
    counted: Counter[str] = Counter()
    for run_id in RUN_IDS:
        dump = await world.store.dump_run(RunId(run_id))
        assert (dump is None) == (not racing.started[run_id])
        if dump is None:
            continue
        x = int(bytes(dump.stored.run.inputs["x"]))
        assert racing.started[run_id] == {x}
        assert x not in racing.refused[run_id]
        counted["refused"] += len(racing.refused[run_id])
        types = Counter(type(entry.event) for entry in dump.events)
        assert types[e.RunCreated] == types[e.RunClaimed] == 1
        assert types[e.RunCancelling] <= 1
        attempts = [(done.node_id, done.attempt) for done in world.ledger.effects(RunId(run_id))]
        assert len(attempts) == len(set(attempts))
        assert all(attempt == 1 for _, attempt in attempts)
        status = dump.stored.run.status
        counted[status.value] += 1
        if status is RunStatus.COMPLETED:
            assert bytes(dump.stored.run.outputs["output"]) == str(4 * x).encode()
        else:
            assert status is RunStatus.CANCELLED
            assert run_id in racing.cancelled
    return counted


@pytest.mark.parametrize("seed", range(4))
def test_racing_clients_get_one_run_per_id(seed: int, store_url: str, tmp_path: Path):
    async def main() -> Counter[str]:
        async with opened_world(store_url, tmp_path) as world:
            return await check(world, await race(world, seed))

    # On PostgreSQL the server decides who comes first, and no seed can.
    loop = VirtualLoop(seed=seed if store_url.startswith("sqlite") else None)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        counted = runner.run(main())

    assert counted["completed"] + counted["cancelled"] >= 6
    assert counted["cancelled"] >= 1
    assert counted["refused"] >= 1
