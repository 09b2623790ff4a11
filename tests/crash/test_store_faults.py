"""The n-th operation on the store fails, for every n, in every way: once, or until the database comes back.

Whoever asked gets a typed error or does not notice. Nothing is half-written, and the same engine goes on by itself.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, product
from pathlib import Path

import msgspec
import pytest

from perdure.engine.engine import Engine
from perdure.errors import StoreError, StoreFull, StoreLocked, StoreUnavailable
from perdure.ids import RunId, new_id
from perdure.journal.states import RunState
from perdure.testing.faults import FailingStore, Fault
from perdure.testing.graphs import Reference, reference_graphs
from perdure.testing.loop import run_virtual
from perdure.testing.process import Process
from perdure.testing.world import PATIENCE_SECONDS, Outcome, World, drive
from perdure.testing.world import SETTINGS as ENGINE_SETTINGS
from tests.crash.backends import opened_world

REFERENCES = {reference.name: reference for reference in reference_graphs()}
WAYS = (
    {"error": StoreUnavailable},
    {"error": StoreLocked},
    {"error": StoreFull},
    {"error": StoreUnavailable, "is_executed": True},
)
OUTAGES = (0.0, 3.0, 12.0, 90.0)
"""Once; shorter than the engine's patience; longer than that, but shorter than its lease; longer than both."""
SETTINGS = msgspec.structs.replace(ENGINE_SETTINGS, patience_seconds=5.0)
NEVER = Fault(at=0)


def every_fault(operations: int) -> list[Fault]:
    return [
        Fault(at=at, seconds=seconds, **way) for at, way, seconds in product(range(1, operations + 1), WAYS, OUTAGES)
    ]


def one_fault_each(operations: int) -> list[Fault]:
    """Every operation once, ways and lengths taking turns."""
    turns = cycle(product(WAYS, OUTAGES))
    return [
        Fault(at=at, seconds=seconds, **way)
        for at, (way, seconds) in zip(range(1, operations + 1), turns, strict=False)
    ]


async def tell_with_fault(world: World, reference: Reference, fault: Fault) -> tuple[Outcome, list[str], FailingStore]:
    """Run a workflow in one engine; whoever gets an error waits a moment and asks again."""
    run_id = RunId(f"{reference.name}-{new_id()}")

    async def insist(engine: Engine) -> RunState:
        while True:
            try:
                return await drive(engine, reference, run_id)
            except StoreError:
                await asyncio.sleep(1)

    process = Process("faulty")
    door = world.door(process, fault=fault)
    failing = door.inner
    assert isinstance(failing, FailingStore)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await process.run(world.engine(door), insist)
                break
            except StoreError:  # the engine could not even begin
                assert "register_engine" in failing.operations[-failing.failures :]
                await asyncio.sleep(1)
    return *await world.judge(reference, run_id), failing


def fail_everywhere(url: str, folder: Path, reference: Reference, *, thorough: bool) -> tuple[int, int]:
    """Return how many operations there are, and how many failures there were."""

    async def main() -> tuple[int, int]:
        failures = reached = 0
        async with opened_world(url, folder, settings=SETTINGS) as world:
            expected, problems, undisturbed = await tell_with_fault(world, reference, NEVER)
            assert problems == []
            _, _, again = await tell_with_fault(world, reference, NEVER)
            operations = min(len(undisturbed.operations), len(again.operations))
            faults = every_fault(operations) if thorough else one_fault_each(operations)
            for fault in faults:
                outcome, problems, failing = await tell_with_fault(world, reference, fault)
                # How often an engine polls varies a little, more so on a busy machine: the last operations may not come.
                is_reached = len(failing.operations) >= fault.at
                where = (
                    f"{reference.name}, {fault}: {failing.operations[fault.at - 1] if is_reached else 'not reached'}"
                )
                assert problems == [], where
                assert outcome == expected, where
                assert failing.failures or not is_reached, where
                failures += failing.failures
                reached += is_reached
            assert reached >= len(faults) - max(3, len(faults) // 5)
            return operations if reached == len(faults) else reached, failures

    return run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_any_operation_may_fail(name: str, store_url: str, tmp_path: Path):
    operations, failures = fail_everywhere(store_url, tmp_path, REFERENCES[name], thorough=False)

    assert failures >= operations >= 8


@pytest.mark.slow
def test_any_operation_may_fail_in_any_way(sqlite_url: str, tmp_path: Path):
    operations, failures = fail_everywhere(sqlite_url, tmp_path, REFERENCES["diamond"], thorough=True)

    assert failures >= 16 * operations


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", REFERENCES)
def test_any_operation_may_fail_in_any_way_whatever_the_workflow(name: str, store_url: str, tmp_path: Path):
    fail_everywhere(store_url, tmp_path, REFERENCES[name], thorough=True)
