"""Class nodes: their parts in order, and `finalize` exactly once in every outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.dispatch.failure import failure_of
from perdure.dispatch.local import LocalDispatch
from tests.dispatch import bodies
from tests.dispatch.desk import Desk, decoded, executed_by, run, task_for

PARTS = ["initialize", "pre_process", "run", "finalize"]

CLASSES = {
    "loop": bodies.RecordingAsync,
    "thread": bodies.Recording,
    "process": executed_by(bodies.Recording, "process"),
    "async in a process": executed_by(bodies.RecordingAsync, "process"),
}


@pytest.fixture(params=CLASSES)
def recording(request: pytest.FixtureRequest) -> Any:
    return CLASSES[request.param]


async def test_a_class_lives_once_from_beginning_to_end(dispatch: LocalDispatch, desk: Desk, recording: Any) -> None:
    result = await dispatch.execute(task_for(recording, desk, word="ok"))

    assert decoded(result) == ["init", "initialize", "pre_process", "run", "ok"]
    assert desk.messages == PARTS


@pytest.mark.parametrize("part", PARTS)
async def test_finalize_runs_once_wherever_it_fails(
    dispatch: LocalDispatch, desk: Desk, recording: Any, part: str
) -> None:
    task = task_for(recording, desk, properties={"fail_in": part}, word="ok")

    with pytest.raises(Exception, match=f"failed in {part}"):
        await dispatch.execute(task)

    assert desk.messages == list(dict.fromkeys([*PARTS[: PARTS.index(part) + 1], "finalize"]))


async def test_an_error_in_finalize_does_not_hide_the_first(
    dispatch: LocalDispatch, desk: Desk, recording: Any
) -> None:
    task = task_for(recording, desk, properties={"fail_in": "run,finalize"}, word="ok")

    with pytest.raises(Exception, match="failed in run") as caught:
        await dispatch.execute(task)

    assert "finalize() then raised RuntimeError: failed in finalize" in failure_of(caught.value).traceback
    assert desk.messages == PARTS


@pytest.mark.parametrize("part", PARTS[:3])
@pytest.mark.parametrize("place", ["loop", "process", "async in a process"])
async def test_finalize_runs_once_after_cancellation(
    dispatch: LocalDispatch, desk: Desk, place: str, part: str
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(
            dispatch.execute(task_for(CLASSES[place], desk, properties={"wait_in": part}, word="ok"))
        )
        await desk.heard(part)
        call.cancel()

    assert call.cancelled()
    assert desk.messages == [*PARTS[: PARTS.index(part) + 1], "finalize"]


async def test_an_instance_that_was_not_made_is_not_finalized(dispatch: LocalDispatch) -> None:
    with pytest.raises(RuntimeError, match="not made"):
        await run(dispatch, bodies.Unmade)


async def test_parts_of_either_colour_share_one_count_of_steps(dispatch: LocalDispatch, desk: Desk) -> None:
    bodies.calls.clear()

    assert await run(dispatch, bodies.Mixed, desk) == [True, 2, 4]
    assert sorted(desk.steps) == [("doubled", 0), ("doubled", 1)]
    assert bodies.calls[-1] == "finalized off the loop: False"


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_async_parts_of_a_blocking_class_share_a_loop_of_their_own(
    dispatch: LocalDispatch, desk: Desk, executor: Any
) -> None:
    assert await run(dispatch, executed_by(bodies.MixedSync, executor), desk, number=2) == [6, 3]

    assert desk.logged == [("info", "finalized", {"result": 6})]


async def test_a_class_may_process_instead_of_run(dispatch: LocalDispatch) -> None:
    assert await run(dispatch, bodies.PerItem, item=4, properties={"factor": 3}) == 12


async def test_a_blocking_part_of_an_async_class_is_waited_for_when_cancelled(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    gate = bodies.BlocksInPart.gate
    gate.clear()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(bodies.BlocksInPart.type, desk)))
        await desk.heard("initialize")
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        gate.set()

    assert call.cancelled()
    assert desk.messages == ["initialize", "initialized", "finalize"]
