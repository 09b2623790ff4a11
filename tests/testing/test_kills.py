"""Real kills: the process of a run is ended by SIGKILL at a commit, and another one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import node, workflow
from perdure.errors import BodyNotFound
from perdure.testing import Rehearsal
from tests.testing import flows

pytestmark = pytest.mark.slow


@node
async def said(text: str) -> str:
    return f"said {text}"


@workflow
def saying(text: str) -> str:
    return flows.publish(said(text))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_another_process_goes_on(database: str, request: pytest.FixtureRequest, tmp_path: Path):
    store = "sqlite" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with Rehearsal(tmp_path, store=store) as perdure:
        perdure.answer("Publish this?", True)

        run = perdure.kill_at(4, flows.digest, url="x")

    assert run.output == "published: TEXT OF X"
    assert [type(event).__name__ for event in run.events].count("RunRecovered") == 1


@pytest.mark.parametrize("commit", range(1, 4))
def test_a_kill_at_any_commit_changes_nothing(perdure: Rehearsal, commit: int):
    run = perdure.kill_at(commit, saying, text="x")

    assert run.output == "published: said x"


def test_what_was_done_by_the_process_that_was_killed_is_counted(perdure: Rehearsal):
    run = perdure.kill_at(2, saying, text="x")

    run.assert_ran(said, times=2)
    run.assert_ran(flows.publish, times=1)


def test_a_month_passes_in_the_other_process(perdure: Rehearsal):
    run = perdure.kill_at(3, flows.monthly, text="x")

    assert run.output == "published: x"


def test_answers_go_on_in_turn(perdure: Rehearsal):
    perdure.answer("How many?", 1, 2)
    undisturbed = perdure.run(flows.asking_twice)
    answered = [type(event).__name__ for event in undisturbed.events].index("InteractionResponded")
    assert answered > 0

    run = perdure.kill_at(4, flows.asking_twice)

    assert run.output == [1, 2]


def test_stubs_stand_in_the_other_process_too(perdure: Rehearsal):
    perdure.answer("Publish this?", True)
    perdure.stub(flows.fetch, flows.dull_fetch)
    perdure.stub(flows.shout, in_turn=[ConnectionError("down")])
    perdure.stub(flows.words, returns=["a"])

    run = perdure.kill_at(3, flows.digest, url="x")

    run.assert_failed(ConnectionError)
    assert run.executions("fetch").attempts > 0


def test_the_run_may_rest_at_its_end(perdure: Rehearsal):
    run = perdure.kill_at(3, flows.digest, url="x")

    run.assert_waiting_for("Publish this?")


def test_a_commit_that_never_comes_is_told(perdure: Rehearsal):
    with pytest.raises(AssertionError, match=r"the run has made \d commits and rests: there is no commit 99"):
        perdure.kill_at(99, saying, text="x")


def test_what_another_process_cannot_find_is_told(perdure: Rehearsal):
    @workflow
    def inside(text: str) -> str:
        return said(text)

    with pytest.raises(BodyNotFound, match="the workflow is defined inside a function"):
        perdure.kill_at(1, inside, text="x")
    perdure.stub(said, lambda text: text)
    with pytest.raises(BodyNotFound, match="its stub is defined inside a function"):
        perdure.kill_at(1, saying, text="x")


class Peculiar(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def test_an_exception_that_another_process_cannot_make_again_is_told(perdure: Rehearsal):
    class Local(Exception):
        """One of which only this function knows."""

    for error, advice in ((Local("x"), "put the class at the top of a module"), (Peculiar(1, "x"), "from its message")):
        with (
            perdure.stub(said, raises=error),
            pytest.raises(BodyNotFound, match=rf"'.*said'.* its stub raises {type(error).__name__}, .*{advice}"),
        ):
            perdure.kill_at(1, saying, text="x")


async def test_an_async_test_can_kill(perdure: Rehearsal):
    assert perdure.kill_at(2, saying, text="x").output == "published: said x"
