"""What holds for a body wherever it runs: on the loop, in a thread, in a process."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.dispatch.base import StepCall
from perdure.dispatch.failure import failure_of
from perdure.dispatch.local import LocalDispatch
from perdure.errors import ArgumentNotReadable, AttemptOver, BodyRaised, StoreUnavailable, StreamsNotSupported
from perdure.graph.declare import NodeType, node
from perdure.graph.handles import Outputs
from tests.dispatch import bodies
from tests.dispatch.bodies import Point
from tests.dispatch.desk import Desk, decoded, encoded, executed_by, run, task_for

PLACES = ["loop", "thread", "process", "async in a thread", "async in a process"]


def placed(place: str, blocking: NodeType[..., Any], asynchronous: NodeType[..., Any]) -> NodeType[..., Any]:
    match place:
        case "loop":
            return asynchronous
        case "thread":
            return blocking
        case "process":
            return executed_by(blocking, "process")
        case "async in a thread":
            return executed_by(asynchronous, "thread")
        case _:
            return executed_by(asynchronous, "process")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_a_body_gets_its_arguments_and_defaults(dispatch: LocalDispatch, place: str) -> None:
    adds = placed(place, bodies.add, bodies.add_async)

    assert await run(dispatch, adds, a=1) == 3
    assert await run(dispatch, adds, a=1, b=5) == 6


async def test_a_task_that_was_prepared_gives_the_same(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    adds = placed(place, bodies.add, bodies.add_async)
    task = dispatch.prepare(task_for(adds, desk, a=1, b=5))

    assert decoded(await dispatch.execute(task)) == 6
    assert (task.decoded is not None) == (place == "loop")  # elsewhere, decoding is not the loop's to do


@pytest.mark.parametrize(("raised", "told"), [(ValueError, ValueError), (SystemExit, BodyRaised)])
async def test_what_cannot_be_read_is_found_when_a_task_is_prepared_and_when_it_is_not(
    dispatch: LocalDispatch, desk: Desk, raised: type[BaseException], told: type[Exception]
) -> None:
    def refuse(value: Any, annotation: Any) -> Any:
        raise raised("not this one")

    task = msgspec.structs.replace(task_for(bodies.add_async, desk, a=1), decode=refuse)

    with pytest.raises(told, match="not this one"):
        dispatch.prepare(task)
    with pytest.raises(told, match="not this one"):
        await dispatch.execute(task)


async def test_a_context_knows_its_attempt(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    introduces = placed(place, bodies.introduces_itself, bodies.introduces_itself_async)

    said = decoded(await dispatch.execute(task_for(introduces, desk, attempt=3, restored=[1, "ü"])))

    assert said == {
        "run_id": "run-1",
        "node_id": "node-1",
        "attempt": 3,
        "key": "run-1/node-1/0",
        "restored": [1, "ü"],
        "cancelled": False,
    }


async def test_what_a_body_says_arrives_in_order(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    await run(dispatch, placed(place, bodies.talks, bodies.talks_async), desk)

    assert [(level, message.replace("\\ud800", "\ud800")) for level, message, _ in desk.logged] == [
        ("debug", "d"),
        ("info", "i"),
        ("warning", "w \ud800 ü"),
        ("error", "e"),
    ]
    assert desk.logged[1][2]["count"] == 1
    assert desk.progressed == [(1, None), (2, 4)]
    assert desk.published == [{"part": "ü"}]


async def test_a_checkpoint_is_restored_as_it_was(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    saves = placed(place, bodies.checkpoints, bodies.checkpoints_async)

    first = await run(dispatch, saves, desk)
    again = await dispatch.execute(task_for(saves, desk, attempt=2, restored=Point(5, 6)))

    assert first is None
    assert [decoded(state, Point) for state in desk.checkpoints] == [Point(1, 2), [3], Point(1, 2), [3]]
    assert decoded(again, Point) == Point(5, 6)


async def test_a_recorded_step_is_not_taken_again(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    takes = placed(place, bodies.steps, bodies.steps_async)

    *results, calls = decoded(await dispatch.execute(task_for(takes, desk)), Point)
    *again, no_calls = decoded(await dispatch.execute(task_for(takes, desk, attempt=2)), Point)

    assert results == again == [2, 6, 6, Point(1, 2)]
    assert calls == ["doubled 1", "tripled 2", "doubled 3", "pointed"]
    assert no_calls == []
    assert sorted(desk.steps) == [("doubled", 0), ("doubled", 1), ("pointed", 0), ("tripled", 0)]


async def test_steps_are_counted_from_a_checkpoint_on(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    takes = placed(place, bodies.steps_and_checkpoints, bodies.steps_and_checkpoints_async)

    await dispatch.execute(task_for(takes, desk))

    assert [(call.name, call.occurrence, call.checkpoints) for call in desk.calls] == [
        ("doubled", 0, 0),
        ("doubled", 1, 0),
        ("doubled", 0, 1),
        ("tripled", 0, 1),
    ]


async def test_a_secret_does_not_show_itself(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    reads = placed(place, bodies.reads_secret, bodies.reads_secret_async)

    assert await run(dispatch, reads, desk, name="token") == ["***", "***", "***", "hünter2"]


async def test_a_missing_secret_is_a_key_error_with_the_remedy(dispatch: LocalDispatch, desk: Desk, place: str) -> None:
    reads = placed(place, bodies.reads_secret, bodies.reads_secret_async)

    with pytest.raises(Exception, match="set it") as caught:
        await run(dispatch, reads, desk, name="other")

    assert failure_of(caught.value).is_a(KeyError)


ERRORS: dict[str, tuple[type[BaseException], str]] = {
    "value": (ValueError, "ünwise"),
    "own": (bodies.OwnError, "no luck (7)"),
    "nested": (RuntimeError, "outer"),
    "group": (ExceptionGroup, "several (2 sub-exceptions)"),
    "system exit": (SystemExit, "3"),
    "keyboard interrupt": (KeyboardInterrupt, ""),
    "base": (bodies.EndOfWorld, "the end"),
    "cancelled": (asyncio.CancelledError, "by itself"),
    "memory": (MemoryError, ""),
}


async def test_what_a_body_raises_ends_only_its_attempt(dispatch: LocalDispatch, place: str) -> None:
    fails = placed(place, bodies.fails, bodies.fails_async)

    for kind, (error, message) in ERRORS.items():
        with pytest.raises(Exception) as caught:  # noqa: PT011  # which one differs from place to place
            await run(dispatch, fails, kind=kind)

        failure = failure_of(caught.value)
        assert failure.is_a(error)
        assert failure.is_a(error.__name__)
        assert not failure.is_a(ArithmeticError)
        assert failure.message.startswith(message)
        assert "in _fail" in failure.traceback
        assert "places.py" not in failure.traceback

    assert await run(dispatch, placed(place, bodies.add, bodies.add_async), a=1) == 3


async def test_stop_iteration_is_an_error_like_any_other(dispatch: LocalDispatch, place: str) -> None:
    with pytest.raises(Exception, match="StopIteration") as caught:
        await run(dispatch, placed(place, bodies.fails, bodies.fails_async), kind="stop")

    assert isinstance(caught.value, RuntimeError | BodyRaised)


async def test_a_cause_is_part_of_the_traceback(dispatch: LocalDispatch, place: str) -> None:
    with pytest.raises(Exception, match="outer") as caught:
        await run(dispatch, placed(place, bodies.fails, bodies.fails_async), kind="nested")

    assert "KeyError: 'inner'" in failure_of(caught.value).traceback


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_models_travel_as_themselves(dispatch: LocalDispatch, executor: Any) -> None:
    result = await dispatch.execute(task_for(executed_by(bodies.mirrored, executor), Desk(), point=Point(1, 2)))

    assert decoded(result, Point) == Point(2, 1)


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_several_outputs_keep_their_handles(dispatch: LocalDispatch, executor: Any) -> None:
    assert await run(dispatch, executed_by(bodies.halves, executor), text="añb€") == Outputs(left="añ", right="b€")


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_any_text_arrives_as_it_was(dispatch: LocalDispatch, executor: Any) -> None:
    for text in ("", "ü€😀", "\0", "\ud800", "line\nline"):
        assert await run(dispatch, executed_by(bodies.echo, executor), value=text) == text


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_body_that_says_much_waits_for_the_loop(dispatch: LocalDispatch, desk: Desk, executor: Any) -> None:
    await run(dispatch, executed_by(bodies.talks_without_end, executor), desk, times=5_000)

    assert [fields["number"] for _, _, fields in desk.logged] == list(range(5_000))
    assert len(desk.progressed) == 5_000


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_publishing_what_has_no_form_raises_in_the_body(
    dispatch: LocalDispatch, desk: Desk, executor: Any
) -> None:
    assert await run(dispatch, executed_by(bodies.publishes_nonsense, executor), desk) == "ValueNotStorable"


async def test_steps_are_counted_in_the_order_of_the_calls(dispatch: LocalDispatch, desk: Desk) -> None:
    assert await run(dispatch, bodies.steps_awaited_backwards, desk) == [6, 3]

    assert desk.steps == {("tripled", 0): encoded(3), ("tripled", 1): encoded(6)}


async def test_a_blocking_step_of_an_async_body_leaves_the_loop_free(dispatch: LocalDispatch, desk: Desk) -> None:
    assert await run(dispatch, bodies.step_off_the_loop, desk) is True


async def test_a_context_can_be_used_from_threads_of_an_async_body(dispatch: LocalDispatch, desk: Desk) -> None:
    await run(dispatch, bodies.talks_from_a_thread, desk)

    assert desk.messages == ["d", "i", "w \ud800 ü", "e"]
    assert desk.published == [{"part": "ü"}]


async def test_a_context_can_be_used_from_another_loop(dispatch: LocalDispatch, desk: Desk) -> None:
    assert await run(dispatch, bodies.uses_a_loop_in_a_thread, desk) == [3, 4]

    assert [decoded(state) for state in desk.checkpoints] == ["from elsewhere"]


async def test_what_outlives_a_body_is_told_that_the_attempt_is_over(dispatch: LocalDispatch, desk: Desk) -> None:
    await run(dispatch, bodies.leaves_a_thread_behind, desk, name="outliving")

    bodies.release["outliving"].set()
    await asyncio.to_thread(bodies.outlived["outliving"].wait)

    assert bodies.released["outliving"] == "AttemptOver"
    assert desk.checkpoints == []


class RefusingDesk(Desk):
    """Refuses everything, each time for another reason."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons = [AttemptOver("node-1", 1), StoreUnavailable("gone fishing"), ValueError("not this step")]

    async def checkpoint(self, state: Any) -> None:
        raise self._reasons.pop(0)

    async def recorded_step(self, call: StepCall) -> None:
        raise self._reasons.pop(0)


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_what_the_engine_refuses_is_raised_in_the_body(dispatch: LocalDispatch, executor: Any) -> None:
    seen = await run(dispatch, executed_by(bodies.asks_in_vain, executor), RefusingDesk())

    assert seen[0].startswith("AttemptOver: Attempt 1 at node 'node-1' is over")
    assert seen[1].endswith("StoreUnavailable: gone fishing")
    assert seen[2].endswith("ValueError: not this step")


