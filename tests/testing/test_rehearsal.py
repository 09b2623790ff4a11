"""Runs of users' tests: virtual time, answers, signals, items and what one can claim about them."""

from __future__ import annotations

import re
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Stream, collect, workflow
from perdure.errors import AnswerRefused
from perdure.testing import NeverRests, Rehearsal, stage
from tests.testing import flows


@pytest.fixture(params=["sqlite", "postgres"])
def rehearsal(request: pytest.FixtureRequest, tmp_path: Path):
    store = "sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Rehearsal(tmp_path / "rehearsal", store=store) as opened:
        yield opened


def test_a_run_goes_as_far_as_it_can(rehearsal: Rehearsal):
    run = rehearsal.run(flows.digest, url="here")

    run.assert_waiting_for("Publish this?")
    assert run.status == "awaiting_input"

    rehearsal.answer("Publish this?", True)

    assert run.output == "published: TEXT OF HERE"
    assert run.executions(flows.shout).items == 3


def test_an_answer_given_beforehand_counts(rehearsal: Rehearsal):
    rehearsal.answer(re.compile("^Publish"), False)

    run = rehearsal.run(flows.digest, url="here")

    assert run.output is None
    run.assert_skipped("publish")


@pytest.mark.parametrize("flow", [flows.monthly, flows.monthly_in_thread], ids=["async", "thread"])
def test_a_month_takes_no_time(rehearsal: Rehearsal, flow):
    before, began = rehearsal.now, time.perf_counter()

    run = rehearsal.run(flow, text="x")

    assert run.output == "published: x"
    assert timedelta(days=30) <= rehearsal.now - before < timedelta(days=30, minutes=1)
    assert time.perf_counter() - began < 20


def test_time_waits_for_a_server_that_a_body_talks_to(perdure: Rehearsal):
    def serve_slowly(listener: socket.socket) -> None:
        for _ in range(2):  # the body is unwound while it sleeps, and calls again
            connection, _ = listener.accept()
            time.sleep(0.2)
            connection.sendall(b"hello")
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_slowly, args=(listener,))
        server.start()
        run = perdure.run(flows.calling, port=listener.getsockname()[1])
        server.join()

    assert run.output == "published: hello"


def test_time_passes_as_far_as_it_is_told_to(perdure: Rehearsal):
    run = perdure.start(flows.monthly, text="x")
    assert run.status == "suspended"

    perdure.advance(days=29)
    assert run.status == "suspended"
    run.assert_ran("publish", times=0)

    perdure.advance(timedelta(days=1))
    assert run.output == "published: x"


def test_a_deadline_comes_when_time_passes(perdure: Rehearsal):
    run = perdure.run(flows.deadline)
    run.assert_waiting_for("Soon?")

    perdure.advance(hours=1)

    assert run.output == "too late"


def test_answers_come_in_turn(perdure: Rehearsal):
    perdure.answer("How many?", 3, 4)

    assert perdure.run(flows.asking_twice).output == [3, 4]


def test_the_answer_that_was_given_last_counts(perdure: Rehearsal):
    perdure.answer("How many?", 1)
    perdure.answer("How many?", 2)

    assert perdure.run(flows.asking_twice).output == [2, 2]


def test_questions_are_known_by_their_node_or_its_type(perdure: Rehearsal):
    perdure.answer(flows.asked_in_thread, "Ada")
    perdure.answer("asked_twice", 5)

    assert perdure.run(flows.asking_in_thread).output == "Ada"
    assert perdure.run(flows.asking_twice).output == [5, 5]


@pytest.mark.parametrize("pattern", [re.compile("HOW MANY", re.IGNORECASE), re.compile("")])
def test_questions_are_known_by_a_pattern_as_it_was_compiled(perdure: Rehearsal, pattern: re.Pattern[str]):
    perdure.answer(pattern, 3)
    assert perdure.run(flows.asking_twice).output == [3, 3]


def test_one_of_several_runs_is_answered(perdure: Rehearsal):
    first, second = perdure.run(flows.asking_twice), perdure.run(flows.asking_twice)

    perdure.answer("How many?", 1, run=first)

    assert first.output == [1, 1]
    second.assert_waiting_for("How many?")


def test_a_wrong_answer_is_refused(perdure: Rehearsal):
    run = perdure.run(flows.digest, url="here")

    with pytest.raises(AnswerRefused, match="boolean"):
        perdure.answer("Publish this?", "yes")
    perdure.answer("Publish this?", True)

    assert run.output == "published: TEXT OF HERE"


