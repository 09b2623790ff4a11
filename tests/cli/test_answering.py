"""`perdure answer`: what is asked, by whom it is answered, what is refused; by commands and at a terminal's prompt."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cli.asking import FLOW, asking
from tests.cli.conftest import Cli
from tests.cli.test_terminal import Screen


@pytest.fixture
def flow(cli: Cli) -> Cli:
    cli.write("flow.py", FLOW)
    return cli


@pytest.mark.slow
def test_questions_of_all_runs_are_listed_oldest_first(flow: Cli):
    asking(flow)
    asking(flow, "colours", "r2")
    asking(flow, "stopped", "r3")

    lines = flow("answer").stdout.splitlines()
    documents = flow.json("answer")
    few = flow("answer", "--limit", "1").stdout.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["r1/approval/1", "r2/one/1", "r2/two/1", "r3/stop/1"]
    assert lines[1].endswith("Publish this?")
    assert lines[4].endswith("waits to be told to go on: look at it")
    assert [document["kind"] for document in documents] == ["ask", "ask", "ask", "suspend"]
    assert documents[1].keys() == {
        *("interaction_id", "run_id", "workflow", "node_id", "kind", "prompt"),
        *("schema", "choices", "show", "since", "deadline"),
    }
    assert documents[1]["choices"] == ["red", "blue"]
    assert [line.split()[0] for line in few] == ["QUESTION", "r1/approval/1", "…"]


@pytest.mark.slow
def test_a_run_whose_other_question_is_answered_asks_one_thing(flow: Cli):
    asking(flow, "colours")
    flow("answer", "r1/two/1", "5")

    last = flow.json("answer", "r1", "blue")
    late = flow("answer", "r1/one/1", "red")

    assert last["interaction_id"] == "r1/one/1"
    assert late.returncode == 2
    assert "answered" in late.stderr


@pytest.mark.slow
def test_several_questions_are_answered_by_their_ids_in_any_order(flow: Cli):
    told = asking(flow, "colours").stdout
    assert "perdure answer r1/one/1 red (or blue)" in told
    assert "perdure answer r1/two/1 TEXT" in told

    unclear = flow("answer", "r1", "red")
    second = flow.json("answer", "r1/two/1", "5")
    first = flow.json("answer", "r1/one/1", "blue", "--by", "ada")
    outputs = flow.json("resume", "r1")["outputs"]

    assert unclear.returncode == 2
    assert "Run r1 asks 2 things. Say which one is meant:\n  r1/one/1  Which colour?" in unclear.stderr
    assert second == {
        "run_id": "r1",
        "interaction_id": "r1/two/1",
        "node_id": "two",
        "by": "command line",
        "answer": "5",  # it asks for a text
    }
    assert (first["by"], first["answer"]) == ("ada", "blue")
    assert outputs == {"colour": "blue", "why": "5"}


def test_an_answer_may_be_an_object(flow: Cli):
    asking(flow, "reviewed")

    wrong = flow("answer", "r1", '{"stars": "many"}')
    plain = flow("answer", "r1", "great")
    right = flow("answer", "r1", '{"stars": 5, "note": "great"}')
    outputs = flow.json("resume", "r1")["outputs"]

    assert (wrong.returncode, plain.returncode, right.returncode) == (2, 2, 0)
    assert "'note' is a required property" in wrong.stderr
    assert "$.stars: 'many' is not of type 'integer'" in wrong.stderr
    assert "It is still open." in wrong.stderr
    assert outputs == {"output": {"stars": 5, "note": "great"}}


def test_a_wrong_answer_leaves_the_question_open(flow: Cli):
    asking(flow)

    wrong = flow("answer", "r1", "maybe")
    document = flow.json("answer", "r1", "maybe")

    assert wrong.returncode == 2
    assert "'maybe' is not of type 'boolean'" in wrong.stderr
    assert document["error"]["code"] == "answer_refused"
    assert len(flow.json("answer")) == 1


@pytest.mark.parametrize(("word", "meant"), [("yes", "true"), ("N", "false")])
def test_yes_and_no_are_true_and_false_where_that_is_asked(flow: Cli, word: str, meant: str):
    asking(flow)

    answered = flow("answer", "r1", word)

    assert answered.stdout == f"question r1/approval/1 is answered: {meant}. `perdure resume r1` goes on.\n"


def test_yes_is_true_also_where_nothing_would_be_an_answer(cli: Cli):
    cli.write(
        "flow.py",
        "from perdure import Context, node, workflow\n\n"
        "@node\nasync def asks(ctx: Context) -> str:\n    return repr(await ctx.ask('Well?', schema=bool | None))\n\n"
        "@workflow\ndef asking() -> str:\n    return asks()\n",
    )
    cli("run", "flow.py", "--run-id", "r1")

    cli("answer", "r1", "yes")

    assert cli("resume", "r1").stdout.splitlines()[-1] == "True"


@pytest.mark.slow
def test_the_first_answer_counts(flow: Cli):
    asking(flow)
    flow("answer", "r1", "true")

    second = flow("answer", "r1/approval/1", "false")
    done = flow("resume", "r1")
    third = flow("answer", "r1/approval/1", "false")
    by_run = flow("answer", "r1", "false")

    assert second.returncode == 2
    assert "has been answered. The first answer counts." in second.stderr
    assert done.stdout.splitlines()[-1] == "published: All about lamps."
    assert third.returncode == 2
    assert by_run.returncode == 2
    assert "Run r1 asks nothing: it is completed." in by_run.stderr


def test_a_pipe_is_told_how_to_answer_and_nothing_is_read(flow: Cli):
    asking(flow)

    done = flow("answer", "r1", stdin="true\n")
    document = flow.json("answer", "r1", stdin="true\n")

    assert done.returncode == 2
    assert "takes true or false: perdure answer r1/approval/1 true (or false)" in done.stderr
    assert document["error"]["code"] == "wrong_use"
    assert len(flow.json("answer")) == 1


def test_answering_what_is_no_question_says_so(flow: Cli):
    asking(flow, "stopped")

    unknown = flow("answer", "r9", "true")
    suspended = flow("answer", "r1", "true")
    by_id = flow("answer", "r1/stop/1", "true")

    assert [done.returncode for done in (unknown, suspended, by_id)] == [2, 2, 2]
    assert "There is neither a question nor a run 'r9'. `perdure answer` lists what is asked." in unknown.stderr
    assert "Run r1 asks nothing. stop waits to be told to go on: look at it." in suspended.stderr
    assert "perdure resume r1 --node stop --value JSON" in by_id.stderr


def test_looking_for_questions_makes_no_store(flow: Cli):
    done = flow("answer")

    assert done.returncode == 2
    assert not (flow.folder / "perdure.db").exists()


# In a terminal


def typed(screen: Screen, text: str) -> None:
    os.write(screen._terminal, text.encode())  # pyright: ignore[reportPrivateUsage] -- a person types


@pytest.mark.slow
def test_a_terminal_shows_the_question_and_asks_until_the_answer_fits(flow: Cli):
    asking(flow)
    screen = Screen(flow, "answer", "r1", env={"NO_COLOR": "1"})

    screen.read_until("Your answer (yes or no): ")
    typed(screen, "\n")
    typed(screen, "perhaps\n")
    screen.read_until("'perhaps' is not of type 'boolean'")
    typed(screen, "yes\n")
    exit_code = screen.close()

    assert exit_code == 0
    shown = screen.text.replace("\r", "")
    assert "approval of run r1 (letter), asked " in shown
    assert "\nPublish this?\n\n  All about lamps.\n" in shown
    assert "  It takes true or false.\n" in shown
    assert "question r1/approval/1 is answered: true." in shown


@pytest.mark.slow
def test_a_choice_is_made_by_its_number_or_its_name(flow: Cli):
    asking(flow, "colours")
    screen = Screen(flow, "answer", "r1/one/1", env={"NO_COLOR": "1"})

    screen.read_until("  1) red\r\n  2) blue\r\n\r\nYour answer (1–2): ")
    typed(screen, "3\n")
    screen.read_until('3 is none of "red", "blue"')
    typed(screen, "2\n")
    screen.close()

    assert "question r1/one/1 is answered: blue." in screen.text


@pytest.mark.slow
def test_a_person_who_leaves_has_answered_nothing(flow: Cli):
    asking(flow)
    ended = Screen(flow, "answer", "r1")
    ended.read_until("Your answer")
    typed(ended, "\x04")
    interrupted = Screen(flow, "answer", "r1")
    interrupted.read_until("Your answer")
    time.sleep(0.5)  # one that comes between the prompt and the reading is heard when something was typed
    interrupted.process.send_signal(signal.SIGINT)

    assert ended.close() == 2
    assert "No answer was given. The question is still open: r1/approval/1" in ended.text
    assert interrupted.close() == 130
    assert "Traceback" not in interrupted.text
    assert len(flow.json("answer")) == 1