async def test_a_large_argument_of_an_async_body_is_decoded_in_a_thread(dispatch: LocalDispatch) -> None:
    @node
    async def length(text: str) -> int:
        return len(text)

    assert await run(dispatch, length, text="x" * 3_000_000) == 3_000_000


async def test_contextvars_reach_a_thread_and_do_not_come_back(dispatch: LocalDispatch) -> None:
    bodies.variable.set("set by the caller")

    assert await run(dispatch, bodies.reads_variable) == "set by the caller"
    assert await run(dispatch, bodies.reads_variable) == "set by the caller"
    assert bodies.variable.get() == "set by the caller"


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_generator_that_is_not_declared_is_refused_with_the_remedy(
    dispatch: LocalDispatch, executor: Any
) -> None:
    with pytest.raises(Exception, match=r"annotate it to return Iterator\[T\]") as caught:
        await run(dispatch, executed_by(bodies.yields, executor))

    assert failure_of(caught.value).is_a(StreamsNotSupported)


async def test_an_argument_that_cannot_be_decoded_is_named(dispatch: LocalDispatch, desk: Desk) -> None:
    task = task_for(bodies.add, desk, a=1)
    task.arguments["a"] = encoded(Point(1, 2))  # type: ignore[index]

    with pytest.raises(ArgumentNotReadable, match=r"What node 'node-1' is to be given as 'a' .* does not know"):
        await dispatch.execute(task)


async def test_a_cancelled_async_body_ends_before_the_call_does(dispatch: LocalDispatch, desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(bodies.waits_async, desk)))
        await desk.heard("begun")
        call.cancel()

    assert call.cancelled()
    assert desk.messages == ["begun", "ended"]


async def test_what_a_body_makes_of_a_cancellation_is_what_the_call_comes_to(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(bodies.ignores_one_cancellation, desk)))
        await desk.heard("begun")
        call.cancel()

    assert not call.cancelled()
    assert desk.messages == ["begun", "ignored"]