def test_signals_and_resumptions_come_before_or_after(perdure: Rehearsal):
    early, late = 1, 2
    waiting, suspended = perdure.run(flows.payment), perdure.run(flows.legal)
    waiting.assert_waiting_for("paid")
    suspended.assert_waiting_for("for the lawyers")

    perdure.signal("paid", early)
    perdure.resume("told", "agreed")
    perdure.signal("paid", late)

    assert waiting.output == early
    assert suspended.output == "agreed"
    assert perdure.run(flows.payment).output == early
    assert perdure.run(flows.legal).output == "agreed"


def test_items_are_sent(perdure: Rehearsal):
    perdure.run(flows.payment)
    run = perdure.run(flows.fed)

    perdure.send("items", "a", "b")
    run.assert_ran(flows.shout, times=2)
    perdure.send("items", "c", close=True)

    assert run.output == ["A", "B", "C"]


def test_items_are_sent_to_runs_of_a_workflow_whose_name_another_has_taken(perdure: Rehearsal):
    run = perdure.run(flows.fed)

    @workflow
    def fed(numbers: Stream[str]) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return collect(flows.shout.map(numbers))

    perdure.send("items", "a", close=True)

    assert run.output == ["A"]


def test_a_run_is_told_anything(perdure: Rehearsal):
    run = perdure.run(flows.digest, url="here")

    perdure.tell(run, lambda handle: handle.cancel("no longer needed"))

    assert run.status == "cancelled"
    assert run.events[-1].reason == "no longer needed"


def test_a_run_of_another_test_is_told_nothing(perdure: Rehearsal, tmp_path: Path):
    with Rehearsal(tmp_path / "other") as other:
        run = other.run(flows.asking_twice)

        with pytest.raises(ValueError, match="does not go on here"):
            perdure.tell(run, lambda run: run.cancel())
        with pytest.raises(ValueError, match="does not go on here"):
            perdure.answer("How many?", 1, run=run)


def test_a_run_that_fails_says_why(perdure: Rehearsal):
    run = perdure.run(flows.failing, text="this")

    run.assert_failed(ValueError)
    run.assert_failed("no good")
    assert run.error is not None
    assert run.error.message == "this is no good"
    with pytest.raises(AssertionError, match="not failed with 'KeyError', but with ValueError"):
        run.assert_failed(KeyError)


async def test_an_async_test_can_use_it(perdure: Rehearsal):
    assert perdure.run(flows.monthly, text="x").output == "published: x"


def test_a_run_that_never_rests_is_given_up(perdure: Rehearsal, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as impatience:
        impatience.setattr(stage, "PATIENCE_SECONDS", 0.5)
        with pytest.raises(NeverRests, match=r"perdure\.start"):
            perdure.run(flows.endless)
    run = perdure.start(flows.endless)
    perdure.advance(minutes=10)

    assert run.status == "suspended"
    assert run.executions("stuck").times == 11  # it was unwound while it slept


CLAIMS = {
    "the run has not completed": lambda run: run.output,
    "the run has not failed": lambda run: run.assert_failed(),
    "'fetch' ran once, not 3 times": lambda run: run.assert_ran(flows.fetch, times=3),
    "'publish' did not run": lambda run: run.assert_ran("publish"),
    "'publish' was not skipped": lambda run: run.assert_skipped("publish"),
    "the run does not wait for 'Delete this?'": lambda run: run.assert_waiting_for("Delete this?"),
    "the workflow has no node 'nobody'": lambda run: run.executions("nobody"),
}


@pytest.mark.parametrize("message", CLAIMS)
def test_a_false_claim_shows_what_happened(perdure: Rehearsal, message: str):
    run = perdure.run(flows.digest, url="here")

    with pytest.raises(AssertionError) as failure:
        CLAIMS[message](run)

    claim, _, table = str(failure.value).partition("\n\n")
    assert claim == message
    assert table.splitlines() == [
        f"run {run.run_id} of digest is awaiting_input: asks 'Publish this?'",
        "  node     status     attempts  ran  items",
        "  fetch    completed  1         1",
        "  words    completed  1         1    3",
        "  shout    completed  1         3    3",
        "  join     completed  1         1",
        "  ask      suspended  1         0           asks 'Publish this?'",
        "  publish  idle",
    ]


@pytest.mark.parametrize("method", ["run", "start", "crashes", "assert_survives", "kill_at"])
def test_only_workflows_are_run(perdure: Rehearsal, method: str):
    call: Any = getattr(perdure, method)
    before = (1,) if method == "kill_at" else ()

    with pytest.raises(
        TypeError, match=rf"perdure.{method} takes a workflow, and 'fetch' is a node: call it in a function"
    ):
        call(*before, flows.fetch, url="x")
    with pytest.raises(TypeError, match=rf"perdure.{method} takes a workflow.*put @workflow on the function"):
        call(*before, len, url="x")
